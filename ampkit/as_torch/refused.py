"""Names that can be imported and not used: a call raises an error with the cure."""

from __future__ import annotations

from typing import Any

from ..base.missing_names import missing_name


class _Refused(type):
    """The class of such names: classes, so that they can stand in annotations and in `isinstance`."""

    path: str
    cure: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        space, _, name = cls.path.rpartition(".")
        raise missing_name(space, name, cls.cure)

    def __getattr__(cls, name: str) -> Any:
        raise missing_name(cls.path, name, None if name.startswith("__") else cls.cure)


def refused(path: str, cure: str) -> Any:
    """A class in place of PyTorch's `path`, whose calls raise AttributeError."""
    return _Refused(path.rpartition(".")[2], (), {"path": path, "cure": cure, "__module__": path.rpartition(".")[0]})
