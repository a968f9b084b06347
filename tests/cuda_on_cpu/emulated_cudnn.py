"""cuDNN's arithmetic in NumPy: `EmulatedCudnn` stands for `Cudnn` as the `cudnn` of a backend, and checks its calls.

Arrays must lie as the plans say, begin where cuDNN can read them, and have dtypes that it has engines for; the engines
it lacks are those that plans for an H100 lack. Products are in float32, with operands rounded to TF32 where that is
allowed, and results are rounded once. `calls` holds what was asked for: the name, and the addresses of the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cuda.libs import cudnn
from ampkit.backends.cuda.libs.cudnn import AttentionArrays
from ampkit.backends.determinism import are_deterministic_algorithms_enabled
from ampkit.base.dtypes import LOW, bfloat16, float16, float32
from ampkit.ops.nn import attention_math, conv_products

from . import emulated_cupy, streams


class EmulatedCudnn:
    """cuDNN's engines on emulated arrays. lacks: the names of the calls that have no engine at all."""

    def __init__(self, *lacks: str):
        self.lacks = set(lacks)
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.refused: dict[str, str] = {}
        self.warned: set[object] = set()

    def dropout_refusal(self) -> str:
        return "no engine" if "attention_backward" in self.lacks else ""

    def unavailable_reason(self) -> str:
        return ""

    def conv_forward(self, images, kernels, bias, maps, geometry, tf32=False) -> bool:
        _need_images(images, kernels, maps, geometry, maps)
        if not self._has("conv_forward", images, kernels, bias, maps):
            return False
        x, k = _operands(tf32, images, kernels)
        found = conv_products.convolve(x, k, geometry, images.shape[1] // kernels.shape[1])
        maps._numpy[...] = found if bias is None else found + _wide(bias).reshape(-1, *(1,) * (found.ndim - 2))
        return True

    def conv_data(self, maps, kernels, bias, images, geometry, tf32=False) -> bool:
        _need_images(images, kernels, maps, geometry, images)
        if not self._has("conv_data", maps, kernels, bias, images):
            return False
        y, k = _operands(tf32, maps, kernels)
        found = conv_products.input_gradient(y, k, geometry, images.shape[1] // kernels.shape[1])
        images._numpy[...] = found if bias is None else found + _wide(bias).reshape(-1, *(1,) * (found.ndim - 2))
        return True

    def conv_weight(self, images, maps, kernels, geometry, tf32=False) -> bool:
        _need_images(images, kernels, maps, geometry, kernels)
        assert kernels.dtype == maps.dtype, "cuDNN's only engine for float32 results of 16-bit operands is slow"
        if not self._has("conv_weight", images, maps, None, kernels):
            return False
        x, y = _operands(tf32, images, maps)
        kernels._numpy[...] = conv_products.weight_gradient(x, y, geometry, images.shape[1] // kernels.shape[1])
        return True

    def attention_forward(self, call: AttentionArrays) -> bool:
        query, key, value, bias, dropped, out, lse, causal, scale, *_ = call
        _need_heads(query, key, value, bias, out, lse)
        if not self._has("attention_forward", query, key, value, bias, out):
            return False
        a = _grouped(query, key, value, bias)
        weights, sums = _weights(a, causal, scale)
        keep = _need_dropped(dropped, query, key)
        found = (weights * keep.reshape(weights.shape)) @ a.value
        out._numpy[...], lse._numpy[...] = found.reshape(out.shape), sums.reshape(lse.shape)
        return True

    def attention_backward(self, call: AttentionArrays) -> bool:
        query, key, value, bias, dropped, out, lse, causal, scale, dout, gradients = call
        _need_heads(query, key, value, bias, out, lse)
        _need_heads(*gradients, None, dout, lse)
        assert [g.dtype for g in (*gradients, dout)] == [query.dtype] * 4
        if not self._has("attention_backward", query, key, value, bias, dout):
            return False
        a, keep = _grouped(query, key, value, bias), _need_dropped(dropped, query, key)
        # The result is read too: cuDNN takes the sums of its products with `dout` from it.
        rows = a.query.shape[:-1]
        given = (_wide(x).reshape(*rows, -1) for x in (out, dout, lse))
        found = _attention_gradients(a, keep.reshape(*rows, -1), *given, causal, scale)
        for gradient, made in zip(gradients, found, strict=True):
            gradient._numpy[...] = made.reshape(gradient.shape)
        return True

    def backward_workspace(self, call: AttentionArrays) -> Any:
        if self._lacks("attention_backward"):
            return None
        # As cuDNN plans it for an H100: the gradients of all scores in 16 bits, and three float32 numbers per row.
        n, h, rows, width = call.query.shape
        stored = 2 * call.key.shape[2] if are_deterministic_algorithms_enabled() else 4 * width
        return n * h * rows * (stored + 12)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _recorded(found) if name.startswith(("conv_", "attention_")) else found

    def _lacks(self, name: str) -> bool:
        if name in self.lacks:
            self.refused[name] = "no engine"
        return name in self.lacks

    def _has(self, name: str, *arrays: Any) -> bool:
        if self._lacks(name):
            return False
        self.calls.append((name, tuple(0 if a is None else a.data.ptr for a in arrays)))
        return True


def _recorded(call: Any) -> Any:
    # Done at once, since the answer is whether it can be. In a capture that leaves no trace; launches do it again.
    def run(*arguments: Any, **options: Any) -> Any:
        given = emulated_cupy._arrays([*arguments, *options.values()])
        kept = [(array, array._numpy.copy()) for array in given] if emulated_cupy.recording() else []
        with np.errstate(all="ignore"):
            done = call(*arguments, **options)
        for array, values in kept:
            array._numpy[...] = values
        if done and kept:
            frozen = emulated_cupy.frozen(arguments)
            streams.perform(lambda: call(*frozen, **options), given, given)
        return done

    return run


def _wide(array: Any) -> Any:
    return array._numpy.astype(np.float32)


def _operands(tf32: bool, *arrays: Any) -> list[Any]:
    wide = [_wide(array) for array in arrays]
    return [_to_tf32(w) if tf32 and a.dtype == float32 else w for w, a in zip(wide, arrays, strict=True)]


def _to_tf32(wide: Any) -> Any:
    # 10 bits after the point, to nearest; infinities and NaN stay.
    bits = (np.ascontiguousarray(wide).view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(wide), bits.view(np.float32), wide)


def _need(array: Any) -> None:
    assert type(array) is emulated_cupy.ndarray, f"a device array, got {type(array)}"
    assert array.ndim in (4, 5), f"four axes or five, got {array.shape}"
    assert array.size, f"elements, got {array.shape}"
    assert array.dtype in (float32, float16, bfloat16), array.dtype
    assert cudnn.aligned(array), "an address that is a multiple of 16"


def _need_images(images: Any, kernels: Any, maps: Any, geometry: Any, out: Any) -> None:
    for array in (images, kernels, maps):
        _need(array)
        last = array.transpose(0, *range(2, array.ndim), 1)
        assert last.flags.c_contiguous, f"channels last, got {array.shape} {array.strides}"
        assert array is out or array.dtype in (out.dtype, *LOW), f"{array.dtype} into {out.dtype}"
    assert len({a.dtype for a in (images, kernels, maps) if a is not out}) == 1
    assert geometry.input_size == images.shape[2:], (geometry, images.shape)
    assert geometry.kernel == kernels.shape[2:], (geometry, kernels.shape)
    assert geometry.output_size == maps.shape[2:], (geometry, maps.shape)
    assert maps.shape[:2] == (images.shape[0], kernels.shape[0]), (maps.shape, images.shape, kernels.shape)
    assert not images.shape[1] % kernels.shape[1], (images.shape, kernels.shape)
    assert not kernels.shape[0] % (images.shape[1] // kernels.shape[1]), (images.shape, kernels.shape)


def _need_heads(query: Any, key: Any, value: Any, bias: Any, out: Any, lse: Any) -> None:
    n, h, rows, width = query.shape
    for array in (query, key, value, out):
        _need(array)
        size = array.dtype.itemsize
        steps = [s for s, count in zip(array.strides, array.shape, strict=True) if count > 1]
        assert array.strides[3] == size, f"rows that are packed, got {array.strides}"
        assert array.dtype == query.dtype, f"one dtype, got {array.dtype} and {query.dtype}"
        assert array.dtype in LOW, array.dtype
        assert all(s > 0 and (s == size or not s % 16) for s in steps), array.strides
        assert array.shape[3] <= 256, array.shape
        assert not array.shape[3] % 8, array.shape
    assert key.shape[:3] == value.shape[:3], (key.shape, value.shape)
    assert key.shape[0] == n, (query.shape, key.shape)
    assert key.shape[3] == width, (query.shape, key.shape)
    assert not h % key.shape[1], (query.shape, key.shape)
    assert out.shape == (n, h, rows, value.shape[3]), out.shape
    assert (lse.shape, lse.dtype) == ((n, h, rows, 1), float32), (lse.shape, lse.dtype)
    assert lse.flags.c_contiguous
    assert cudnn.aligned(lse)
    if bias is not None:
        _need(bias)
        assert bias.dtype == query.dtype, bias.dtype
        assert bias.flags.c_contiguous, bias.strides
        assert bias.shape[3] == key.shape[2], (bias.shape, key.shape)
        assert all(b in (1, a) for b, a in zip(bias.shape[:3], (n, h, rows), strict=True)), (bias.shape, out.shape)
        assert not np.isneginf(_wide(bias)).any(), "numbers: nobody says what rows of -inf give"


def _grouped(query: Any, key: Any, value: Any, bias: Any) -> Any:
    # The operands with query's heads by the head of key that serves them, as the reference has it.
    wide = [_wide(a) for a in (query, key, value)]
    given = attention_math.Operands(*wide, None if bias is None else _wide(bias), None)
    return attention_math.broadcast(attention_math.split_heads(given))


def _need_dropped(dropped: Any, query: Any, key: Any) -> Any:
    # By what the weights are multiplied: 0 or 1 / (1 - p).
    if dropped is None:
        return np.ones((*query.shape[:3], key.shape[2]), np.float32)
    keep, grows, shrinks = dropped
    _need(keep)
    assert keep.dtype == query.dtype, keep.dtype
    assert keep.shape == (*query.shape[:3], key.shape[2]), keep.shape
    assert all(cudnn.aligned(n) and (n.size, n.dtype) == (1, float32) for n in (grows, shrinks))
    if not emulated_cupy.recording():  # nothing has been computed yet then
        np.testing.assert_allclose(grows._numpy * shrinks._numpy, 1, rtol=1e-6)
    return _wide(keep) * grows._numpy


def _scores(a: Any, causal: bool, scale: float) -> Any:
    scores = (a.query * np.float32(scale)) @ a.key.swapaxes(-1, -2)
    scores = scores if a.added is None else scores + a.added
    hidden = np.finfo(np.float32).min  # what cuDNN takes for it
    return np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, hidden) if causal else scores


def _weights(a: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    scores = _scores(a, causal, scale)
    highest = scores.max(-1, keepdims=True)
    sums = highest + np.log(np.exp(scores - highest).sum(-1, keepdims=True))
    return np.exp(scores - sums), sums


def _attention_gradients(a: Any, keep: Any, out: Any, dout: Any, lse: Any, causal: bool, scale: float) -> list[Any]:
    weights = np.exp(_scores(a, causal, scale) - lse)
    ds = keep * (dout @ a.value.swapaxes(-1, -2)) - (dout * out).sum(-1, keepdims=True)
    ds *= weights * np.float32(scale)
    dk, dv = ds.swapaxes(-1, -2) @ a.query, (weights * keep).swapaxes(-1, -2) @ dout
    return [ds @ a.key, dk.sum(2), dv.sum(2)]
