"""Layers with weights under `vmap`: normalizations, convolutions, embeddings and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampkit.base.array_kinds import on_device
from ampkit.base.dtypes import accumulator
from ampkit.core.casts import cast
from ampkit.core.dispatch.batching.array import expand
from ampkit.core.dispatch.batching.call import Call, Done, Ran, run_backward
from ampkit.core.dispatch.batching.rules import Rule, elementwise, folded, merge, unmerge
from ampkit.core.op import Saved

from ..linalg.matmul import linear as linear_op
from ..nn.conv import geometry_of, transposed_geometry
from ..nn.dropout import apply_mask, mask
from ..nn.embedding import check_indices
from ..nn.embedding import embedding_ as embedding_op
from ..nn.embedding import sum_rows as sum_rows_op
from ..nn.layer_norm import layer_norm as layer_norm_op
from ..pointwise.smooth_activations import gelu
from . import products
from .plans import run, summed, wide_dtype


def either(*rules: Rule) -> Rule:
    """The first of the rules that knows the arguments."""

    def rule(call: Call) -> Done | None:
        return next((done for each in rules if (done := each(call)) is not None), None)

    return rule


def times_samples(name: str) -> Any:
    """The argument `name`, a number of groups, times the number of samples."""
    return lambda call, arrays: call.with_params(**{name: call.param(name) * call.level.size})


# Normalization over the last axes: the scale and the shift of a sample follow as products and sums of their own.


def scaled(call: Call) -> Done | None:
    """`layer_norm` and `rms_norm`: shared scales in the op itself, those of each sample after it."""
    scales = [i for i, a in enumerate(call.arrays) if i and a is not None]
    each = any(call.is_batched(i) for i in scales) or not call.is_batched(0)
    names = call.op.signature.names
    saved = dict(zip(names[:2], call.arrays[:2], strict=True))
    x = expand(call.arrays[0], call.level)
    none = [None] * (len(names) - 1)
    wide = replace(call.plan.with_output(wide_dtype(call.plan)), narrows=False)
    ran = Ran(call.op, [x.data, *none], call.params, wide) if each else None
    if ran is None:
        own = Ran(call.op, [x.data, *call.arrays[1:]], call.params, call.plan)
        out = own.out
    else:
        out = _scaled(call, ran.out)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data
        if ran is None and summing:
            dx, *others = own.backward([dy], needs)
            return [None if dx is None else call.up(dx), *others]
        if ran is None:
            dx = own.backward([dy], (needs[0], *none))[0] if needs[0] else None
        elif needs[0]:
            grad = cast(dy, wide_dtype(call.plan))
            dx = ran.backward([grad if call.arrays[1] is None else grad * _row(call, 1, grad)], (needs[0], *none))[0]
        else:
            dx = None
        others = _scale_gradients(call, dy, needs, lambda: ran.out if ran is not None else _standard(call, x, none))
        return [None if dx is None else call.up(dx), *others]

    return Done(call.up(out), backward, saved, replays=True)


def _scaled(call: Call, standard: Any) -> Any:
    out = standard
    for i, apply in ((1, np.multiply), (2, np.add)):
        if len(call.arrays) > i and call.arrays[i] is not None:
            out = apply(out, _row(call, i, out))
    return cast(out, call.plan.out)


def _row(call: Call, i: int, like: Any) -> Any:
    # A scale as it broadcasts to [size, ..., *S].
    array = call.arrays[i]
    data = cast(array.data if call.is_batched(i) else array, like.dtype)
    if not call.is_batched(i):
        return data
    return data.reshape((call.level.size, *(1,) * (like.ndim - data.ndim), *data.shape[1:]))


def _standard(call: Call, x: Any, none: list[None]) -> Any:
    return Ran(call.op, [x.data, *none], call.params, call.plan.with_output(wide_dtype(call.plan))).out


def _scale_gradients(call: Call, dy: Any, needs: Any, standard: Any) -> list[Any]:
    # Of scale and shift, of each sample, in [size, *S].
    found: list[Any] = []
    wide = None
    for i in range(1, len(call.arrays)):
        if needs[i] is None:
            found.append(None)
            continue
        rows = tuple(range(1, dy.ndim - call.arrays[i].ndim))
        wide = cast(dy, wide_dtype(call.plan)) if wide is None else wide
        found.append(call.up(summed(wide * standard() if i == 1 else wide, rows, needs[i])))
    return found


def add_layer_norm(call: Call) -> Done | None:
    """`add_layer_norm` with shared scales; their gradients are those of the norm of the sum."""
    residual, branch, weight, bias = call.arrays
    if any(call.is_batched(i) for i in (2, 3)) or call.param("draw") is not None:
        return None
    x = [expand(a, call.level).data for a in (residual, branch)]
    ran = Ran(call.op, [*x, weight, bias], call.params, replace(call.plan, drops=()))
    outs = ran.out if type(ran.out) is tuple else (ran.out,)
    total = outs[0] if len(outs) > 1 else ran.saved.total
    made = tuple([call.up(out) for out in outs])

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        given = [None if dy is None else dy.data for dy in dys]
        if summing:
            dx, dbranch, *others = ran.backward(given, needs)
        else:
            dx, dbranch, *_ = ran.backward(given, (*needs[:2], None, None))
            others = [None, None]
            if given[-1] is not None and any(needs[2:]):
                params = (call.param("normalized_shape"), call.param("eps"))
                inner = Call(layer_norm_op, [call.up(total), weight, bias], params, call.plan, call.level, ())
                standard = lambda: _standard(inner, call.up(total), [None, None])  # noqa: E731
                others = _scale_gradients(inner, given[-1], (None, *needs[2:]), standard)
        return [None if g is None else call.up(g) for g in (dx, dbranch)] + list(others)

    saved = dict(zip(call.op.signature.names[:3], call.arrays[:3], strict=True))
    return Done(made if len(made) > 1 else made[0], backward, saved, replays=True)


_norm_axes = {"input": 1, "weight": 0, "bias": 0}
group_norm = either(
    folded({"input": 0}, shared=("weight", "bias")),
    folded(_norm_axes, arguments=times_samples("num_groups")),
)
_statistics = ("weight", "bias", "running_mean", "running_var")
_channels = folded({"input": 1, "residual": 1, **dict.fromkeys(_statistics, 0)})


def batch_norm(call: Call) -> Done | None:
    """`batch_norm`: by running statistics the samples are a larger batch, by those of a batch further channels."""
    running = [call.arrays[call.op.signature.names.index(n)] for n in _statistics[2:]]
    done = None if running[0] is None else folded({"input": 0, "residual": 0}, shared=_statistics)(call)
    return _channels(call) if done is None else done


def feed_forward(call: Call) -> Done | None:
    """The rule of `linear_gelu_linear`: its three ops one by one."""
    x, w1, b1, w2, b2 = call.arrays
    plan = replace(call.plan, drops=())

    def of(op: Any, *arrays: Any, params: Any = ()) -> Call:
        return Call(op, list(arrays), params, plan, call.level, (True,) * len(arrays))

    first = products.linear(of(linear_op, expand(x, call.level), w1, b1))
    hidden = None if first is None else elementwise(of(gelu, first.out, params=call.params))
    last = None if hidden is None else products.linear(of(linear_op, hidden.out, w2, b2))
    if first is None or hidden is None or last is None:
        return None

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        inner = plan.out if any(needs[:3]) else None
        grad, *second = last.backward(dys, (inner, *needs[3:]), summing)
        if inner is None:
            return [None, None, None, *second]
        (grad,) = hidden.backward([grad], (inner,), summing)
        return [*first.backward([grad], needs[:3], summing), *second]

    saved = {"input": x, "weight": w1, "bias": b1, "weight2": w2}
    return Done(last.out, backward, saved)


# Convolution


def convolution(call: Call) -> Done | None:
    """A convolution: the samples are a larger batch where they share the weight, else groups of channels."""
    x, weight, bias = call.arrays
    if any(call.is_batched(i) for i in (1, 2)):
        at = x.ndim - weight.ndim + 1  # the channels of the input
        return folded({"input": at, "weight": 0, "bias": 0}, arguments=times_samples("groups"))(call)
    if x.ndim != weight.ndim:  # one image without an axis N, for which that of the samples stands
        if x.ndim != weight.ndim - 1:
            return None
        data = x.data
    else:
        data = merge(x, call.level, 0)
    ran, size = Ran(call.op, [data, weight, bias], call.params, call.plan), call.level.size

    def split(array: Any) -> Any:
        return call.up(array if x.ndim != weight.ndim else array.reshape((size, -1, *array.shape[1:])))

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data.reshape(ran.out.shape)
        if summing:
            dx, *others = ran.backward([dy], needs)
            return [None if dx is None else split(dx), *others]
        dx = ran.backward([dy], (needs[0], None, None))[0] if needs[0] else None
        dw = _weight_gradients(call, dys[0], needs[1]) if needs[1] else None
        db = None
        if needs[2]:
            apart = dy.reshape((size, -1, *dy.shape[1:]))
            db = call.up(summed(apart, (1, *range(3, apart.ndim)), needs[2]))
        return [None if dx is None else split(dx), dw, db]

    return Done(split(ran.out), backward, {"input": x, "weight": weight, "geometry": _geometry(call)})


def _geometry(call: Call) -> Any:
    x, weight, _ = call.arrays
    if "output_padding" in call.op.signature.param_names:
        named = [call.param(n) for n in ("stride", "padding", "output_padding", "dilation")]
        return transposed_geometry(call.op.name, x, weight, *named)
    return geometry_of(call.op.name, x, weight, *[call.param(n) for n in ("stride", "padding", "dilation")])


def _weight_gradients(call: Call, dy: Any, need: Any) -> Any:
    # Those of a convolution with the samples as groups, whose weights would be their own.
    x, weight, _ = call.arrays
    at, level = x.ndim - weight.ndim + 1, call.level
    given = [merge(a, level, at) for a in (x, dy)]
    saved = Saved(input=given[0], weight=merge(weight, level, 0), geometry=_geometry(call))
    params = dict(zip(call.op.signature.param_names, times_samples("groups")(call, ()), strict=True))
    dw = run_backward(call.op, None, given[1], saved, (None, need, None), params, wide_dtype(call.plan))[1]
    return unmerge(cast(dw, need), level, 0)


# Embedding


def embedding(call: Call) -> Done | None:
    """`embedding`: rows of one table, or of those of the samples below each other."""
    index, weight = call.arrays
    level, rows, padding = call.level, weight.shape[0], call.param("padding_idx")
    own = call.is_batched(1)
    places = expand(index, level).data

    def stacked_places() -> Any:  # the places in the tables below each other
        return below(level, places, rows)

    if own:
        check_indices(places, rows)
        table = weight.data.reshape((level.size * rows, weight.shape[1]))
        out = Ran(embedding_op, [stacked_places(), table], (None,), call.plan).out
    else:
        ran = Ran(embedding_op, [places, weight], call.params, call.plan)
        out = ran.out

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data
        if summing and not own:
            return ran.backward([dy], needs)
        dy = cast(dy, accumulator(dy.dtype))
        if padding is not None:
            dy = np.where((places != padding % rows)[..., None], dy, 0)
        dw = run(call, sum_rows_op, [dy, stacked_places()], level.size * rows, dtype=needs[1])
        return [None, call.up(dw.reshape((level.size, *weight.shape)))]

    return Done(call.up(out), backward, {"input": index, "rows": rows})


def below(level: Any, places: Any, rows: int) -> Any:
    """Indices [size, ...] of rows of the samples' tables as those of one table of them all."""
    first = np.arange(level.size, like=on_device(places)) * rows
    return places + first.reshape((level.size, *(1,) * (places.ndim - 1)))


def sum_rows(call: Call) -> Done | None:
    """`sum_rows`, the transpose of `embedding`, to tables below each other."""
    level, rows = call.level, call.param("rows")
    values, index = (expand(a, level).data for a in call.arrays)
    out = Ran(sum_rows_op, [values, below(level, index, rows)], (level.size * rows,), call.plan).out

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        table = dys[0].data.reshape((level.size * rows, -1))
        return [call.up(run(call, embedding_op, [below(level, index, rows), table], None, dtype=needs[0])), None]

    return Done(call.up(out.reshape((level.size, rows, -1))), backward, {"index": call.arrays[1]})


# Dropout and attention


def dropout(call: Call) -> Done | None:
    """`dropout`: a mask of each sample, or one for all."""
    level, x, p, different = call.level, call.arrays[0], call.param("p"), call.level.randomness == "different"
    shape = tuple(call.param("shape") or x.shape)
    given = mask(on_device(x), p, call.param("seed"), call.param("call"), (level.size, *shape) if different else shape)

    def masked(array: Any, dtype: Any) -> Any:
        return cast(apply_mask(cast(array, wide_dtype(call.plan)), given, p), dtype)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        return [call.up(masked(dys[0].data, needs[0]))]

    keep = call.up(given) if different else given
    return Done(call.up(masked(x.data, call.plan.out)), backward, {"keep": keep})


def attention(call: Call) -> Done | None:
    """Attention: the samples are merged into the first leading axis, masks that they share stay."""
    q, k, v = call.arrays[:3]
    if call.param("draw") is not None and call.level.randomness != "different":
        return None
    if not (q.ndim == k.ndim == v.ndim) or q.ndim < 2:
        return None
    short = q.ndim == 2 or (q.ndim == 3 and call.param("enable_gqa"))
    if not short and not (q.shape[0] == k.shape[0] == v.shape[0]):
        return None
    arrays: list[Any] = []
    for i, array in enumerate(call.arrays):
        if array is None or (i > 2 and not call.is_batched(i) and not call.wants[i] and _same_for_all(array, q)):
            arrays.append(array)
        elif i < 3:
            arrays.append(expand(array, call.level).data if short else merge(array, call.level, 0))
        else:
            arrays.append(_mask(call, array, q, short))
    ran, size = Ran(call.op, arrays, call.params, call.plan, call.wants), call.level.size

    def apart(array: Any) -> Any:
        return call.up(array if short else array.reshape((size, -1, *array.shape[1:])))

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        found = ran.backward([dys[0].data.reshape(ran.out.shape)], needs)
        return [None if g is None else apart(g) for g in found]

    return Done(apart(ran.out), backward, call.inputs(), replays=True)


def _same_for_all(mask: Any, q: Any) -> bool:
    return mask.ndim < q.ndim or mask.shape[0] == 1


def _mask(call: Call, mask: Any, q: Any, short: bool) -> Any:
    data = expand(mask, call.level).data
    data = data.reshape((call.level.size, *(1,) * (q.ndim - mask.ndim), *mask.shape))
    if short:
        return data
    data = np.broadcast_to(data, (call.level.size, q.shape[0], *data.shape[2:]))
    return data.reshape((call.level.size * q.shape[0], *data.shape[2:]))


def self_attention(call: Call) -> Done | None:
    """Attention of a packed projection: the samples are a larger batch."""
    if call.param("draw") is not None and call.level.randomness != "different":
        return None
    return folded({"input": 0})(call)
