"""The calls that `ops.py` times: each is one function of the library, ampkit or PyTorch, and its input tensors.

A case names its inputs for each size: "tiny" for tests, the others have shapes of models. Its other layout is that of
inputs whose last two axes are exchanged in memory ("transposed") or of images in the order NHWC ("channels_last").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SIZES = ("small", "medium", "large")
DTYPES = ("float32", "bfloat16", "float16")
Call = Callable[..., Any]


class Input(NamedTuple):
    """A tensor's shape and values: a number means integers below it.

    "normal" and "positive" are leaves in the row's dtype, "float32" in float32; "constant" and "mask" are no leaves.
    """

    shape: tuple[int, ...]
    values: str | int = "normal"


def leaf(*shape: int) -> Input:
    return Input(shape)


def constant(*shape: int) -> Input:
    return Input(shape, "constant")


def index(below: int, *shape: int) -> Input:
    return Input(shape, below)


class Case(NamedTuple):
    """name, call(library, *inputs), inputs for each size; built: call(library, dtype, *inputs) returns a Built."""

    name: str
    call: Call
    inputs: dict[str, list[Input]]
    layout: str | None = None
    dtypes: Sequence[str] = DTYPES
    backward: bool = True
    built: bool = False
    scalar: bool = False  # the result is one number, and so is its gradient
    once: bool = False  # one call, without a warm-up


class Built(NamedTuple):
    """A timed call, the leaves whose gradients its backward computes, and what is done before each call, untimed."""

    call: Callable[[], Any]
    leaves: Sequence[Any] = ()
    before: Callable[[], Any] = lambda: None


# shapes

ROWS = {"tiny": (4, 6), "small": (64, 256), "medium": (2048, 768), "large": (4096, 1024)}
TOKENS = {"tiny": (2, 3, 4), "small": (2, 64, 128), "medium": (8, 256, 768), "large": (8, 512, 1024)}
HEADS = {"tiny": (2, 3, 2, 4), "small": (2, 64, 4, 32), "medium": (8, 256, 12, 64), "large": (8, 512, 16, 64)}
IMAGES = {"tiny": (2, 4, 4, 4), "small": (2, 32, 16, 16), "medium": (16, 64, 32, 32), "large": (16, 64, 56, 56)}
CLASSES = {"tiny": (4, 7), "small": (128, 10), "medium": (2048, 1000), "large": (512, 50257)}
TABLES = {"tiny": (9, 4, 6), "small": (1000, 128, 256), "medium": (10000, 256, 2048), "large": (50257, 768, 8192)}
PRODUCTS = {"tiny": (4, 5, 6), "small": (64, 256, 256), "medium": (1024, 384, 1536), "large": (2048, 768, 3072)}


def of(shapes: dict[str, tuple[int, ...]], inputs: Callable[..., list[Input]]) -> dict[str, list[Input]]:
    """The inputs for each size, from a function of the shape."""
    return {size: inputs(*shape) for size, shape in shapes.items()}


def one(shapes: dict[str, tuple[int, ...]]) -> dict[str, list[Input]]:
    return of(shapes, lambda *shape: [leaf(*shape)])


def several(count: int) -> dict[str, list[Input]]:
    return of(ROWS, lambda *shape: [leaf(*shape)] * count)


POSITIVE = of(ROWS, lambda *shape: [Input(shape, "positive")])

# pointwise


def _pointwise(name: str, call: Call, inputs: dict[str, list[Input]] | None = None) -> Case:
    return Case(name, call, inputs or one(ROWS), "transposed")


def _activation(name: str, *arguments: Any, called: str = "", **options: Any) -> Case:
    return _pointwise(
        called or name, lambda lib, x: getattr(lib.nn.functional, name)(x, *arguments, **options), one(ROWS)
    )


ELEMENTS = [
    _pointwise("add", lambda lib, x, y: lib.add(x, y), several(2)),
    _pointwise("mul", lambda lib, x, y: lib.mul(x, y), several(2)),
    _pointwise("div", lambda lib, x, y: lib.div(x, y), several(2)),
    _pointwise("mul by a number", lambda lib, x: x * 0.5),
    Case("add bias [B,T,C]+[C]", lambda lib, x, b: x + b, of(TOKENS, lambda *s: [leaf(*s), leaf(s[-1])])),
    Case(
        "add bias [N,C,H,W]+[C,1,1]",
        lambda lib, x, b: x + b,
        of(IMAGES, lambda *s: [leaf(*s), leaf(s[1], 1, 1)]),
        "channels_last",
    ),
    _pointwise("exp", lambda lib, x: lib.exp(x)),
    _pointwise("log", lambda lib, x: lib.log(x), POSITIVE),
    _pointwise("sqrt", lambda lib, x: lib.sqrt(x), POSITIVE),
    _pointwise("rsqrt", lambda lib, x: lib.rsqrt(x), POSITIVE),
    _pointwise("pow 2", lambda lib, x: lib.pow(x, 2)),
    _pointwise("pow 2.5", lambda lib, x: lib.pow(x, 2.5), POSITIVE),
    _pointwise("tanh", lambda lib, x: lib.tanh(x)),
    _pointwise("sigmoid", lambda lib, x: lib.sigmoid(x)),
    _pointwise("clamp", lambda lib, x: lib.clamp(x, -1.0, 1.0)),
    _pointwise(
        "where",
        lambda lib, mask, x, y: lib.where(mask, x, y),
        of(ROWS, lambda *s: [Input(s, "mask"), leaf(*s), leaf(*s)]),
    ),
    _activation("gelu"),
    _activation("gelu", called="gelu tanh", approximate="tanh"),
    _activation("silu"),
    _activation("relu"),
    _activation("leaky_relu", 0.1),
    _activation("elu"),
    _activation("softplus"),
    _activation("mish"),
    _activation("hardswish"),
    _activation("dropout", 0.1),
]

# rows: softmax, losses, norms


def _norm(name: str, call: Call, parameters: int) -> Case:
    return Case(name, call, of(ROWS, lambda n, c: [leaf(n, c)] + [leaf(c)] * parameters), "transposed")


def _image_norm(name: str, call: Call, statistics: int = 0) -> Case:
    def inputs(n: int, c: int, h: int, w: int) -> list[Input]:
        return [leaf(n, c, h, w), leaf(c), leaf(c)] + [constant(c)] * statistics

    return Case(name, call, of(IMAGES, inputs), "channels_last")


NORMS = [
    Case("softmax", lambda lib, x: lib.softmax(x, -1), one(ROWS), "transposed"),
    Case("log_softmax", lambda lib, x: lib.log_softmax(x, -1), one(ROWS), "transposed"),
    Case("logsumexp", lambda lib, x: lib.logsumexp(x, -1), one(ROWS), "transposed"),
    _norm("layer_norm", lambda lib, x, w, b: lib.nn.functional.layer_norm(x, w.shape, w, b), 2),
    _norm("rms_norm", lambda lib, x, w: lib.nn.functional.rms_norm(x, w.shape, w), 1),
    _image_norm("group_norm", lambda lib, x, w, b: lib.nn.functional.group_norm(x, 4, w, b)),
    _image_norm("instance_norm", lambda lib, x, w, b: lib.nn.functional.instance_norm(x, weight=w, bias=b)),
    _image_norm("batch_norm", lambda lib, x, w, b, m, v: lib.nn.functional.batch_norm(x, m, v, w, b, True), 2),
]
LOSSES = [
    Case(
        "cross_entropy",
        lambda lib, x, y: lib.nn.functional.cross_entropy(x, y),
        of(CLASSES, lambda n, c: [leaf(n, c), index(c, n)]),
        scalar=True,
    ),
    Case(
        "mse_loss",
        lambda lib, x, y: lib.nn.functional.mse_loss(x, y),
        of(ROWS, lambda *s: [leaf(*s), constant(*s)]),
        scalar=True,
    ),
    Case(
        "binary_cross_entropy_with_logits",
        lambda lib, x, y: lib.nn.functional.binary_cross_entropy_with_logits(x, y),
        of(ROWS, lambda *s: [leaf(*s), constant(*s)]),
        scalar=True,
    ),
    Case(
        "kl_div",
        lambda lib, x, y: lib.nn.functional.kl_div(x, y, reduction="batchmean"),
        of(ROWS, lambda *s: [leaf(*s), constant(*s)]),
        scalar=True,
    ),
]

# reductions, sorting


def _reduction(name: str, call: Call, shapes: dict[str, tuple[int, ...]] = ROWS) -> Case:
    layout = "channels_last" if shapes is IMAGES else "transposed"
    return Case(name, call, one(shapes), layout, scalar=name.endswith("of all"))


TOPK = {"tiny": (3, 60), "small": (16, 1000), "medium": (64, 50257), "large": (512, 50257)}
SORTED = {"tiny": (3, 9), "small": (64, 256), "medium": (512, 1024), "large": (2048, 3072)}
REDUCTIONS = [
    _reduction("sum of all", lambda lib, x: x.sum()),
    _reduction("sum over rows", lambda lib, x: x.sum(0)),
    _reduction("sum over columns", lambda lib, x: x.sum(1)),
    _reduction("sum over the middle axis", lambda lib, x: x.sum(1), TOKENS),
    _reduction("mean of all", lambda lib, x: x.mean()),
    _reduction("mean over rows", lambda lib, x: x.mean(0)),
    _reduction("mean over columns", lambda lib, x: x.mean(1)),
    _reduction("mean of images' channels", lambda lib, x: x.mean((2, 3)), IMAGES),
    _reduction("sum over N, H, W", lambda lib, x: x.sum((0, 2, 3)), IMAGES),
    _reduction("var", lambda lib, x: x.var(-1)),
    _reduction("amax", lambda lib, x: x.amax(-1)),
    Case("argmax", lambda lib, x: x.argmax(-1), one(ROWS), "transposed", backward=False),
    _reduction("norm of all", lambda lib, x: lib.norm(x)),
    _reduction("norm over columns", lambda lib, x: lib.linalg.vector_norm(x, dim=-1)),
    _reduction("cumsum", lambda lib, x: x.cumsum(-1)),
    _reduction("prod", lambda lib, x: x.prod(-1)),
    Case("median", lambda lib, x: x.median(-1)[0], one(ROWS)),
    Case("topk 50", lambda lib, x: lib.topk(x, 50)[0], one(TOPK)),
    Case("sort", lambda lib, x: lib.sort(x)[0], one(SORTED)),
]

# copies and indexing

CASTS = [
    Case(
        f"to {target}",
        lambda lib, x, target=target: x.to(getattr(lib, target)),
        one(ROWS),
        "transposed",
        dtypes=[dtype for dtype in DTYPES if dtype != target],
    )
    for target in DTYPES
]
COPIES = [
    *CASTS,
    Case("cat of columns", lambda lib, x, y: lib.cat([x, y], -1), several(2), "transposed"),
    Case("cat of rows", lambda lib, x, y: lib.cat([x, y], 0), several(2), "transposed"),
    Case("cat of rows, times 2", lambda lib, x, y: lib.cat([x, y], 0) * 2, several(2)),
    Case("transpose, contiguous", lambda lib, x: x.transpose(-1, -2).contiguous(), one(ROWS)),
    Case("permute (0,2,1,3), contiguous", lambda lib, x: x.permute(0, 2, 1, 3).contiguous(), one(HEADS)),
    Case(
        "embedding",
        lambda lib, i, w: lib.nn.functional.embedding(i, w),
        of(TABLES, lambda n, c, k: [index(n, k), leaf(n, c)]),
    ),
    Case("x[index]", lambda lib, x, i: x[i], of(TABLES, lambda n, c, k: [leaf(n, c), index(n, k)])),
    Case(
        "index_select",
        lambda lib, x, i: lib.index_select(x, 0, i),
        of(TABLES, lambda n, c, k: [leaf(n, c), index(n, k)]),
    ),
    Case("tril", lambda lib, x: x.tril(), one(ROWS)),
    Case("pad", lambda lib, x: lib.nn.functional.pad(x, (1, 1, 1, 1)), one(IMAGES)),
    Case("pad by reflection", lambda lib, x: lib.nn.functional.pad(x, (1, 1, 1, 1), "reflect"), one(IMAGES)),
    Case("tile", lambda lib, x: x.tile(2, 2), one(ROWS)),
    Case("flip", lambda lib, x: x.flip(0), one(ROWS)),
    Case("roll", lambda lib, x: x.roll(3, 1), one(ROWS)),
    Case(
        "embedding_bag",
        lambda lib, i, w: lib.nn.functional.embedding_bag(i, w),
        of(TABLES, lambda n, c, k: [index(n, k, 8), leaf(n, c)]),
    ),
    Case("gather", lambda lib, x, i: lib.gather(x, 1, i), of(ROWS, lambda n, c: [leaf(n, c), index(c, n, c // 2)])),
    Case(
        "scatter_add",
        lambda lib, x, i, y: lib.scatter_add(x, 0, i, y),
        of(ROWS, lambda n, c: [leaf(n, c), index(n, n // 2, c), leaf(n // 2, c)]),
    ),
]
