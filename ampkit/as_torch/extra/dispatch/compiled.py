"""Libraries of operators that are compiled for PyTorch's tensors: which of their operators ampkit has.

Such a library declares its operators by schemas, as text. Its code cannot run on ampkit's tensors; but those of its
operators that ampkit has, by the same schema, are ampkit's, with its gradients. All others raise as they are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....ops import nms, roi_align
from . import schema as schemas
from .operators import operator


def _roi_align(input: Any, rois: Any, scale: float, rows: int, cols: int, ratio: int, aligned: bool) -> Any:
    return roi_align(input, rois, (rows, cols), scale, ratio, aligned)


# What ampkit has. The text of a library may end before that of the schema does.
KNOWN: dict[str, Callable[..., Any]] = {
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor": nms,
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor": _roi_align,
}
_DECLARED = re.compile(rb"::(\w{1,99}\(Tensor[^()\0]*)")
_SPACE = re.compile(rb"\w+$")


def load(path: Any) -> set[str]:
    """The namespaces of the operators that a library declares, those that ampkit has being defined from now on.

    Raises OSError for a file that is not there, or that declares no operator that ampkit has.
    """
    declared, spaces = _declarations(Path(path).read_bytes()), set()
    names = sorted({space for space, _ in declared}, key=len)
    for longer, text in declared:
        # Texts may follow one another without an end, so that a name has letters of another one before it.
        space = next(name for name in names if longer.endswith(name))
        for schema, function in KNOWN.items():
            head, _, arguments = schema.partition("(")
            given, _, others = text.partition("(")
            common = min(len(arguments), len(others)) * 3 // 4
            if given == head and arguments[:common] == others[:common]:
                found = operator(f"{space}::{head}")
                found.schema = schemas.parse(schema)._replace(name=found.name())
                found.kernels[""], found.differentiable = function, True
                spaces.add(space)
    if not spaces:
        raise OSError(f"{path}: its operators are compiled for PyTorch's tensors, and ampkit has none of them")
    for space in spaces:
        operator(f"{space}::_cuda_version").kernels[""] = lambda: -1  # of a library without kernels for a GPU
    return spaces


def _declarations(content: bytes) -> list[tuple[str, str]]:
    """The namespace and the schema of each operator whose first argument is a Tensor."""
    found = []
    for match in _DECLARED.finditer(content):
        space = _SPACE.search(content[max(0, match.start() - 99) : match.start()])
        if space is not None:
            found.append((space[0].decode(), match[1].decode(errors="replace")))
    return found
