"""A batch norm as part of the layer before it."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import StateError
from ampkit.nn import utils
from ampkit.testing import assert_close


def norm(features, kind):
    made = kind(features)
    for tensor in (made.weight, made.bias, made.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(made.running_var, 0.5, 2.0)
    return made.eval()


def fuse_transposed(conv, bn):
    return utils.fuse_conv_bn_eval(conv, bn, transpose=True)


LAYERS = [
    (lambda: nn.Conv2d(3, 4, 3), nn.BatchNorm2d, utils.fuse_conv_bn_eval, (2, 3, 5, 5)),
    (lambda: nn.ConvTranspose1d(3, 4, 3, bias=False), nn.BatchNorm1d, fuse_transposed, (2, 3, 5)),
    (lambda: nn.Linear(3, 4), nn.BatchNorm1d, utils.fuse_linear_bn_eval, (6, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "fuse", "shape"), LAYERS, ids=["conv", "transposed", "linear"])
def test_one_layer_does_what_both_did(make, kind, fuse, shape):
    layer, behind, x = make().eval(), norm(4, kind), ops.randn(*shape)
    fused = fuse(layer, behind)
    assert type(fused) is type(layer) and fused is not layer
    assert_close(fused(x), behind(layer(x)), (1e-4, 1e-5))
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert fuse(layer, behind).weight.tolist() == fused.weight.tolist()


def test_what_is_in_training_or_has_no_statistics_is_refused():
    layer = nn.Linear(3, 4).eval()
    with pytest.raises(StateError, match="needs both modules in eval mode, got one in train mode"):
        utils.fuse_linear_bn_eval(layer, nn.BatchNorm1d(4))
    with pytest.raises(StateError, match="needs a norm with running statistics"):
        utils.fuse_linear_bn_eval(layer, nn.BatchNorm1d(4, track_running_stats=False).eval())
