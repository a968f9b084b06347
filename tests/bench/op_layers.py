"""The calls that `ops.py` times, second half: layers on images, products, attention, recurrent layers, optimizers."""

from __future__ import annotations

from typing import Any

from op_cases import (
    COPIES,
    ELEMENTS,
    IMAGES,
    LOSSES,
    NORMS,
    PRODUCTS,
    REDUCTIONS,
    Built,
    Call,
    Case,
    Input,
    leaf,
    of,
    one,
)

# images


def _image(name: str, function: str, *arguments: Any, **options: Any) -> Case:
    call = lambda lib, x: getattr(lib.nn.functional, function)(x, *arguments, **options)  # noqa: E731
    return Case(name, call, one(IMAGES), "channels_last")


def _conv(name: str, kernel: int, depthwise: bool = False) -> Case:
    def inputs(n: int, c: int, h: int, w: int) -> list[Input]:
        return [leaf(n, c, h, w), leaf(c, 1 if depthwise else c, kernel, kernel), leaf(c)]

    def call(lib: Any, x: Any, weight: Any, bias: Any) -> Any:
        groups = x.shape[1] if depthwise else 1
        return lib.nn.functional.conv2d(x, weight, bias, padding=kernel // 2, groups=groups)

    return Case(name, call, of(IMAGES, inputs), "channels_last")


ON_IMAGES = [
    _image("max_pool2d", "max_pool2d", 2),
    _image("max_pool2d 3x3, stride 2", "max_pool2d", 3, 2, 1),
    _image("avg_pool2d", "avg_pool2d", 2),
    _image("adaptive_avg_pool2d to 1x1", "adaptive_avg_pool2d", 1),
    _image("adaptive_avg_pool2d to 3x3", "adaptive_avg_pool2d", 3),
    _image("adaptive_max_pool2d to 4x4", "adaptive_max_pool2d", 4),
    Case(
        "grid_sample",
        lambda lib, x, grid: lib.nn.functional.grid_sample(x, grid, align_corners=False),
        of(IMAGES, lambda n, c, h, w: [leaf(n, c, h, w), leaf(n, h, w, 2)]),
    ),
    _image("interpolate bilinear", "interpolate", scale_factor=2, mode="bilinear"),
    _image("interpolate nearest", "interpolate", scale_factor=2, mode="nearest"),
    _conv("conv2d 3x3", 3),
    _conv("conv2d 1x1", 1),
    _conv("depthwise conv2d 5x5", 5, depthwise=True),
]

# products, attention, recurrent layers

DISTANT = {"tiny": (3, 4, 5), "small": (32, 32, 64), "medium": (256, 256, 256), "large": (512, 512, 768)}
BATCHED = {"tiny": (2, 3, 4), "small": (8, 64, 32), "medium": (48, 256, 64), "large": (48, 512, 64)}
ATTENTION = {"tiny": (1, 2, 8, 4), "small": (4, 4, 256, 64), "medium": (1, 8, 1024, 64), "large": (1, 4, 4096, 64)}
LONG = {"tiny": (1, 1, 16, 4), "large": (1, 4, 8192, 64)}
SEQUENCES = {"tiny": (2, 3, 4), "small": (8, 16, 64), "medium": (32, 64, 256), "large": (32, 64, 512)}


def _attention(name: str, shapes: dict[str, tuple[int, ...]], causal: bool, once: bool = False) -> Case:
    call = lambda lib, q, k, v: lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    return Case(name, call, of(shapes, lambda *s: [leaf(*s)] * 3), once=once)


def _recurrent(name: str) -> Case:
    def call(lib: Any, dtype: str, x: Any) -> Built:
        layer = getattr(lib.nn, name)(x.shape[-1], x.shape[-1], batch_first=True).to(x.dtype)
        return Built(lambda: layer(x)[0], [x, *layer.parameters()])

    return Case(name.lower(), call, one(SEQUENCES), built=True)


LAYERS = [
    Case(
        "linear",
        lambda lib, x, w, b: lib.nn.functional.linear(x, w, b),
        of(PRODUCTS, lambda m, k, n: [leaf(m, k), leaf(n, k), leaf(n)]),
    ),
    Case(
        "matmul",
        lambda lib, x, y: lib.matmul(x, y),
        of(PRODUCTS, lambda m, k, n: [leaf(m, k), leaf(k, n)]),
        "transposed",
    ),
    Case(
        "bmm",
        lambda lib, x, y: lib.bmm(x, y),
        of(BATCHED, lambda b, t, c: [leaf(b, t, c), leaf(b, c, t)]),
        "transposed",
    ),
    Case(
        "einsum bchw,dc->bdhw",
        lambda lib, x, w: lib.einsum("bchw,dc->bdhw", x, w),
        of(IMAGES, lambda n, c, h, w: [leaf(n, c, h, w), leaf(c, c)]),
    ),
    Case(
        "cdist",
        lambda lib, x, y: lib.cdist(x, y),
        of(DISTANT, lambda m, n, k: [leaf(m, k), leaf(n, k)]),
        dtypes=["float32"],
    ),
    Case(
        "cosine_similarity",
        lambda lib, x, y: lib.nn.functional.cosine_similarity(x, y, dim=1),
        of(PRODUCTS, lambda m, k, n: [leaf(m, n), leaf(m, n)]),
    ),
    _attention("attention", {size: s for size, s in ATTENTION.items() if size != "large"}, causal=False),
    _attention("attention, causal", ATTENTION, causal=True),
    _attention("attention, causal, 8192", LONG, causal=True, once=True),
    _recurrent("LSTM"),
    _recurrent("GRU"),
]

# optimizers: float32 parameters; in a 16-bit row each step also writes their copies in that dtype

WIDTHS = {"tiny": (8, 1), "small": (64, 2), "medium": (256, 2), "large": (384, 6)}


def _blocks(width: int, layers: int) -> list[Input]:
    matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes = [shape for rows in matrices for shape in (rows, rows[:1])] + [(width,)] * 4
    return [Input(shape, "float32") for shape in shapes] * layers


def _optimizer(name: str, called: str = "", **options: Any) -> Case:
    def call(lib: Any, dtype: str, *leaves: Any) -> Built:
        parameters = [lib.nn.Parameter(leaf.detach().clone()) for leaf in leaves]  # in memory of its own
        for parameter in parameters:
            parameter.grad = lib.ones_like(parameter) * 1e-3
        make = getattr(lib.optim, name)
        if lib.__name__ == "torch":
            return Built(_with_copies(lib, make(parameters, lr=1e-3, **_fastest(name), **options), dtype, parameters))
        optimizer = make(parameters, lr=1e-3, **options)
        if dtype != "float32":
            with lib.autocast(dtype=dtype):  # what autocast has cast once, the optimizer's step casts from then on
                for parameter in parameters:
                    matrix = parameter if parameter.dim() == 2 else parameter.reshape(1, -1)
                    lib.nn.functional.linear(lib.ones(1, matrix.shape[1]), matrix)
        return Built(optimizer.step)

    return Case(called or name, call, of(WIDTHS, _blocks), backward=False, built=True)


def _fastest(name: str) -> dict[str, bool]:
    """The option of PyTorch's fastest implementation on the CPU."""
    return {"fused": True} if name in ("SGD", "Adam", "AdamW", "Adagrad") else {"foreach": True}


def _with_copies(torch: Any, optimizer: Any, dtype: str, parameters: Any) -> Call:
    if dtype == "float32":
        return optimizer.step
    copies = [parameter.detach().to(getattr(torch, dtype)) for parameter in parameters]
    masters = [parameter.detach() for parameter in parameters]

    def step() -> None:
        optimizer.step()
        torch._foreach_copy_(copies, masters)

    return step


def _unscale_and_clip(lib: Any, dtype: str, *leaves: Any) -> Built:
    """The gradients of a scaled loss, unscaled, checked for infinities and clipped by their norm."""
    parameters = [lib.nn.Parameter(leaf.detach().clone()) for leaf in leaves]  # in memory of its own
    torch = lib.__name__ == "torch"
    optimizer = lib.optim.SGD(parameters, lr=1e-6)
    scaler = lib.amp.GradScaler("cpu", init_scale=1024.0) if torch else lib.GradScaler(init_scale=1024.0)
    started = []

    def before() -> None:
        if started:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        started.append(True)
        scaler.scale(sum((p * p).sum() for p in parameters)).backward()

    def call() -> None:
        scaler.unscale_(optimizer)
        lib.nn.utils.clip_grad_norm_(parameters, 1.0)

    return Built(call, before=before)


OPTIMIZERS = [
    _optimizer("SGD", "SGD, momentum", momentum=0.9),
    _optimizer("Adam"),
    _optimizer("AdamW"),
    _optimizer("Adamax"),
    _optimizer("RMSprop"),
    _optimizer("Adagrad"),
    Case(
        "GradScaler.unscale_, clip_grad_norm_",
        _unscale_and_clip,
        of(WIDTHS, _blocks),
        dtypes=["float32"],
        backward=False,
        built=True,
    ),
]

FAMILIES = {
    "pointwise": ELEMENTS,
    "norms": NORMS,
    "losses": LOSSES,
    "reductions": REDUCTIONS,
    "copies": COPIES,
    "images": ON_IMAGES,
    "layers": LAYERS,
    "optimizers": OPTIMIZERS,
}
