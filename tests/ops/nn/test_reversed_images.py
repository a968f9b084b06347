"""Norms and losses of images whose axes run backward in memory are those of a copy that runs forward."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, ops

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((32, 6, 16, 16)).astype(np.float32)
SCALES = [RNG.standard_normal(6).astype(np.float32) for _ in range(2)]
REVERSED = {
    "rows and columns": np.s_[:, :, ::-1, ::-1],
    "all but the batch": np.s_[:, ::-1, ::-1, ::-1],
    "all": np.s_[::-1, ::-1, ::-1, ::-1],
    "channels": np.s_[:, ::-1],
}
OPS = {
    "batch_norm": lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True),
    "batch_norm_relu": lambda x, w, b: ops.batch_norm_relu(x, None, None, w, b, training=True),
    "instance_norm": lambda x, w, b: ops.instance_norm(x, None, None, w, b),
    "group_norm": lambda x, w, b: ops.group_norm(x, 3, w, b),
    "layer_norm": lambda x, w, b: ops.layer_norm(x, (16,)),
    "softmax": lambda x, w, b: ops.softmax(x, 1),
    "cross_entropy": lambda x, w, b: ops.cross_entropy(x, ops.zeros(32, 16, 16, dtype="int64"), reduction="none"),
    "gelu": lambda x, w, b: ops.gelu(x),
}


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("reversal", REVERSED)
@pytest.mark.parametrize("name", OPS)
def test_the_direction_of_axes_in_memory_changes_no_result(name, reversal, dtype):
    backward = IMAGES.astype(dtype)[REVERSED[reversal]]
    answers = []
    for images in (backward, backward.copy()):
        x, w, b = (Tensor(array, requires_grad=True) for array in (images, *(s.copy() for s in SCALES)))
        out = OPS[name](x, w, b)
        (out**3).sum().backward()  # of squares, gradients of norms cancel to nothing
        answers.append([out, x.grad, w.grad, b.grad])
    tolerance = 1e-4 if dtype == ampkit.float32 else 2e-2
    for got, want in zip(*answers, strict=True):
        if want is not None:
            got, want = (a.detach().float().numpy() for a in (got, want))
            np.testing.assert_allclose(got, want, tolerance, tolerance * np.abs(want).max())
