"""Norms by rows: the same bits however the rows are divided."""

from __future__ import annotations

import math

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import nn, optim
from ampkit.distributed import fully_shard
from ampkit.optim import clip

SHAPES = [(7, 3), (5,), (1, 70_001), (300, 260), (0, 4), (6, 2, 3)]


def with_gradients(group=None, shapes=SHAPES):
    draw = np.random.default_rng(0)
    model = nn.ParameterList([nn.Parameter(ampkit.zeros(*shape)) for shape in shapes])
    gradients = [draw.standard_normal(shape, np.float32) * 10.0 ** draw.integers(-9, 9) for shape in shapes]
    parameters = list(model.parameters())
    if group is not None:
        fully_shard(model, mesh=group)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        own = gradient if parameter._sharding is None else parameter._sharding.part_of(gradient)
        parameter.accumulate(ampkit.tensor(own).array)
        parameter._norm_by_rows = True
    return parameters, np.concatenate([gradient.reshape(-1) for gradient in gradients]).astype(np.float64)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_that_of_all_gradients_as_one_vector(order):
    parameters, values = with_gradients()
    norm = optim.clip_grad_norm_(parameters, math.inf, order)
    assert norm.item() == pytest.approx(np.linalg.norm(values, order), rel=1e-6)
    parameters, values = with_gradients(shapes=[(0,)])
    assert optim.clip_grad_norm_(parameters, math.inf, order).item() == 0


@pytest.mark.no_gpu
@pytest.mark.parametrize("order", [2.0, math.inf])
def test_ranks_that_share_rows_out_have_the_same_bits(order, monkeypatch):
    found = []
    root = clip._root
    monkeypatch.setattr(clip, "_root", lambda total, *rest: (found.append(total.item()), root(total, *rest))[1])
    optim.clip_grad_norm_(with_gradients()[0], 1.0, order)
    for size in (1, 2, 3, 4, 8):
        on_ranks(size, lambda group: optim.clip_grad_norm_(with_gradients(group)[0], 1.0, order))
    assert set(found) == {found[0]} and len(found) == 19
