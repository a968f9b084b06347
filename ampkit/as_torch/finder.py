"""The import of `torch` and its submodules: each is a Namespace, made when it is first asked for."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from ..base.missing_names import PYTORCH_VERSION, cure_of, missing_module, missing_name
from .namespaces import REFUSED, SOURCES, refusal
from .refused import refused

_EXTRA = f"{__package__}.extra"
_SCRIPT = f"{__package__}.script_"


class Namespace(ModuleType):
    """A module of PyTorch: names of ampkit, and an answer for those that ampkit lacks."""

    def __getattr__(self, name: str) -> Any:
        if name == "torch":  # which all of PyTorch's modules import
            return sys.modules["torch"]
        path = f"{self.__name__}.{name}"
        if path in SOURCES or path in REFUSED:
            return import_module(path)
        cure = None if name.startswith("__") else refusal(path) or class_cure(self.__name__, name)
        if cure is not None:
            self.__dict__[name] = refused(path, cure)
            return self.__dict__[name]
        raise missing_name(self.__name__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # An import of `torch.autograd.gradcheck` leaves the function of that name, as in PyTorch.
        if not (isinstance(value, Namespace) and callable(self.__dict__.get(name))):
            super().__setattr__(name, value)


def class_cure(space: str, name: str) -> str | None:
    """What to use instead of a class of PyTorch that ampkit lacks; None for a name that is not one.

    No value is an instance of it, which is all that most libraries ask.
    """
    is_class = name[0].isupper() and not name.isupper()
    return cure_of(space, name) if is_class else None


class Finder(DistributionFinder, Loader):
    """Finds `torch` and everything below it, and the version of the distribution `torch`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of PyTorch. Raises ImportError with the cure for one that ampkit has nothing for."""
        if name.startswith(_SCRIPT):
            return script_spec(bytes.fromhex(name.removeprefix(_SCRIPT)).decode())
        if name.partition(".")[0] not in ("torch", "functorch"):
            return None
        if name not in SOURCES and refusal(name) is None:
            space, _, last = name.rpartition(".")
            if cure_of(space, last):  # `from torch.nn import X` asks for a module X, once there is no name X
                raise ImportError(str(missing_name(space, last)))
            raise missing_module(name)
        return ModuleSpec(name, self, is_package=True)

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        if context.name in (None, "torch"):
            yield Torch()

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Namespace(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a namespace from its sources."""
        entry = SOURCES.get(module.__name__, "").split()
        if entry[:1] == ["="]:
            sys.modules[module.__name__] = import_module(entry[1])
            return
        module.__file__ = __file__  # libraries ask for the folder
        for source in entry:
            found = import_module(source, _EXTRA)
            module.__dict__.update((name, getattr(found, name)) for name in public(found))


def script_spec(path: str) -> ModuleSpec:
    """The spec of a script that the alias runs: a module of this package, by its path.

    A process that multiprocessing spawns imports its `__main__` by the name there, and so the alias before it.
    """
    name = f"{_SCRIPT}{path.encode().hex()}"
    spec = ModuleSpec(name, SourceFileLoader(name, path), origin=path)
    spec.has_location = True
    return spec


class Torch(Distribution):
    """What `importlib.metadata.version("torch")` reads."""

    def read_text(self, filename: str) -> str | None:
        return f"Name: torch\nVersion: {PYTORCH_VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


def public(module: ModuleType) -> Sequence[str]:
    """The names that a module exports, but for modules; also those that hide built-ins, which no `__all__` lists.

    Without an `__all__`, what it defines.
    """
    listed: Any = getattr(module, "__all__", None)
    found = {name for name, value in vars(module).items() if not isinstance(value, ModuleType)}
    if listed is None:
        origins = {name: getattr(vars(module)[name], "__module__", None) for name in found}
        return sorted(name for name in found if name[0] != "_" and origins[name] in (None, module.__name__))
    return sorted(name for name in found if name in listed or (hasattr(builtins, name) and name[0] != "_"))
