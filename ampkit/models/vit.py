"""Vision Transformer, with torchvision's parameter names.

Dosovitskiy et al. 2020, arXiv:2010.11929, section 3.1 and table 1; the two smaller sizes are those of Touvron et al.
2020, arXiv:2012.12877, table 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from .. import nn, ops
from ..base.errors import ArgumentError, ShapeError
from ..base.limits import Classes, Layers, Positive, Probability, Size
from ..base.registry import Fault, divides, register_model, square_images
from ..core.tensor import Tensor
from ..nn.factory import check_sizes, new_parameter
from ..nn.modules.fused import add_norm
from ..ops.named import named
from .weights import Weights, config_of, started


class EncoderBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): [N, L, hidden_dim] -> [N, L, hidden_dim]. Equations 2 and 3."""

    def __init__(
        self, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float, eps: float
    ):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_dim, eps=eps)
        self.self_attention = nn.MultiheadAttention(hidden_dim, num_heads, attention_dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(hidden_dim, eps=eps)
        wide, back = nn.Linear(hidden_dim, mlp_dim), nn.Linear(mlp_dim, hidden_dim)
        self.mlp = nn.Sequential(wide, nn.GELU(), nn.Dropout(dropout), back, nn.Dropout(dropout))

    def forward(self, input: Tensor) -> Tensor:
        x = self.ln_1(input)
        x, _ = self.self_attention(x, x, x, need_weights=False)
        x, normed = add_norm(input, x, self.dropout, self.ln_2, self.mlp, self.mlp[0])
        return x + self.mlp(normed)


class Encoder(nn.Module):
    """Position embeddings, the blocks and a final norm: [N, L, hidden_dim] -> [N, L, hidden_dim]. Equations 1-4."""

    def __init__(
        self,
        seq_length: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float,
        attention_dropout: float,
        eps: float,
    ):
        super().__init__()
        self.pos_embedding = new_parameter((1, seq_length, hidden_dim))
        self.dropout = nn.Dropout(dropout)
        options = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout, eps)
        self.layers = nn.Sequential({f"encoder_layer_{i}": EncoderBlock(*options) for i in range(num_layers)})
        self.ln = nn.LayerNorm(hidden_dim, eps=eps)

    def forward(self, input: Tensor) -> Tensor:
        return self.ln(self.layers(self.dropout(input + self.pos_embedding)))


class VisionTransformer(nn.Module):
    """An encoder over patches of the image and a class token: [N, in_channels, S, S] -> [N, num_classes].

    image_size: S, which patch_size divides; there are (S / patch_size)^2 + 1 positions. representation_size: the width
    of a hidden layer with tanh before the head, None for no such layer. layer_norm_eps: added to the variance in the
    norms; 1e-12 in Hugging Face's ViT. The patch projection is initialized truncated
    normal by fan-in, position embeddings from N(0, 0.02^2), the Linear of the blocks xavier-uniform with biases near
    zero, the class token and the head with zeros, so the initial loss is ln(num_classes).
    Raises ArgumentError unless patch_size divides image_size and num_heads divides hidden_dim, ShapeError for images of
    another size.
    """

    tensor_parallel_plan: ClassVar = {  # see distributed.tensor.parallelize_module
        "encoder.layers.*.self_attention": "colwise",
        "encoder.layers.*.mlp.0": "colwise",
        "encoder.layers.*.mlp.3": "rowwise",
    }
    pipeline_layers: ClassVar = "encoder.layers"  # see distributed.pipelining.ModelStage

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        representation_size: int | None = None,
        in_channels: int = 3,
        layer_norm_eps: float = 1e-6,
    ):
        super().__init__()
        where = "VisionTransformer"
        check_sizes(where, image_size=image_size, patch_size=patch_size, num_layers=num_layers, num_heads=num_heads)
        check_sizes(where, hidden_dim=hidden_dim, mlp_dim=mlp_dim, num_classes=num_classes, in_channels=in_channels)
        if image_size % patch_size:
            raise ArgumentError(where, "image_size that patch_size divides", f"{image_size} and {patch_size}")
        if hidden_dim % num_heads:
            raise ArgumentError(where, "hidden_dim that num_heads divides", f"{hidden_dim} and {num_heads}")
        self.image_size, self.in_channels = image_size, in_channels
        self.class_token = new_parameter((1, 1, hidden_dim))
        self.conv_proj = nn.Conv2d(in_channels, hidden_dim, patch_size, patch_size)
        length = (image_size // patch_size) ** 2 + 1
        sizes = (length, num_layers, num_heads, hidden_dim, mlp_dim)
        self.encoder = Encoder(*sizes, dropout, attention_dropout, layer_norm_eps)
        self.heads = nn.Sequential(_head(hidden_dim, representation_size, num_classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all weights but those of the norms."""
        nn.init.zeros_(self.class_token)
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / nn.init.fan_in(self.conv_proj.weight)))
        nn.init.zeros_(self.conv_proj.bias)
        nn.init.normal_(self.encoder.pos_embedding, std=0.02)
        for block in self.encoder.layers:
            block.self_attention.reset_parameters()
            for linear in (block.mlp[0], block.mlp[3]):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.normal_(linear.bias, std=1e-6)
        for name, layer in self.heads.named_children():
            if name == "pre_logits":
                nn.init.trunc_normal_(layer.weight, std=math.sqrt(1 / nn.init.fan_in(layer.weight)))
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.heads.head.weight)
        nn.init.zeros_(self.heads.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.heads(self.encoder(self._tokens(x))[:, 0])

    def _tokens(self, x: Tensor) -> Tensor:
        wanted = (self.in_channels, self.image_size, self.image_size)
        if x.ndim != 4 or tuple(x.shape[1:]) != wanted:
            raise ShapeError("VisionTransformer", f"images [N, {', '.join(map(str, wanted))}]", f"{list(x.shape)}")
        patches = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        return ops.cat([self.class_token.expand(x.shape[0], -1, -1), patches], 1)

    def _before_layers(self, x: Tensor) -> Any:
        return self.encoder.dropout(self._tokens(x) + self.encoder.pos_embedding)

    def _after_layers(self, x: Tensor) -> Any:
        return self.heads(self.encoder.ln(x)[:, 0])


def _head(hidden_dim: int, representation_size: int | None, num_classes: int) -> dict[str, nn.Module]:
    if representation_size is None:
        return {"head": nn.Linear(hidden_dim, num_classes)}
    check_sizes("VisionTransformer", representation_size=representation_size)
    before = {"pre_logits": nn.Linear(hidden_dim, representation_size), "act": nn.Tanh()}
    return {**before, "head": nn.Linear(representation_size, num_classes)}


def vit(
    image_size: Size = 32,
    patch_size: Size = 4,
    num_layers: Layers = 6,
    num_heads: Size = 4,
    hidden_dim: Size = 128,
    mlp_dim: Size = 256,
    num_classes: Classes = 10,
    *,
    dropout: Probability = 0.0,
    attention_dropout: Probability = 0.0,
    representation_size: Size | None = None,
    in_channels: Size = 3,
    layer_norm_eps: Positive = 1e-6,
    weights: Weights | None = None,
) -> VisionTransformer:
    """A VisionTransformer for small images: 0.8 million parameters; see VisionTransformer.

    patch_size: the side of a patch in pixels. num_layers: encoder blocks. num_heads: of the attention in each.
    hidden_dim: the width of a token. mlp_dim: the width of the hidden layer of a block. dropout: the probability of a
    zero after each layer. attention_dropout: the same of the attention weights. representation_size: the width of a
    hidden layer before the head. layer_norm_eps: added to the variance in the norms; Hugging Face's ViT needs 1e-12.
    weights: a file, folder or hub name to start from, of torchvision's, Hugging Face's or timm's layout; see
    `load_weights`.
    """
    shape = (image_size, patch_size, num_layers, num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
    model = VisionTransformer(*shape, num_classes, representation_size, in_channels, layer_norm_eps)
    return started(model, weights)


def _sized(
    name: str, patch_size: int, num_layers: int, num_heads: int, width: int, doc: str
) -> Callable[..., VisionTransformer]:
    sizes = {"image_size": 224, "patch_size": patch_size, "num_layers": num_layers, "num_heads": num_heads}
    sizes |= {"hidden_dim": width, "mlp_dim": 4 * width}

    @named(name, doc)
    def build(*, weights: Weights | None = None, **changes: Any) -> VisionTransformer:
        eps = {"layer_norm_eps": found["layer_norm_eps"]} if "layer_norm_eps" in (found := config_of(weights)) else {}
        return started(VisionTransformer(**{**sizes, **eps, **changes}), weights)

    return build


_CHANGES = (
    "`changes` override arguments of VisionTransformer. weights: a file, folder or hub name to start from, of "
    "torchvision's, Hugging Face's or timm's layout; layer_norm_eps is then that of the config.json beside them, if "
    "there is one; see `load_weights`."
)
vit_ti_16 = _sized("vit_ti_16", 16, 12, 3, 192, f"ViT-Ti/16, 5.7 million parameters; {_CHANGES}")
vit_s_16 = _sized("vit_s_16", 16, 12, 6, 384, "ViT-S/16, 22 million parameters; see vit_ti_16.")
vit_b_16 = _sized("vit_b_16", 16, 12, 12, 768, "ViT-B/16, 87 million parameters; see vit_ti_16.")
vit_b_32 = _sized("vit_b_32", 32, 12, 12, 768, "ViT-B/32, 88 million parameters; see vit_ti_16.")
vit_l_16 = _sized("vit_l_16", 16, 24, 16, 1024, "ViT-L/16, 304 million parameters; see vit_ti_16.")


def _check(model: Any, data: Any) -> Iterator[Fault]:
    yield from divides(model, "num_heads", "hidden_dim")
    if faults := list(square_images(model, data)):
        yield from faults
    elif data is not None and data.shape[1] % model.patch_size:
        yield Fault("model.patch_size", f"a divisor of the image's {data.shape[1]} pixels", str(model.patch_size))


register_model(vit, "images", check=_check)
