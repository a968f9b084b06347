"""Layers and losses over sequences under `vmap`: the samples are further sequences, bags or rows of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit.base.array_kinds import on_device
from ampkit.core.casts import cast
from ampkit.core.dispatch.batching.array import expand, innermost
from ampkit.core.dispatch.batching.call import Call, Done, Ran, run_backward
from ampkit.core.dispatch.batching.rules import folded
from ampkit.core.op import Saved

from ..nn.embedding import check_indices
from .layers import below
from .plans import wide_dtype


def recurrent(call: Call) -> Done | None:
    """Recurrent layers and cells whose weights the samples share: a row of each sample at each step.

    Steps of packed sequences stay in their order, and the sequences of all samples end with those of one.
    """
    level, names = call.level, call.op.signature.names
    first = names.index("w_ih")
    if any(call.is_batched(i) for i in range(first, len(names))):
        return None
    size = level.size
    arrays = [_interleaved(call, a) if i < first and a is not None else a for i, a in enumerate(call.arrays)]
    if _nests(call, arrays, first):
        return None
    steps = "sizes" in call.op.signature.param_names
    params = call.with_params(sizes=tuple([n * size for n in call.param("sizes")])) if steps else call.params
    ran = Ran(call.op, arrays, params, call.plan)
    outs = tuple([call.up(_apart(out, size)) for out in ran.hand_out()])

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        ran.saved.samples = None if summing else size
        found = ran.backward([None if dy is None else _interleaved(call, dy) for dy in dys], needs)
        states = [None if g is None else call.up(_apart(g, size)) for g in found[:first]]
        return [*states, *[g if g is None or summing else call.up(g) for g in found[first:]]]

    return Done(outs, backward, dict(zip(names, call.arrays, strict=True)), replays=True)


def _nests(call: Call, arrays: list[Any], first: int) -> bool:
    # Whether samples of an outer level are among the arrays, and gradients of each of shared weights may be wanted.
    return innermost(arrays) is not None and (not call.wants or any(call.wants[first:]))


def _interleaved(call: Call, array: Any) -> Any:
    # [N, ...] of each sample as [N * samples, ...].
    data = expand(array, call.level).data.swapaxes(0, 1)
    return data.reshape((-1, *data.shape[2:]))


def _apart(array: Any, size: int) -> Any:
    return array.reshape((-1, size, *array.shape[1:])).swapaxes(0, 1)


def embedding_bag(call: Call) -> Done | None:
    """Bags of one table, or of the tables of the samples below each other.

    The rows behind the last bag of a sample are a bag that is left out.
    """
    index, weight, starts, scale = call.arrays
    level, (rows, width), padding = call.level, weight.shape, call.param("padding_idx")
    own, size = call.is_batched(1), level.size
    held = [a.data if call.is_batched(i) else a for i, a in enumerate(call.arrays)]
    if not own and _nests(call, held, 1):
        return None
    places = expand(index, level).data
    check_indices(places, rows)
    ends = np.arange(size, like=on_device(places))[:, None] * places.shape[1] + expand(starts, level).data
    given = np.concatenate((ends.reshape(-1), np.full_like(ends, places.size, shape=(1,))))
    scales = None if scale is None else expand(scale, level).data.reshape(-1)

    def stacked_places() -> Any:  # places in the tables below each other; one more row stands for what is left out
        found = below(level, places, rows)
        return (found if padding is None else np.where(places == padding % rows, size * rows, found)).reshape(-1)

    last = 0 if padding is None else 1
    if own:
        table = weight.data.reshape((size * rows, width))
        table = np.concatenate((table, np.zeros_like(table, shape=(last, width)))) if last else table
        params = call.with_params(padding_idx=size * rows if last else None)
        ran = Ran(call.op, [stacked_places(), table, given, scales], params, call.plan)
    else:
        ran = Ran(call.op, [places.reshape(-1), weight, given, scales], call.params, call.plan)
    out = ran.hand_out().reshape((size, -1, width))[:, :-1]

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = dys[0].data
        dy = np.concatenate((dy, np.zeros_like(dy[:, :1])), 1).reshape((-1, width))
        _, dw, _, dscale = ran.backward([dy], needs if own or summing else (None, None, None, needs[3]))
        if needs[1] and not own and not summing:
            saved = Saved(**ran.saved.__dict__ | {"input": stacked_places(), "rows": size * rows + last})
            named = ran.named_params() | {"padding_idx": size * rows if last else None}
            dw = run_backward(call.op, ran.kernel, dy, saved, (None, needs[1], None, None), named, call.plan.compute)[1]
        if dw is not None and (own or not summing):
            dw = call.up(dw[: size * rows].reshape((size, rows, width)))
        return [None, dw, None, None if dscale is None else call.up(dscale.reshape((size, -1)))]

    return Done(call.up(out), backward, call.inputs(), replays=True)


_sequences = folded({"log_probs": 1, "targets": 0, "input_lengths": 0, "target_lengths": 0})


def ctc_loss(call: Call) -> Done | None:
    """`ctc_loss_`: the loss of each sequence in one call, reduced over the sequences of a sample."""
    reduction = call.param("reduction")
    if reduction == "none":
        return _sequences(call)
    inner = Call(call.op, call.arrays, call.with_params(reduction="none"), call.plan, call.level, call.wants)
    done = _sequences(inner)
    if done is None:
        return None
    counts, wide = np.maximum(expand(call.arrays[3], call.level).data, 1), wide_dtype(call.plan)
    losses = cast(done.out.data, wide)
    if reduction == "mean":
        losses = losses / (counts * counts.shape[1]).astype(wide)
    out = cast(losses.sum(1), call.plan.out)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        dy = cast(dys[0].data, wide)[:, None]
        each = np.repeat(dy, counts.shape[1], 1)
        each = each / (counts * counts.shape[1]).astype(wide) if reduction == "mean" else each
        return done.backward([call.up(each)], needs, summing)

    return Done(call.up(out), backward, call.inputs(), replays=True)
