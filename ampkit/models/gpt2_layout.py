"""Hugging Face's weights of GPT-2: their layers `Conv1D` keep a weight as [in, out], where Linear keeps [out, in].

One of a block's four weights is square and fits in both layouts, so its shape does not show the mistake. That of
`c_attn`, whose output is three times as wide as its input, does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..base.errors import DTypeError, StateError
from ..core.arguments import shown

_CONV1D = re.compile(r"(.*\.)?h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
_MASK = re.compile(r"(.*\.)?h\.\d+\.attn\.(masked_)?bias")  # constants that older versions saved
_CURE = "model.load_state_dict(ampkit.models.from_hugging_face_gpt2(state_dict))"


def from_hugging_face_gpt2(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state of `GPT` from one of Hugging Face's GPT2LMHeadModel or GPT2Model: {name: tensor} -> {name: tensor}.

    The weights of Conv1D layers [in, out] are transposed to Linear's layout [out, in], attention masks are left out,
    and names without it get the prefix `transformer.`. Raises StateError for a state that is not in that layout.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
        raise DTypeError("from_hugging_face_gpt2", "a dict of tensors by name", shown(state_dict))
    if not is_hugging_face(state_dict):
        raise StateError("from_hugging_face_gpt2", "the state of a Hugging Face GPT-2", "another one")
    whole = any(name.startswith("transformer.") for name in state_dict)
    found = {name: value for name, value in state_dict.items() if not _MASK.fullmatch(name)}
    return {
        name if whole or name == "lm_head.weight" else f"transformer.{name}": (
            value.T if _CONV1D.fullmatch(name) else value
        )
        for name, value in found.items()
    }


def is_hugging_face(state_dict: Mapping[str, Any]) -> bool:
    """Whether the weights of a state are in Hugging Face's layout."""
    shapes = [_shape(value) for name, value in state_dict.items() if re.search(r"h\.\d+\.attn\.c_attn\.weight$", name)]
    return any(len(shape) == 2 and shape[1] == 3 * shape[0] for shape in shapes)


def need_linear_layout(where: str, state_dict: Mapping[str, Any]) -> None:
    """Raise StateError for weights in Hugging Face's layout, which would fit in part."""
    if is_hugging_face(state_dict):
        needs, got = "weights as Linear keeps them, [out, in]", "those of Hugging Face's GPT-2, [in, out]"
        raise StateError(where, needs, got, _CURE)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))
