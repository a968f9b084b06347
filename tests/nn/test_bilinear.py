"""Bilinear forms against einsum, and ParameterDict."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32, int64
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.policy import autocast
from ampkit.testing import assert_close

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_puts_a_matrix_between_its_inputs_for_each_output(bias):
    layer, a, b = nn.Bilinear(3, 4, 2, bias).double(), RNG.normal(size=(2, 5, 3)), RNG.normal(size=(2, 5, 4))
    assert list(layer.state_dict()) == ["weight", "bias"][: 1 + bias]
    weight = layer.weight.numpy(force=True)
    assert weight.shape == (2, 3, 4) and abs(weight).max() <= 3**-0.5
    want = np.einsum("...i,oij,...j->...o", a, weight, b) + (layer.bias.numpy(force=True) if bias else 0)
    assert_close(layer(tensor(a), tensor(b)), want)


def test_it_is_computed_in_the_widest_dtype_among_its_operands():
    layer, a, b = nn.Bilinear(3, 4, 2), *(tensor(RNG.normal(size=(5, n)).astype(float16)) for n in (3, 4))
    with autocast(dtype=float16):
        assert layer(a, b).dtype == float32
        assert layer.half()(a, b).dtype == float16


@pytest.mark.parametrize(("shapes", "line"), [
    ([(5, 3), (5, 2), (2, 3, 4)], r"needs input1 \[..., 3\] and input2 \[..., 4\] for weight \[2, 3, 4\]"),
    ([(5, 3), (6, 4), (2, 3, 4)], r"got input1 \[5, 3\] and input2 \[6, 4\]"),
    ([(5, 3), (5, 4), (3, 4)], r"needs weight \[O, I, J\], got weight \[3, 4\]"),
    ([(5, 3), (5, 4), (2, 3, 4), (3,)], r"needs bias \[2\], got bias \[3\]"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(shapes, line):
    with pytest.raises(ShapeError, match=line):
        ops.bilinear(*(ampkit.ones(s) for s in shapes))


def test_a_parameter_dict_is_a_mapping_whose_entries_are_trained():
    held = nn.ParameterDict({"a": nn.Parameter(ampkit.ones(2)), "b": ampkit.zeros(3)})
    assert list(held) == list(held.state_dict()) == ["a", "b"]
    assert all(isinstance(p, nn.Parameter) for p in held.values())
    assert [p.shape for p in held.parameters()] == [(2,), (3,)]
    held.update([("c", ampkit.ones(1, dtype=bfloat16))])
    assert "c" in held and "d" not in held and len(held) == 3
    assert held.pop("a").shape == (2,)
    assert held.get("a") is None and held.setdefault("a", ampkit.ones(4)).shape == (4,)
    assert held.copy()["b"] is held["b"]
    assert held == held and held != held.copy() and len({held, held}) == 1
    assert "(c): Parameter [1] bfloat16" in repr(held)
    model = nn.Sequential(held)
    assert [name for name, _ in model.named_parameters()] == ["0.b", "0.c", "0.a"]
    held.clear()
    assert not held.state_dict()


def test_a_parameter_dict_says_what_it_does_not_hold():
    held = nn.ParameterDict({"a": ampkit.ones(2)})
    with pytest.raises(ArgumentError, match="ParameterDict: needs one of a, got 'b'"):
        held["b"]
    with pytest.raises(DTypeError, match="ParameterDict: needs a Parameter or a Tensor as 'b', got a float"):
        held["b"] = 1.0
    with pytest.raises(ArgumentError, match=r"needs a name without a dot, got 'b\.c'"):
        held["b.c"] = ampkit.ones(2)


def test_whole_numbers_give_whole_numbers():
    out = ops.bilinear(tensor([1, 2]), tensor([3, 4]), tensor([[[1, 0], [0, 1]]]), tensor([5]))
    assert (out.dtype, out.tolist()) == (int64, [16])
