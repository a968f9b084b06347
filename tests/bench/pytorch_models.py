"""The models of `ampkit.models` written in PyTorch, with the same parameter names, to compare losses and times."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's custom


def mlp(in_features=64, hidden=(256, 256), out_features=10, activation="relu", dropout=0.0):
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    kinds = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
    layers = [nn.Flatten()]
    for before, after in zip([in_features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), kinds[activation](), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear([in_features, *widths][-1], out_features))


class CNN(nn.Module):
    def __init__(self, in_channels=1, num_classes=10, width=32, stages=2, dropout=0.0):
        super().__init__()
        widths, layers = [width * 2**i for i in range(stages)], []
        for stage, (before, after) in enumerate(zip([in_channels, *widths], widths, strict=False)):
            layers += [nn.MaxPool2d(2)] if stage else []
            for start in (before, after):
                layers += [nn.Conv2d(start, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.pool, self.dropout = nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pool(self.features(x)).flatten(1)))


cnn = CNN


class Block(nn.Module):
    """A residual block: basic, or with `deep` a bottleneck."""

    def __init__(self, before, width, stride=1, downsample=None, deep=False):
        super().__init__()
        after = 4 * width if deep else width
        shapes = (
            [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
            if deep
            else [(before, width, 3, stride), (width, width, 3, 1)]
        )
        self.count = len(shapes)
        for i, (start, end, size, step) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(start, end, size, step, size // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(end))
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for i in range(1, self.count + 1):
            out = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(out))
            out = F.relu(out) if i < self.count else out
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, layers, deep, num_classes=1000, stem="imagenet", in_channels=3):
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(in_channels, 64, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        before = 64
        for stage, count in enumerate(layers):
            width, stride = 64 * 2**stage, 2 if stage else 1
            after, shortcut = 4 * width if deep else width, None
            if stride != 1 or before != after:
                shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            blocks = [
                Block(before, width, stride, shortcut, deep),
                *(Block(after, width, deep=deep) for _ in range(1, count)),
            ]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            before = after
        self.fc = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(x.mean((2, 3)))


def resnet18(**options):
    return ResNet((2, 2, 2, 2), deep=False, **options)


def resnet34(**options):
    return ResNet((3, 4, 6, 3), deep=False, **options)


def resnet50(**options):
    return ResNet((3, 4, 6, 3), deep=True, **options)


class Attention(nn.Module):
    def __init__(self, n_embd, n_head, dropout, bias):
        super().__init__()
        self.n_head, self.dropout = n_head, dropout
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd, bias), nn.Linear(n_embd, n_embd, bias)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (part.view(n, t, self.n_head, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return F.dropout(self.c_proj(y.transpose(1, 2).reshape(n, t, width)), self.dropout, self.training)


class Layer(nn.Module):
    def __init__(self, n_embd, n_head, dropout, bias):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = Attention(n_embd, n_head, dropout, bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(n_embd, 4 * n_embd, bias), "c_proj": nn.Linear(4 * n_embd, n_embd, bias)}
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        wide = F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh")
        return x + F.dropout(self.mlp.c_proj(wide), self.dropout, self.training)


class GPT(nn.Module):
    def __init__(
        self, vocab_size=256, block_size=128, n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=True, tie_weights=True
    ):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Layer(n_embd, n_head, dropout, bias) for _ in range(n_layer)),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        if tie_weights:
            self.lm_head.weight = self.transformer.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                nn.init.normal_(
                    parameter, std=0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
                )

    def forward(self, idx: Tensor, targets: Tensor | None = None):
        parts = self.transformer
        x = parts.drop(parts.wte(idx) + parts.wpe(torch.arange(idx.shape[1], device=idx.device)))
        for layer in parts.h:
            x = layer(x)
        logits = self.lm_head(parts.ln_f(x))
        return logits if targets is None else (logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


gpt = GPT


class ViTBlock(nn.Module):
    def __init__(self, heads, width, wide):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        parts = (nn.Linear(width, wide), nn.GELU(), nn.Identity(), nn.Linear(wide, width))
        self.mlp = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(
        self, image_size=32, patch_size=4, num_layers=6, num_heads=4, hidden_dim=128, mlp_dim=256, num_classes=10
    ):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden_dim))
        self.conv_proj = nn.Conv2d(3, hidden_dim, patch_size, patch_size)
        blocks = {f"encoder_layer_{i}": ViTBlock(num_heads, hidden_dim, mlp_dim) for i in range(num_layers)}
        self.encoder = nn.ModuleDict({"layers": nn.ModuleDict(blocks), "ln": nn.LayerNorm(hidden_dim, eps=1e-6)})
        length = (image_size // patch_size) ** 2 + 1
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, length, hidden_dim))
        self.heads = nn.ModuleDict({"head": nn.Linear(hidden_dim, num_classes)})

    def forward(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1) + self.encoder.pos_embedding
        for block in self.encoder.layers.values():
            x = block(x)
        return self.heads.head(self.encoder.ln(x)[:, 0])


vit = ViT


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


def convmixer(dim=64, depth=4, kernel_size=5, patch_size=2, num_classes=10, in_channels=3):
    def active(conv):
        return conv, nn.GELU(), nn.BatchNorm2d(dim)

    def layer():
        across = nn.Conv2d(dim, dim, kernel_size, padding="same", groups=dim)
        return nn.Sequential(Residual(nn.Sequential(*active(across))), *active(nn.Conv2d(dim, dim, 1)))

    patches = active(nn.Conv2d(in_channels, dim, patch_size, patch_size))
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(dim, num_classes))
    return nn.Sequential(*patches, *(layer() for _ in range(depth)), *ends)


class BertAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.self = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.output = _after(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (part(x).view(n, t, self.heads, -1).transpose(1, 2) for part in self.self.values())
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, width)
        return self.output.LayerNorm(self.output.dense(y) + x)


class BertLayer(nn.Module):
    def __init__(self, width, heads, wide):
        super().__init__()
        self.attention = BertAttention(width, heads)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, wide)})
        self.output = _after(wide, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return self.output.LayerNorm(self.output.dense(F.gelu(self.intermediate.dense(x))) + x)


def _after(before, width):
    return nn.ModuleDict({"dense": nn.Linear(before, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})


class BERT(nn.Module):
    """BertForMaskedLM without an attention mask."""

    def __init__(self, vocab_size=30522, width=128, layers=2, heads=2, wide=512, positions=512):
        super().__init__()
        tables = {"word": nn.Embedding(vocab_size, width, padding_idx=0), "position": nn.Embedding(positions, width)}
        tables["token_type"] = nn.Embedding(2, width)
        parts = {f"{name}_embeddings": table for name, table in tables.items()}
        embeddings = nn.ModuleDict({**parts, "LayerNorm": nn.LayerNorm(width, eps=1e-12)})
        layer = nn.ModuleList(BertLayer(width, heads, wide) for _ in range(layers))
        self.bert = nn.ModuleDict({"embeddings": embeddings, "encoder": nn.ModuleDict({"layer": layer})})
        head = nn.ModuleDict({"transform": _after(width, width), "decoder": nn.Linear(width, vocab_size)})
        head.decoder.weight = embeddings.word_embeddings.weight
        head.bias = head.decoder.bias
        self.cls = nn.ModuleDict({"predictions": head})

    def forward(self, idx: Tensor) -> Tensor:
        tables, head = self.bert.embeddings, self.cls.predictions
        x = tables.word_embeddings(idx) + tables.token_type_embeddings(torch.zeros_like(idx))
        x = tables.LayerNorm(x + tables.position_embeddings(torch.arange(idx.shape[1], device=idx.device)))
        for layer in self.bert.encoder.layer:
            x = layer(x)
        return head.decoder(head.transform.LayerNorm(F.gelu(head.transform.dense(x))))


def bert(preset="tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options):
    """As models.bert with dropout 0."""
    assert hidden_dropout_prob == attention_probs_dropout_prob == 0
    layers, width, heads = {"tiny": (2, 128, 2), "small": (4, 512, 8), "base": (12, 768, 12)}[preset]
    return BERT(width=width, layers=layers, heads=heads, wide=4 * width, **options)


def load(theirs: nn.Module, model) -> nn.Module:
    """Copy the weights of an ampkit model into a PyTorch model; return the PyTorch model."""
    theirs.load_state_dict({name: torch.from_numpy(value.numpy().copy()) for name, value in model.state_dict().items()})
    return theirs
