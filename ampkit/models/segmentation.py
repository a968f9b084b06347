"""Segmentation: FCN and DeepLabV3 on a dilated ResNet-50, with torchvision's parameter names.

Long, Shelhamer, Darrell 2014, arXiv:1411.4038, section 4; Chen et al. 2017, arXiv:1706.05587, section 3.3.
"""

from __future__ import annotations

from typing import Any

from .. import nn, ops
from ..base.limits import Classes, Factor, Size
from ..base.registry import register_model
from ..core.tensor import Tensor
from ..nn.factory import check_sizes
from .resnet import Bottleneck, ResNet, deep
from .weights import Weights, started


def _active(before: int, after: int, kernel: int = 1, dilation: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, padding=kernel // 2 * dilation, dilation=dilation, bias=False)
    return [conv, nn.BatchNorm2d(after), nn.ReLU()]


class FCNHead(nn.Sequential):
    """A 3x3 convolution to a quarter of the channels and a 1x1 to the classes: [N, before, H, W] -> [N, classes, H, W].

    Between them are batch norm, ReLU and dropout of 0.1.
    """

    def __init__(self, before: int, classes: int):
        width = before // 4
        super().__init__(*_active(before, width, 3), nn.Dropout(0.1), nn.Conv2d(width, classes, 1))


class ASPPPooling(nn.Sequential):
    """Mean over the image, 1x1 convolution, expanded to every pixel: [N, before, H, W] -> [N, after, H, W]."""

    def __init__(self, before: int, after: int):
        super().__init__(nn.AdaptiveAvgPool2d(1), *_active(before, after))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).expand(-1, -1, *x.shape[-2:])


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: [N, before, H, W] -> [N, after, H, W]. Chen et al., figure 5.

    A 1x1 convolution, 3x3 convolutions with the dilations `rates`, and the mean over the image, concatenated; then a
    1x1 convolution with batch norm, ReLU and dropout of 0.5.
    """

    def __init__(self, before: int, rates: tuple[int, ...] = (12, 24, 36), after: int = 256):
        super().__init__()
        self.convs = nn.ModuleList([nn.Sequential(*_active(before, after))])
        self.convs.extend(nn.Sequential(*_active(before, after, 3, rate)) for rate in rates)
        self.convs.append(ASPPPooling(before, after))
        self.project = nn.Sequential(*_active(len(self.convs) * after, after), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(ops.cat([conv(x) for conv in self.convs], 1))


class DeepLabHead(nn.Sequential):
    """ASPP, a 3x3 convolution, and a 1x1 to the classes: [N, before, H, W] -> [N, classes, H, W]."""

    def __init__(self, before: int, classes: int):
        super().__init__(ASPP(before), *_active(256, 256, 3), nn.Conv2d(256, classes, 1))


class Segmentation(nn.Module):
    """A segmentation network: [N, in_channels, H, W] -> {"out": logits [N, num_classes, H, W]}.

    backbone: a ResNet. classifier: the head on its last stage. aux_classifier: an optional head on its third stage,
    whose logits are "aux", of the same shape. All logits are resized bilinearly to the image.
    """

    def __init__(self, backbone: ResNet, classifier: nn.Module, aux_classifier: nn.Module | None = None):
        super().__init__()
        self.backbone, self.classifier, self.aux_classifier = backbone, classifier, aux_classifier

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        size = tuple(x.shape[-2:])
        *_, third, last = self.backbone.stages(x)
        found = {"out": _resized(self.classifier(last), size)}
        if self.aux_classifier is not None:
            found["aux"] = _resized(self.aux_classifier(third), size)
        return found


def _resized(logits: Tensor, size: tuple[int, ...]) -> Tensor:
    return ops.interpolate(logits, size, mode="bilinear", align_corners=False)


def _on_resnet50(
    head: Any, num_classes: int, aux_loss: bool, width: int, depth: float, in_channels: int
) -> Segmentation:
    check_sizes(head.__name__, num_classes=num_classes)
    layers, dilated = deep((3, 4, 6, 3), depth), (False, True, True)
    backbone = ResNet(Bottleneck, layers, 1, in_channels=in_channels, replace_stride_with_dilation=dilated, width=width)
    del backbone.avgpool, backbone.fc
    auxiliary = FCNHead(16 * width, num_classes) if aux_loss else None
    return Segmentation(backbone, head(32 * width, num_classes), auxiliary)


def fcn_resnet50(
    num_classes: Classes = 21,
    aux_loss: bool = False,
    width: Size = 64,
    depth: Factor = 1.0,
    in_channels: Size = 3,
    weights: Weights | None = None,
) -> Segmentation:
    """FCN on ResNet-50: 33 million parameters, 35 million with aux_loss; see Segmentation.

    aux_loss: a second output, from the third stage, whose loss has weight 0.5. width: channels of the first stage.
    depth: a factor on the blocks per stage. weights: a file, folder or hub name to start from, of torchvision's
    layout, or of a resnet50 for the backbone; see `load_weights`.
    """
    return started(_on_resnet50(FCNHead, num_classes, aux_loss, width, depth, in_channels), weights)


def deeplabv3_resnet50(
    num_classes: Classes = 21,
    aux_loss: bool = False,
    width: Size = 64,
    depth: Factor = 1.0,
    in_channels: Size = 3,
    weights: Weights | None = None,
) -> Segmentation:
    """DeepLabV3 on ResNet-50: 40 million parameters, 42 million with aux_loss; see fcn_resnet50."""
    return started(_on_resnet50(DeepLabHead, num_classes, aux_loss, width, depth, in_channels), weights)


register_model(fcn_resnet50, "pixel labels")
register_model(deeplabv3_resnet50, "pixel labels")
