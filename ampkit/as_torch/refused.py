"""Names that can be imported and not used: a call raises an error with the cure."""

from __future__ import annotations

from typing import Any

from ..base.missing_names import missing_name


class _Refused(type):
    """The class of such names: classes, so that they can stand in annotations, in `isinstance`, and as bases.

    What a library does with a name while it is imported succeeds: an attribute of one, as the member of an enumeration,
    is a refused name again, and a subscript, as of a generic class, the class itself. Subclasses are refused, too.
    """

    path: str
    cure: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise cls._error()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name, obj=cls)
        found = refused(f"{cls.path}.{name}", cls.cure)
        type.__setattr__(cls, name, found)
        return found

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        raise cls._error()

    def __len__(cls) -> int:
        raise cls._error()

    def __bool__(cls) -> bool:
        return True

    def _error(cls) -> AttributeError:
        space, _, name = cls.path.rpartition(".")
        return missing_name(space, name, cls.cure)


def refused(path: str, cure: str) -> Any:
    """A class in place of PyTorch's `path`, whose calls raise AttributeError; one of an error can be caught."""
    space, _, name = path.rpartition(".")
    bases = (Exception,) if name.endswith(("Error", "Exception")) else ()
    return _Refused(name, bases, {"path": path, "cure": cure, "__module__": space})
