"""`import ampkit.as_torch` makes `import torch` mean ampkit, for scripts and libraries that are written for PyTorch.

    import ampkit.as_torch
    import torch                       # ampkit, by PyTorch's names

`python -m ampkit.as_torch SCRIPT ARGS` runs a script so, as it is. What each module of PyTorch is in ampkit stands in
`namespaces.py`; a name of PyTorch that ampkit lacks raises an AttributeError or ImportError that says what to use
instead.
"""

from __future__ import annotations

import sys
from importlib import import_module

from .. import backends
from ..base.errors import StateError
from ..base.public_dtypes import show_as
from .finder import Finder, Namespace


def install() -> None:
    """Make `torch` and its submodules mean ampkit in this process; a second call changes nothing.

    Raises StateError where PyTorch itself has been imported.
    """
    present = sys.modules.get("torch")
    if isinstance(present, Namespace):
        return
    if present is not None:
        got = f"PyTorch {getattr(present, '__version__', '')} in sys.modules"
        raise StateError("ampkit.as_torch", "a process without PyTorch", got, "import ampkit.as_torch before all else")
    show_as("torch")
    backends.also_called("meta")  # where tensors have memory and values: what is made there needs no second making
    sys.meta_path.insert(0, Finder())
    import_module("torch")


install()
