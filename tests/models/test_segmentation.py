"""Segmentation: shapes of the answers, dilation, ASPP, gradients; and errors."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import models, ops, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError
from ampkit.core.policy import autocast
from ampkit.models.resnet import BasicBlock, Bottleneck, ResNet
from ampkit.models.segmentation import ASPP, FCNHead, Segmentation

RNG = np.random.default_rng(0)


def image(*shape):
    return tensor(RNG.standard_normal(shape).astype(np.float32))


def small(aux=False):
    """A Segmentation on a shallow ResNet."""
    backbone = ResNet(BasicBlock, (1, 1, 1, 1), 1, replace_stride_with_dilation=(False, True, True))
    del backbone.avgpool, backbone.fc
    return Segmentation(backbone, FCNHead(512, 3), FCNHead(256, 3) if aux else None)


def test_the_answer_has_the_size_of_the_image_and_every_parameter_a_gradient():
    model = small(aux=True)
    found = model(image(2, 3, 17, 20))
    assert {name: y.shape for name, y in found.items()} == {"out": (2, 3, 17, 20), "aux": (2, 3, 17, 20)}
    labels = tensor(RNG.integers(0, 3, (2, 17, 20)))
    (ops.cross_entropy(found["out"], labels) + 0.5 * ops.cross_entropy(found["aux"], labels)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert np.isfinite(parameter.grad.numpy()).all(), name
    assert list(small()(image(1, 3, 9, 9))) == ["out"]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_in_autocast_the_logits_are_float32_as_all_that_is_interpolated(dtype):
    with autocast(dtype=dtype):
        assert small().eval()(image(1, 3, 9, 9))["out"].dtype == dtypes.float32


def test_dilation_keeps_the_size_that_strides_would_halve():
    dilated = ResNet(BasicBlock, (1, 1, 1, 2), 1, replace_stride_with_dilation=(False, True, True))
    strided = ResNet(BasicBlock, (1, 1, 1, 2), 1)
    x = image(1, 3, 64, 64)
    assert [y.shape[-1] for y in strided.stages(x)] == [16, 8, 4, 2]
    assert [y.shape[-1] for y in dilated.stages(x)] == [16, 8, 8, 8]
    assert [block.conv1.dilation for block in dilated.layer4] == [(2, 2), (4, 4)]
    assert dilated.layer3[0].conv1.dilation == (1, 1)


def test_aspp_joins_four_fields_of_view_and_the_mean():
    module, x = ASPP(4, (1, 2), 3).eval(), image(2, 4, 6, 5)
    assert module(x).shape == (2, 3, 6, 5)
    assert module.project[0].weight.shape == (3, 12, 1, 1)
    mean = module.convs[-1](x).detach().numpy()
    assert (mean == mean[:, :, :1, :1]).all()


def test_a_wrong_count_of_classes_gives_one_clear_line():
    with pytest.raises(ArgumentError, match="FCNHead: needs num_classes as a positive integer, got 0"):
        models.fcn_resnet50(0)


def test_a_dilated_bottleneck_sets_its_3x3_apart():
    block = Bottleneck(4, 1, dilation=3)
    assert (block.conv2.dilation, block.conv2.padding, block.conv1.dilation) == ((3, 3), (3, 3), (1, 1))
