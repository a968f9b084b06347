"""Libraries of operators that are compiled for PyTorch's tensors: which of their operators ampkit has.

Such a library declares its operators by schemas, as text. Its code cannot run on ampkit's tensors; but those of its
operators that ampkit has, by the same schema, are ampkit's, with its gradients. All others raise as they are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ....ops import nms, roi_align
from . import schema as schemas
from .operators import operator


def _roi_align(input: Any, rois: Any, scale: float, rows: int, cols: int, ratio: int, aligned: bool) -> Any:
    return roi_align(input, rois, (rows, cols), scale, ratio, aligned)


def _recursive_filter(windows: Any, flipped: Any, padded: Any) -> Any:
    # An IIR filter of x [N, C, L] by coefficients [C, order], the last first, into zeros [N, C, L + order - 1].
    x, a, y = (tensor.detach().numpy() for tensor in (windows, flipped, padded))
    order = a.shape[1]
    for i in range(x.shape[2]):
        y[:, :, i + order - 1] = x[:, :, i] - (y[:, :, i : i + order] * a).sum(-1)
    padded.changed()
    return padded


# What ampkit has. The text of a library may end before that of the schema does.
KNOWN: dict[str, Callable[..., Any]] = {
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor": nms,
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor": _roi_align,
    "_lfilter_core_loop(Tensor input_signal_windows,Tensor a_coeff_flipped,Tensor(a!) padded_output_waveform) -> "
    "Tensor(a!)": _recursive_filter,
}
# What a library says of how it was compiled, which ampkit is not: by the type of the answer.
ANSWERS = {b"bool": False, b"int": -1, b"int?": None}
_DECLARED = re.compile(rb"::(\w{1,99}\(Tensor[^()\0]*)")
_DECLARED_ALONE = re.compile(rb"(?<=\0)(\w{1,99})(\((?:Tensor[^\0]{0,2000}|\) -> (bool|int\??)(?=\0)))")
_WORD = re.compile(rb"(?<=\0)\w{1,99}(?=\0)")
_SPACE = re.compile(rb"\w+$")


class Library(NamedTuple):
    """A library of PyTorch's stable ABI, whose schemas do not name their namespace: one of the words of its text."""

    words: frozenset[str]
    functions: dict[str, Callable[..., Any] | None]


_libraries: list[Library] = []


def load(path: Any) -> set[str]:
    """The namespaces of the operators that a library declares, those that ampkit has being defined from now on.

    Raises OSError for a file that is not there, or that declares no operator that ampkit has.
    """
    content = Path(path).read_bytes()
    declared, spaces = _declarations(content), set()
    names = sorted({space for space, _ in declared}, key=len)
    for longer, text in declared:
        # Texts may follow one another without an end, so that a name has letters of another one before it.
        space = next(name for name in names if longer.endswith(name))
        found = _known(text)
        if found is not None:
            _define(space, *found)
            spaces.add(space)
    for space in spaces:
        operator(f"{space}::_cuda_version").kernels[""] = lambda: -1  # of a library without kernels for a GPU
    functions = _alone(content)
    if any(functions.values()):
        words = frozenset(word.decode() for word in _WORD.findall(content))
        _libraries.append(Library(words, functions))
    elif not spaces:
        raise OSError(f"{path}: its operators are compiled for PyTorch's tensors, and ampkit has none of them")
    return spaces


def of_stable_abi(space: str, name: str) -> bool:
    """Whether a library that is loaded declares an operator by its name alone; it is defined where ampkit has it."""
    for library in _libraries:
        if space in library.words and name in library.functions:
            function = library.functions[name]
            schema = next((schema for schema in KNOWN if KNOWN[schema] is function), "")
            if function is not None:
                _define(space, schema or f"{name}()", function)
            return True
    return False


def _define(space: str, schema: str, function: Callable[..., Any]) -> None:
    found = operator(f"{space}::{schema.partition('(')[0]}")
    found.schema = schemas.parse(schema)._replace(name=found.name())
    found.kernels[""], found.differentiable = function, True


def _known(text: str) -> tuple[str, Callable[..., Any]] | None:
    """The schema and the function of a declared operator, where ampkit has it."""
    for schema, function in KNOWN.items():
        head, _, arguments = schema.partition("(")
        given, _, others = text.partition("(")
        common = min(len(arguments), len(others)) * 3 // 4
        if given == head and arguments[:common] == others[:common]:
            return schema, function
    return None


def _declarations(content: bytes) -> list[tuple[str, str]]:
    """The namespace and the schema of each operator whose first argument is a Tensor."""
    found = []
    for match in _DECLARED.finditer(content):
        space = _SPACE.search(content[max(0, match.start() - 99) : match.start()])
        if space is not None:
            found.append((space[0].decode(), match[1].decode(errors="replace")))
    return found


def _alone(content: bytes) -> dict[str, Callable[..., Any] | None]:
    """The function of each operator whose schema stands without a namespace; None where ampkit lacks it."""
    found: dict[str, Callable[..., Any] | None] = {}
    for match in _DECLARED_ALONE.finditer(content):
        name, arguments, answer = match.groups()
        if answer is not None:
            found[name.decode()] = partial(ANSWERS.get, answer)
        else:
            found[name.decode()] = KNOWN.get((name + arguments).decode(errors="replace"))
    return found
