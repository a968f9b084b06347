"""The ledger of a training step: where its time and its memory go, and what 16 bits change in both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..backends import Backend, backend_of, is_array
from ..base.byte_sizes import bytes_in_words
from ..base.dtypes import LOW, float32
from ..base.errors import ArgumentError
from ..base.html import ShowsItsText
from ..base.observe import FORWARD, Event, observing
from ..core.module_path import current, follow
from ..core.op import ops
from ..core.policy import Cast, Policy, region
from ..optim.optimizer import Optimizer
from .peak_memory import peak_of_device
from .profiler import profile
from .saved_memory import SavedMemory

# The kinds of work, by the folder or file of `ampkit/ops` that an op is defined in; the first whose name starts so.
KINDS = {
    "linalg": "products",
    "quantized": "products",
    "nn.conv": "products",
    "nn.attention": "products",
    "nn.rnn": "products",
    "nn.fused": "products",
    "nn.batch_norm": "normalization",
    "nn.layer_norm": "normalization",
    "nn.residual_norm": "normalization",
    "nn.softmax": "softmax, losses and reductions",
    "loss": "softmax, losses and reductions",
    "reduction": "softmax, losses and reductions",
    "pointwise": "elementwise",
    "nn.dropout": "elementwise",
    "sparse": "products",
    "shape": "data movement",
    "indexing": "data movement",
    "nn.embedding": "data movement",
    "creation": "data movement",
    "nn": "pooling and others",
}
CASTS, OPTIMIZER, DATA, REST = "casts", "optimizer", "waiting for data", "Python, and all else between ops"


@dataclass(frozen=True, repr=False)
class Ledger(ShowsItsText):
    """A step's time and memory.

    seconds: of a whole step. times: seconds by kind of work, of which REST is what the whole step takes beyond all ops.
    memory: bytes by what holds them: parameters, buffers, gradients, moments, 16-bit copies of weights, and what is
    kept for backward by dtype. wide: by the name of an op, bytes of the outputs that the policy stores in float32 and
    `Policy.fast` in 16 bits. peak: bytes by device, on a GPU the most that all arrays took at once since the process
    began or `cuda.reset_peak_memory_stats`, on a CPU the peak memory of the process.
    """

    seconds: float
    times: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    wide: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{'a step':44}{self.seconds * 1e3:10.2f} ms"]
        for kind, spent in sorted(self.times.items(), key=lambda item: -item[1]):
            lines.append(f"  {kind:42}{spent * 1e3:10.2f} ms{spent / self.seconds:8.1%}")
        lines.append(f"{'memory':44}{bytes_in_words(sum(self.memory.values())):>13}")
        lines += [f"  {what:42}{bytes_in_words(size):>13}" for what, size in self.memory.items() if size]
        for device, size in self.peak.items():
            what = "peak memory of the process" if device == "cpu" else f"peak memory of arrays, {device}"
            lines.append(f"{what:44}{bytes_in_words(size):>13}")
        return "\n".join(lines)

    def compare(self, wide: Ledger) -> str:
        """What this step, in 16 bits, takes less or more than that of `wide`, in float32, and why, in lines of text."""
        change = 1 - self.seconds / wide.seconds
        said = f"save {change:.0%} of a step's time" if change >= 0 else f"cost {-change:.0%} more time"
        times = f"{wide.seconds * 1e3:.3g} -> {self.seconds * 1e3:.3g} ms"
        return "\n  ".join([f"16 bits {said}: {times}", *self.reasons(wide)])

    def reasons(self, wide: Ledger) -> list[str]:
        """Why this step, in 16 bits, takes less or more time and memory than that of `wide`, in float32."""
        saved = {kind: wide.times.get(kind, 0.0) - spent for kind, spent in self.times.items()}
        faster = [kind for kind in sorted(saved, key=lambda kind: -saved[kind]) if saved[kind] > 0.02 * wide.seconds]
        slower = [kind for kind in sorted(saved, key=lambda kind: saved[kind]) if saved[kind] < -0.02 * wide.seconds]
        lines = []
        if faster:
            lines.append("less time: " + ", ".join(self._change(wide, kind) for kind in faster[:3]))
        if slower:
            lines.append("more time: " + ", ".join(self._change(wide, kind) for kind in slower[:3]))
        share = self.times.get("products", 0.0) / self.seconds
        if share < 0.5:
            rest = max((kind for kind in self.times if kind != "products"), key=lambda kind: self.times[kind])
            most = f"{rest} takes {self.times[rest] / self.seconds:.0%}"
            lines.append(f"products, which 16-bit units speed up, are {share:.0%} of the step; {most}")
        before, after = wide._kept(), self._kept()
        if before:
            change = f"{after / before - 1:+.0%}"
            lines.append(f"kept for backward: {bytes_in_words(before)} -> {bytes_in_words(after)} ({change})")
        if self.wide:
            names, size = ", ".join(sorted(self.wide)), bytes_in_words(sum(self.wide.values()) / 2)
            lines.append(f"float32 by the policy: {names}; Policy.fast would store {size} less of their outputs")
        return lines

    def _change(self, wide: Ledger, kind: str) -> str:
        return f"{kind} {wide.times.get(kind, 0.0) * 1e3:.3g} -> {self.times[kind] * 1e3:.3g} ms"

    def _kept(self) -> int:
        return sum(size for what, size in self.memory.items() if what.startswith("kept"))


def ledger(
    step: Callable[[], Any], optimizers: Optimizer | Iterable[Optimizer] = (), steps: int = 5, warmup: int = 2
) -> Ledger:
    """Run `step` 2 * steps + warmup + 1 times, and say where its time and memory go.

    step: a whole training step: forward, backward, update; it really trains. optimizers: whose parameters, gradients
    and moments count as memory. Steps are run in turns with and without a profile, so that the overhead of measuring
    is not in what lies between ops; of both the fastest counts, in seconds of the device where it has a clock.
    Raises ArgumentError for something that cannot be called and a number of steps below 1, and what `step` raises.
    """
    if not callable(step):
        raise ArgumentError("ledger", "a function that runs a training step", f"a {type(step).__name__}")
    if steps < 1:
        raise ArgumentError("ledger", "steps from 1", repr(steps))
    several = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    recorder = _Recorder()
    with follow(), observing(recorder):
        step()
    memory = _held(several) | recorder.buffers() | recorder.kept
    for _ in range(warmup):
        step()
    plain, profiles, rests = [], [], []
    for _ in range(steps):
        plain.append(_timed(step, recorder.devices.values()))
        with profile() as found:
            step()
        profiles.append(_by_kind(found))
        rests.append(found.seconds - sum(profiles[-1].values()))
    times = min(profiles, key=lambda times: sum(times.values()))
    in_ops = sum(times.values())
    # Both are too large: one by what else the computer did in the plain step, the other by the overhead of measuring.
    rest = max(0.0, min(min(plain) - in_ops, *rests))
    peaks = {name: peak for name in recorder.devices if (peak := peak_of_device(name)) is not None}
    return Ledger(in_ops + rest, times | {REST: rest}, memory, recorder.wide, peaks)


def _timed(step: Callable[[], Any], devices: Iterable[Backend]) -> float:
    for device in devices:
        device.synchronize()
    start = time.perf_counter()
    step()
    for device in devices:
        device.synchronize()
    return time.perf_counter() - start


def _by_kind(found: profile) -> dict[str, float]:
    times: dict[str, float] = {}
    for row in found.rows:
        kind = kind_of(row.name)
        times[kind] = times.get(kind, 0.0) + row.seconds
    return times


def kind_of(name: str) -> str:
    """The kind of work of an event's name: of an op, its backward, a cast, or a part of an optimizer's step."""
    if name == "next_batch":
        return DATA
    if name in ("cast", "sum_over", "sum_of_two"):
        return CASTS if name == "cast" else "elementwise"
    op = ops.get(name) or ops.get(name.removesuffix("_backward"))
    if op is None:
        return OPTIMIZER if name == "unscale" or name.endswith("_update") else "others"
    return next((kind for prefix, kind in KINDS.items() if op.forward.module.startswith(prefix)), "others")


class _Recorder:
    """An observer that adds up what a step keeps for backward and stores in float32, and on which devices it runs."""

    def __init__(self) -> None:
        self.kept, self.wide, self.devices = dict[str, int](), dict[str, int](), dict[str, Backend]()
        self._memory, self._models = SavedMemory(), dict[int, Any]()

    def buffers(self) -> dict[str, int]:
        """The bytes of the buffers, and of parameters that no optimizer has, of all models that ran."""
        models = self._models.values()
        held = {id(buffer): buffer.array.nbytes for model in models for buffer in model.buffers()}
        frozen = {id(p): p.array.nbytes for model in models for p in model.parameters() if p._arena_segment is None}
        return {"buffers": sum(held.values()), "frozen parameters": sum(frozen.values())}

    def __call__(self, event: Event) -> None:
        if event.phase != FORWARD or event.op is None:
            return
        if (call := current()) is not None and (model := call.model) is not None:
            self._models[id(model)] = model
        for array in event.inputs:
            if is_array(array):
                device = backend_of(array)
                self.devices[device.name] = device
        if _is_wide_by_policy(event):
            self.wide[event.name] = self.wide.get(event.name, 0) + event.output.nbytes
        for array in self._memory.add(event):
            kind = f"kept for backward, {'16 bits' if array.dtype in LOW else array.dtype.name}"
            self.kept[kind] = self.kept.get(kind, 0) + array.nbytes


def _held(optimizers: list[Optimizer]) -> dict[str, int]:
    arenas = [arena for optimizer in optimizers for group in optimizer.param_groups for arena in group.arenas]
    segments = [s for optimizer in optimizers for group in optimizer.param_groups for s in group.segments]
    others = sum(array.nbytes for segment in segments for array in segment.extra_state.values())
    return {
        "parameters": sum(arena.master.nbytes for arena in arenas),
        "16-bit copies of weights": sum(copy.nbytes for arena in arenas for copy in arena.copies.values()),
        "gradients": sum(arena.gradient.nbytes for arena in arenas),
        "moments": others + sum(flat.nbytes for arena in arenas for flat in arena.moment_arrays()),
    }


def _is_wide_by_policy(event: Event) -> bool:
    entry = region()
    active = None if entry is None else entry.policies[event.plan.backend]
    if active is None or active.low_dtype not in LOW or getattr(event.output, "dtype", None) != float32:
        return False
    overrides: dict[str, Any] = {name: category.value for name, category in active.overrides}
    return Policy.fast(active.dtype, **overrides).category(event.name) is Cast.LOW is not active.category(event.name)
