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
_DECLARED = re.compile(rb"(\w+)::(\w+\(Tensor[^()\0]*)")


def load(path: Any) -> set[str]:
    """The namespaces of the operators that a library declares, those that ampkit has being defined from now on.

    Raises OSError for a file that is not there, or that declares no operator that ampkit has.
    """
    spaces = set()
    declarations = [(space.decode(), text.decode()) for space, text in _DECLARED.findall(Path(path).read_bytes())]
    names = sorted({space for space, _ in declarations}, key=len)
    for given_space, text in declarations:
        # Texts may follow one another without an end, so that a name has letters of another one before it.
        space = next(name for name in names if given_space.endswith(name))
        for schema, function in KNOWN.items():
            head, _, arguments = schema.partition("(")
            given, _, declared = text.partition("(")
            common = min(len(arguments), len(declared)) * 3 // 4
            if given == head and arguments[:common] == declared[:common]:
                found = operator(f"{space}::{head}")
                found.schema = schemas.parse(schema)._replace(name=found.name())
                found.kernels[""], found.differentiable = function, True
                spaces.add(space)
    if not spaces:
        raise OSError(f"{path}: its operators are compiled for PyTorch's tensors, and ampkit has none of them")
    for space in spaces:
        operator(f"{space}::_cuda_version").kernels[""] = lambda: -1  # of a library without kernels for a GPU
    return spaces
