"""Every layer that is called, differentiated and dropped is freed at once, without Python's collector."""

from __future__ import annotations

from functools import partial
from typing import Any

import garbage

import ampkit
from ampkit import nn, ops

ROWS, LINE, IMAGE, VOLUME, STEPS = (3, 4), (2, 4, 8), (2, 4, 6, 6), (2, 4, 4, 4, 4), (5, 2, 4)
OF_DIM = {1: LINE, 2: IMAGE, 3: VOLUME}


def called_with(kinds: str, arguments: tuple[Any, ...], *shapes: tuple[int, ...]) -> dict[str, Any]:
    """Layers, with their arguments and the shapes of what they are called with."""
    return dict.fromkeys(kinds.split(), (arguments, *shapes))


def in_dims(kinds: str, arguments: tuple[Any, ...], dims: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    return {f"{kind}{n}d": (arguments, OF_DIM[n]) for kind in kinds.split() for n in dims}


LAYERS: dict[str, Any] = {
    **called_with(
        "CELU Dropout AlphaDropout FeatureAlphaDropout ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity "
        "LeakyReLU LogSigmoid Flatten Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax2d Softplus Softshrink "
        "Softsign Tanh Tanhshrink",
        (),
        IMAGE,
    ),
    **called_with("Softmax Softmin LogSoftmax", (1,), ROWS),
    **in_dims("ZeroPad ReflectionPad ReplicationPad CircularPad", (1,)),
    **in_dims("AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool", (2,)),
    **in_dims("BatchNorm InstanceNorm", (4,)),
    **in_dims("Conv ConvTranspose", (4, 4, 3)),
    **in_dims("LazyConv LazyConvTranspose", (4, 3)),
    **in_dims("LazyBatchNorm LazyInstanceNorm Dropout", ()),
    **in_dims("ConstantPad", (1, 0.5)),
    **in_dims("LPPool", (2, 2)),
    **in_dims("FractionalMaxPool", (2, 2), (2, 3)),
    **called_with("ChannelShuffle PixelShuffle PixelUnshuffle Unfold LocalResponseNorm CrossMapLRN2d", (2,), IMAGE),
    **called_with("UpsamplingNearest2d UpsamplingBilinear2d Upsample", (8,), IMAGE),
    **called_with("LayerNorm RMSNorm", (4,), ROWS),
    **called_with("CosineSimilarity PairwiseDistance", (), ROWS, ROWS),
    **called_with("RNN LSTM GRU", (4, 3), STEPS),
    **called_with("RNNCell LSTMCell GRUCell Linear", (4, 3), ROWS),
    "Threshold": ((0.1, 2), ROWS),
    "Fold": (((3, 3), 2), (2, 4, 4)),
    "Unflatten": ((1, (2, 2)), ROWS),
    "GroupNorm": ((2, 4), IMAGE),
    "LazyLinear": ((3,), ROWS),
    "Bilinear": ((4, 4, 2), ROWS, ROWS),
    "MultiheadAttention": ((4, 2), STEPS, STEPS, STEPS),
    "Transformer": ((4, 2, 1, 1, 8), STEPS, STEPS),
    "TransformerEncoderLayer": ((4, 2, 8), STEPS),
    "TransformerDecoderLayer": ((4, 2, 8), STEPS, STEPS),
    **called_with(
        "MSELoss L1Loss SmoothL1Loss HuberLoss BCEWithLogitsLoss KLDivLoss PoissonNLLLoss SoftMarginLoss "
        "HingeEmbeddingLoss MultiLabelSoftMarginLoss CrossEntropyLoss",
        (),
        ROWS,
        ROWS,
    ),
    **called_with("TripletMarginLoss TripletMarginWithDistanceLoss MarginRankingLoss", (), ROWS, ROWS, ROWS),
}

LABELS = [1, 0, 3]
CALLS: dict[str, Any] = {  # layers that are called with something else
    "BCELoss": lambda x: nn.BCELoss()(x.sigmoid(), x.detach().sigmoid()),
    "GaussianNLLLoss": lambda x: nn.GaussianNLLLoss()(x, x.detach(), x.exp()),
    "CosineEmbeddingLoss": lambda x: nn.CosineEmbeddingLoss()(x, x * 2, ampkit.ones(3)),
    "NLLLoss": lambda x: nn.NLLLoss()(x, ampkit.tensor(LABELS)),
    "LinearCrossEntropyLoss": lambda x: nn.LinearCrossEntropyLoss(4, 5)(x, ampkit.tensor(LABELS)),
    "AdaptiveLogSoftmaxWithLoss": lambda x: nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2])(x, ampkit.tensor(LABELS)).loss,
    "MultiMarginLoss": lambda x: nn.MultiMarginLoss()(x, ampkit.tensor(LABELS)),
    "MultiLabelMarginLoss": lambda x: nn.MultiLabelMarginLoss()(x, ampkit.tensor([[1, 0, -1, 2]] * 3)),
    "CTCLoss": lambda x: nn.CTCLoss()(x.log_softmax(-1)[:, None], ampkit.tensor([[1, 2]]), [3], [2]),
    "Embedding": lambda x: nn.Embedding(5, 4)(ampkit.tensor(LABELS)) * x,
    "EmbeddingBag": lambda x: nn.EmbeddingBag(5, 4)(ampkit.tensor([LABELS] * 3)) * x,
    "MaxUnpool1d": lambda x: nn.MaxUnpool1d(2)(*ops.max_pool1d(x[None], 2, return_indices=True)),
    "MaxUnpool2d": lambda x: nn.MaxUnpool2d(2)(*ops.max_pool2d(x[None, None], 2, return_indices=True)),
    "MaxUnpool3d": lambda x: nn.MaxUnpool3d(1)(*ops.max_pool3d(x[None, None, None], 1, return_indices=True)),
    "Sequential": lambda x: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout())(x),
    "ModuleList": lambda x: nn.ModuleList([nn.Linear(4, 4)])[0](x),
    "ModuleDict": lambda x: nn.ModuleDict({"a": nn.Linear(4, 4)})["a"](x),
    "ParameterList": lambda x: nn.ParameterList([nn.Parameter(ampkit.ones(4))])[0] * x,
    "ParameterDict": lambda x: nn.ParameterDict({"a": nn.Parameter(ampkit.ones(4))})["a"] * x,
    "TransformerEncoder": lambda x: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2)(x[:, None]),
    "TransformerDecoder": lambda x: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 2)(*[x[:, None]] * 2),
}  # fmt: skip
NOT_CALLED = {"Module", "RNNBase", "RNNCellBase", "SyncBatchNorm"}


def run(kind: str) -> None:
    arguments, *shapes = LAYERS[kind]
    layer = getattr(nn, kind)(*arguments)
    inputs = [ampkit.rand(*shape).requires_grad_() for shape in shapes]
    with ampkit.autocast(dtype=ampkit.bfloat16):
        made = layer(*inputs)
    made = made[0] if isinstance(made, tuple) else made
    made.float().sum().backward()
    layer.load_state_dict(layer.state_dict())
    layer.zero_grad()
    str(layer.train().eval())


def call(function: Any) -> None:
    function(ampkit.rand(*ROWS).requires_grad_()).sum().backward()


def test_every_layer_is_freed_when_it_is_dropped():
    works = {kind: partial(run, kind) for kind in LAYERS} | {kind: partial(call, CALLS[kind]) for kind in CALLS}
    kinds = {name for name, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}
    assert kinds == works.keys() | NOT_CALLED
    assert not garbage.left_behind(works)
