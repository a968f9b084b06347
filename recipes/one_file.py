"""Mixed-precision training in one file: the whole idea of ampkit in NumPy and ml_dtypes alone, to read in one sitting.

Numbers of 16 bits take half the memory of float32 and, on hardware with units for their products, a fraction of the
time. But in 16 bits a weight of 1 does not change when 1/10,000 is added, a long sum stops growing, and in float16 a
gradient of 1/100,000,000 is 0. So each part of a training step gets the dtype that suits it:

1. A policy says in which dtype each op runs, by its cast category.
2. A tape records the ops, and casts gradients back where a value was cast.
3. An optimizer updates float32 master weights, whose 16-bit copies the ops read.
4. A scaler multiplies the loss, so that small gradients fit float16, and skips the steps in which large ones do not.

`python recipes/one_file.py` trains a small network in three precisions, in two seconds. The names are ampkit's, and so
are the rules: tests/run/test_one_file.py trains the same network by the library's references, to the same bits. The
library adds what is left out here: devices, kernels, broadcasting, modules, second derivatives, an error for every
misuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count
from math import sqrt
from types import SimpleNamespace as Saved
from typing import Any

import ml_dtypes
import numpy as np

float32, float16, bfloat16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
FLOATS = {dtype.name: dtype for dtype in (float32, float16, bfloat16)}
Array = Any  # NumPy's
DType = Any

# 1. Policy: which op runs in which dtype


class Cast(Enum):
    """How an op treats the dtypes of its inputs in an autocast region.

    The library has a fifth category, BANNED, which raises: for losses of probabilities that 16 bits have made 0 or 1.
    """

    LOW = "low"  # products: nearly all of the time, and 16 bits add hardly more error than their inputs have
    FP32 = "float32"  # exponentials, sums, norms, losses: they need float32's range or precision, and take little time
    WIDEST = "widest"  # operands of two dtypes: in the wider one neither loses anything
    KEEP = "keep"  # what gains nothing by another dtype, such as max(x, 0): the input's


class Policy:
    """The dtype of LOW ops, and the ops that get another category than their own: Policy("float16", add="float32")."""

    def __init__(self, dtype: str = "float16", **overrides: str):
        self.dtype, self.overrides = FLOATS[dtype], {name: Cast(word) for name, word in overrides.items()}

    def category(self, op: Op) -> Cast:
        return self.overrides.get(op.name, op.cast)


regions: list[Policy | None] = [None]  # the last one applies; None: outside of any region


@contextmanager
def autocast(policy: Policy | None) -> Iterator[None]:
    """Apply `policy` to the ops that are called in the block. None turns autocast off there."""
    regions.append(policy)
    try:
        yield
    finally:
        regions.pop()


# 2. Tensor, tape and ops


class Tensor:
    """An array, and where its gradient flows: to the node that made it; for a leaf that is trained, to its `grad`."""

    def __init__(self, array: Array, requires_grad: bool = False, node: Node | None = None):
        self.array, self.requires_grad, self.node = array, requires_grad, node
        self.grad: Array = None
        self.copies: dict[DType, Array] = {}  # of a leaf: its values in other dtypes

    def copy_in(self, dtype: DType) -> Array:
        """The values rounded to `dtype`. A weight is cast once: the optimizer keeps its copies up to date."""
        if self.array.dtype == dtype:
            return self.array
        if self.node is not None or not self.requires_grad:
            return self.array.astype(dtype)
        if dtype not in self.copies:
            self.copies[dtype] = self.array.astype(dtype)
        return self.copies[dtype]

    def edge(self) -> Edge:
        """Where the gradient flows: (node or leaf, dtype), or None."""
        return (self.node or self, self.array.dtype) if self.requires_grad else None


Edge = tuple[Any, DType] | None
serial = count().__next__


@dataclass(eq=False)
class Node:
    """The record of one op call: edges to its inputs and the arrays that its backward reads, and nothing else.

    read: the dtype that the op read each input in, which may be another than the input's own.
    """

    op: Op
    edges: list[Edge]
    read: list[DType]
    saved: Saved
    serial: int


def widen(array: Array) -> Array:
    """A 16-bit array in float32, which is exact; anything else as it is."""
    return array.astype(float32) if array.dtype in (float16, bfloat16) else array


class Op:
    """An op: its reference, plain array code on float32; its backward; its cast category.

    A call casts its inputs, computes in float32 and rounds the result once, as units for 16-bit products do: products
    of 16-bit numbers are exact in float32, sums are carried there, and only what is stored is rounded.
    """

    def __init__(self, reference: Callable[..., Any], cast: Cast):
        self.name, self.reference, self.cast = reference.__name__, reference, cast
        self.vjp: Callable[..., Any]

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the backward: function(dy, saved) -> the gradients of the inputs."""
        self.vjp = function
        return function

    def plan(self, dtypes: list[DType]) -> tuple[list[DType], DType]:
        """(the dtype in which each input is read, the dtype of the result)."""
        policy, floats = regions[-1], [dtype for dtype in dtypes if dtype in FLOATS.values()]
        cast = self.cast if policy is None else policy.category(self)
        widest = floats[0] if len(set(floats)) == 1 else float32  # also of float16 and bfloat16
        if cast is Cast.KEEP:
            out = dtypes[0]
        elif cast is Cast.WIDEST or policy is None:
            out = widest
        else:
            out = policy.dtype if cast is Cast.LOW else float32
        # Only LOW rounds its inputs. The others read them as they are stored, which is as exact as a copy in float32.
        return [out if cast is Cast.LOW and dtype in floats else dtype for dtype in dtypes], out

    def __call__(self, *inputs: Tensor) -> Tensor:
        read, out_dtype = self.plan([tensor.array.dtype for tensor in inputs])
        with np.errstate(all="ignore"):  # an overflow is inf, which the scaler finds
            stored = [tensor.copy_in(dtype) for tensor, dtype in zip(inputs, read, strict=True)]
            wide = [widen(array) for array in stored]
            result, saved = self.reference(*wide)
            out = np.asarray(result).astype(out_dtype)
        if not any(tensor.requires_grad for tensor in inputs):
            return Tensor(out)
        # Inputs and the output are saved as they are stored, in 16 bits: that is where mixed precision saves memory.
        kept = {id(w): s for w, s in zip([*wide, result], [*stored, out], strict=True)}
        saved = Saved(**{name: kept.get(id(array), array) for name, array in vars(saved).items()})
        return Tensor(out, True, Node(self, [tensor.edge() for tensor in inputs], read, saved, serial()))


def op(cast: Cast) -> Callable[[Callable[..., Any]], Op]:
    """Decorate a reference: function(*arrays) -> (result, what its backward reads)."""
    return lambda reference: Op(reference, cast)


def backward(loss: Tensor) -> None:
    """Add the gradient of `loss` to the `grad` of every leaf, visiting the newest node first.

    Every node that reads a tensor is newer than the one that made it, so a gradient is complete when its node's turn
    comes. An op runs backward in the dtypes of its forward, whether a region is open or not.
    """
    held: dict[Node, Array] = {loss.node: np.ones_like(loss.array)} if loss.node else {}
    while held:
        node = max(held, key=lambda node: node.serial)
        dy, saved = held.pop(node), {name: widen(array) for name, array in vars(node.saved).items()}
        with np.errstate(all="ignore"):
            gradients = node.op.vjp(widen(dy), Saved(**saved))
            for gradient, edge, read in zip(gradients, node.edges, node.read, strict=True):
                if edge is not None:
                    _flow(gradient, *edge, read, held)


def _flow(gradient: Array, source: Node | Tensor, dtype: DType, read: DType, held: dict[Node, Array]) -> None:
    if isinstance(source, Tensor):  # float32, as it was computed: no rounding, no overflow between product and update
        source.grad = gradient.astype(dtype) if source.grad is None else source.grad + gradient.astype(dtype)
        return
    gradient = gradient.astype(read).astype(dtype)  # the cast of the forward, backwards
    if source in held:  # the tensor was used twice: sums are carried in float32, here too
        gradient = (widen(held[source]) + widen(gradient)).astype(dtype)
    held[source] = gradient


# Ops of each category. x [N, in], weight [out, in], bias [out], target [N] of integers


@op(Cast.LOW)
def linear(x: Array, weight: Array, bias: Array) -> Any:
    return x @ weight.T + bias, Saved(x=x, weight=weight)


@linear.backward
def linear_backward(dy: Array, saved: Saved) -> Any:
    return dy @ saved.weight, dy.T @ saved.x, dy.sum(0)


@op(Cast.KEEP)
def relu(x: Array) -> Any:
    out = np.where(x <= 0, 0, x)  # NaN stays NaN
    return out, Saved(out=out)


@relu.backward
def relu_backward(dy: Array, saved: Saved) -> Any:
    return (np.where(saved.out == 0, 0, dy),)


@op(Cast.WIDEST)
def add(x: Array, other: Array) -> Any:
    return x + other, Saved()


@add.backward
def add_backward(dy: Array, saved: Saved) -> Any:
    return dy, dy


@op(Cast.FP32)
def rms_norm(x: Array) -> Any:
    """x divided by its root mean square. In float16 the square of 300 is inf, and that of 1/10,000 is 0."""
    rstd = 1 / np.sqrt(_dot(x, x) / x.shape[1] + np.finfo(float32).eps.item())
    return x * rstd, Saved(x=x, rstd=rstd)


@rms_norm.backward
def rms_norm_backward(dy: Array, saved: Saved) -> Any:
    y = saved.x * saved.rstd
    return ((dy - y * (_dot(dy, y) / y.shape[1])) * saved.rstd,)


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)[:, None]


@op(Cast.FP32)
def cross_entropy(x: Array, target: Array) -> Any:
    shift = x.max(1, keepdims=True)
    log = np.log(np.exp(x - shift).sum(1, keepdims=True))
    loss = log - np.take_along_axis(x - shift, target[:, None], 1)
    return loss.sum() / np.float32(len(loss)), Saved(x=x, target=target, lse=log + shift)


@cross_entropy.backward
def cross_entropy_backward(dy: Array, saved: Saved) -> Any:
    dy = dy / np.float32(len(saved.x))
    dx = np.exp(saved.x - saved.lse) * dy
    dx[np.arange(len(dx)), saved.target] -= dy
    return dx, None


@op(Cast.FP32)
def scale_loss(loss: Array, scale: Array) -> Any:
    return loss * scale, Saved(scale=scale)


@scale_loss.backward
def scale_loss_backward(dy: Array, saved: Saved) -> Any:
    return dy * saved.scale, None


# 3. Optimizer: float32 master weights


class AdamW:
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; p <- (1 - lr decay) p - lr (m / c1) / (sqrt(v / c2) + eps).

    The weights and moments are float32. An update is often less than half a unit in the last place of a 16-bit weight,
    1/512 to 1/256 of it in bfloat16: added there, it would change nothing, step after step. (Loshchilov, Hutter 2019.)
    """

    def __init__(
        self, params: list[Tensor], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ):  # fmt: skip
        self.params, self.lr, self.betas, self.eps, self.weight_decay = params, lr, betas, eps, weight_decay
        self.moments = [(np.zeros_like(p.array), np.zeros_like(p.array)) for p in params]
        self.steps = 0

    def step(self) -> None:
        """Update the master weights, and write their 16-bit copies in the same pass: the next forward casts nothing."""
        self.steps += 1
        (b1, b2), t = self.betas, self.steps
        for p, (m, v) in zip(self.params, self.moments, strict=True):
            m += (p.grad - m) * (1 - b1)
            v *= b2
            v += p.grad * p.grad * (1 - b2)
            p.array *= 1 - self.lr * self.weight_decay
            p.array -= m / (np.sqrt(v) / sqrt(1 - b2**t) + self.eps) * (self.lr / (1 - b1**t))
            for copy in p.copies.values():
                copy[...] = p.array.astype(copy.dtype)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None


# 4. GradScaler: gradients that fit float16


class GradScaler:
    """Multiplies the loss, and so every gradient, by a scale, and divides the gradients of weights by it before a step.

    float16 goes from 6e-8 to 65504, and gradients lie at its lower end, many below. The best scale is the largest that
    overflows nowhere, which nobody knows. So it grows until a gradient overflows: that step is skipped, as if its batch
    had not been there, and the scale backs off. bfloat16 has the range of float32 and needs no scale: enabled=False.
    (Micikevicius et al. 2018, arXiv:1710.03740.)
    """

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ):  # fmt: skip
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self.enabled = enabled
        self.loss_scale = init_scale if enabled else 1.0  # a power of 2, so that scaling rounds nothing
        self.growth_tracker = 0  # steps without overflow since the scale changed
        self.found_inf = False

    def scale(self, loss: Tensor) -> Tensor:
        """`loss` times the scale, in float32, as 65536 is inf in float16."""
        return scale_loss(loss, Tensor(np.array(self.loss_scale, float32))) if self.enabled else loss

    def unscale_(self, optimizer: AdamW) -> None:
        """Divide the gradients by the scale, and note in `found_inf` whether one of them is inf or NaN."""
        for p in optimizer.params:
            p.grad *= np.float32(1 / self.loss_scale)
        self.found_inf = not all(np.isfinite(p.grad).all() for p in optimizer.params)

    def step(self, optimizer: AdamW) -> bool:
        """Unscale, and step unless a gradient overflowed; -> whether the step was skipped.

        A skipped step changes nothing: not the weights, not the moments, not the count of steps.
        """
        if self.enabled:
            self.unscale_(optimizer)
        if not self.found_inf:
            optimizer.step()
        return self.found_inf

    def update(self) -> None:
        """Back off after an overflow; grow after `growth_interval` steps in a row without one."""
        self.growth_tracker = 0 if self.found_inf else self.growth_tracker + 1
        if self.found_inf:
            self.loss_scale *= self.backoff_factor
        elif self.enabled and self.growth_tracker == self.growth_interval:
            self.loss_scale, self.growth_tracker = self.loss_scale * self.growth_factor, 0


# The training loop


def parameters(rng: np.random.Generator, width: int = 32) -> list[Tensor]:
    """Weights and biases of four layers: 64 -> width, width -> width twice, width -> 10."""
    sizes = [(width, 64), (width, width), (width, width), (10, width)]
    arrays = [a for out, n in sizes for a in (rng.standard_normal((out, n)) / sqrt(n), np.zeros(out))]
    return [Tensor(array.astype(float32), requires_grad=True) for array in arrays]


def model(x: Tensor, params: list[Tensor]) -> Tensor:
    """An MLP with a residual block; comments: dtypes under Policy("float16")."""
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h = linear(x, w1, b1)  # float32 -> float16
    y = relu(linear(rms_norm(h), w2, b2))  # float16 -> float32, which linear casts -> float16 -> float16
    h = add(h, linear(y, w3, b3))  # float16
    return linear(rms_norm(h), w4, b4)  # float16; cross_entropy reads it and returns float32


def batches(rng: np.random.Generator, steps: int, size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Noisy images of 8 x 8 pixels, each of one of ten random patterns, and the numbers of their patterns."""
    patterns = rng.standard_normal((10, 64))
    for _ in range(steps):
        target = rng.integers(0, 10, size)
        yield Tensor((patterns[target] + 2 * rng.standard_normal((size, 64))).astype(float32)), Tensor(target)


def bytes_saved(loss: Tensor, params: list[Tensor]) -> int:
    """The bytes that the tape keeps for backward, besides weights and their copies."""
    nodes: list[Any] = [loss.node]
    found: dict[int, int] = {}
    for node in nodes:
        found |= {id(array): array.nbytes for array in vars(node.saved).values()}
        nodes += [edge[0] for edge in node.edges if edge and isinstance(edge[0], Node) and edge[0] not in nodes]
    weights = {id(array) for p in params for array in (p.array, *p.copies.values())}
    return sum(size for array, size in found.items() if array not in weights)


@dataclass
class Row:
    """What one step did."""

    loss: float
    skipped: bool
    scale: float
    saved: int


def train(policy: Policy | None, scaler: GradScaler, params: list[Tensor], data: Any) -> Iterator[Row]:
    """Train `params` in place on `data` under a policy; None is float32. Yields a Row per step."""
    optimizer = AdamW(params, lr=3e-3)
    for x, target in data:
        with autocast(policy=policy):
            loss = cross_entropy(model(x, params), target)
        backward(scaler.scale(loss))
        skipped = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield Row(loss.array.item(), skipped, scaler.loss_scale, bytes_saved(loss, params))


def main(steps: int = 400) -> None:
    """Train the same weights on the same batches in three precisions, and print what each costs and reaches."""
    print(f"{steps} steps   loss of the last 50   skipped steps   loss scale   kept for backward")
    for name in ("float32", "bfloat16", "float16"):
        policy = None if name == "float32" else Policy(name)
        scaler = GradScaler(growth_interval=50, enabled=name == "float16")  # a short run: it grows every 50 steps
        rng = np.random.default_rng(0)
        rows = list(train(policy, scaler, parameters(rng), batches(rng, steps)))
        loss, skipped = np.mean([row.loss for row in rows[-50:]]), sum(row.skipped for row in rows)
        print(f"{name:9} {loss:21.4f} {skipped:15} {rows[-1].scale:12g} {rows[-1].saved:13,} bytes")


if __name__ == "__main__":
    main()
