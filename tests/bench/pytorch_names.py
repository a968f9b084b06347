"""PyTorch's public names by namespace, with which docs/coming-from-pytorch.md compares ampkit's.

    python -m tests.bench.pytorch_names        # where PyTorch is installed, into ampkit/base/missing_names/

A name is public if it does not begin with an underscore and is neither a module nor imported from elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.backends.cuda
import torch.distributed
import torch.nn.attention
import torch.nn.utils.prune
import torch.nn.utils.stateless
import torch.utils.checkpoint

GOLDEN = Path(__file__).parents[2] / "ampkit" / "base" / "missing_names" / "pytorch_names.json"
NAMESPACES = [
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils",
    "torch.nn.utils.parametrizations", "torch.nn.utils.parametrize", "torch.optim", "torch.optim.lr_scheduler",
    "torch.optim.swa_utils", "torch.amp", "torch.autograd", "torch.linalg", "torch.special", "torch.utils.data",
    "torch.accelerator", "torch.autograd.functional", "torch.backends.cuda", "torch.backends.cudnn", "torch.compiler",
    "torch.cpu", "torch.cuda", "torch.cuda.amp", "torch.distributed", "torch.distributions", "torch.func", "torch.fx",
    "torch.hub", "torch.jit", "torch.multiprocessing", "torch.nn.attention", "torch.nn.parallel", "torch.nn.parameter",
    "torch.nn.utils.prune", "torch.nn.utils.rnn", "torch.nn.utils.stateless", "torch.overrides", "torch.profiler",
    "torch.random", "torch.sparse", "torch.types", "torch.utils.checkpoint", "torch.utils.hooks",
    "torch.version",
]  # fmt: skip
# What PyTorch's modules import or keep for themselves.
LEAKED = {
    "TYPE_CHECKING", "common_args", "get_swap_module_params_on_conversion", "is_opaque_reference_type",
    "is_traceable_wrapper_subclass", "multi_dim_common",
}  # fmt: skip
DEEP = {"amp", "autograd", "backends", "cuda", "nn", "optim", "utils"}


def public(path: str) -> list[str]:
    """The public names of a module or a class, sorted."""
    space = functools.reduce(getattr, path.split(".")[1:], torch)
    names = set(dir(space)) - (LEAKED if path != "torch" else set())
    return sorted(name for name in names if not name.startswith("_") and defined_in(path, getattr(space, name)))


def defined_in(path: str, value: Any) -> bool:
    """Whether `value` is defined in the namespace; exact for classes, approximate for functions and other values."""
    module = getattr(value, "__module__", None) or "torch"
    if inspect.ismodule(value) or module.split(".")[0] not in ("torch", "math", "builtins"):
        return False
    return path == "torch" or not inspect.isclass(value) or module.startswith(path)


def modules() -> list[str]:
    """The public modules of PyTorch, and those in the packages DEEP."""
    root = Path(torch.__path__[0])
    found = {path.with_suffix("").relative_to(root).parts for path in root.glob("*.py")}
    found |= {path.parent.relative_to(root).parts for path in root.glob("*/__init__.py")}
    found |= {path.with_suffix("").relative_to(root).parts for path in root.glob("*/*.py") if path.parent.name in DEEP}
    packages = {path.parent.relative_to(root).parts for path in root.glob("*/*/__init__.py")}
    found |= {parts for parts in packages if parts[0] in DEEP}
    found |= {path.with_suffix("").relative_to(root).parts for path in root.glob("nn/*/[a-z]*.py")}
    names = {".".join(["torch", *parts]) for parts in found}
    return sorted(name for name in names if not re.search(r"\._|testing", name))


def main() -> None:
    """Write the golden file."""
    found = {path: public(path) for path in NAMESPACES} | {"modules": modules()}
    rows = [f" {json.dumps(path)}: {json.dumps(names)}" for path, names in found.items()]
    version = json.dumps(torch.__version__.partition("+")[0])
    GOLDEN.write_text("{\n" + ",\n".join([f' "version": {version}', *rows]) + "\n}\n")


if __name__ == "__main__":
    main()
