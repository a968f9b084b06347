"""Weights of GPT-2 in Hugging Face's layout."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import models, nn, tensor
from ampkit.base.errors import StateError

SIZES = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 4}
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def hugging_face(model):
    """The state of `model` as GPT2LMHeadModel would save it."""
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    state = {name: value.T if name.endswith(CONV1D) else value for name, value in state.items()}
    masks = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 6, 6), np.uint8)) for i in range(2)}
    return state | masks | {"transformer.h.0.attn.masked_bias": np.float32(-1e4)}


def without_prefix(state):
    """As GPT2Model saves it, and as the files on the hub have it."""
    return {name.removeprefix("transformer."): value for name, value in state.items() if name != "lm_head.weight"}


@pytest.mark.parametrize("form", [lambda state: state, without_prefix])
def test_a_converted_state_gives_the_logits_of_the_model_that_it_came_from(form):
    source, target, idx = models.GPT(**SIZES), models.GPT(**SIZES), tensor([[1, 2, 3]])
    target.load_state_dict(models.from_hugging_face_gpt2(form(hugging_face(source))))
    assert target(idx).tolist() == source(idx).tolist()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("form", [lambda state: state, without_prefix])
def test_a_state_in_that_layout_is_refused_whole_with_the_function_that_converts_it(form, strict):
    model = models.GPT(**SIZES)
    before = model.transformer.h[0].attn.c_proj.weight.tolist()
    with pytest.raises(StateError) as caught:
        model.load_state_dict(form(hugging_face(models.GPT(**SIZES))), strict=strict)
    needs, cure = str(caught.value).splitlines()
    assert needs.endswith("needs weights as Linear keeps them, [out, in], got those of Hugging Face's GPT-2, [in, out]")
    assert cure == "help: model.load_state_dict(ampkit.models.from_hugging_face_gpt2(state_dict))"
    assert model.transformer.h[0].attn.c_proj.weight.tolist() == before


def test_it_is_refused_within_another_model_too():
    model = nn.Sequential(models.GPT(**SIZES))
    with pytest.raises(StateError, match="Hugging Face's GPT-2"):
        model.load_state_dict({f"0.{name}": value for name, value in hugging_face(model[0]).items()})


def test_a_state_in_linears_layout_is_not_converted():
    with pytest.raises(StateError, match="from_hugging_face_gpt2: needs the state of a Hugging Face GPT-2"):
        models.from_hugging_face_gpt2(models.GPT(**SIZES).state_dict())
