"""Arena: the parameters of an optimizer as flat memory.

There is one arena per parameter group, device and dtype of the master weights. It holds master weights, gradients,
moments and 16-bit copies as flat arrays; a parameter's array and gradient are views of its segment of them, which
starts on a 256-byte boundary. So what concerns all parameters of a group, an update, a norm or the finite check of a
GradScaler, is one operation on flat memory. The padding between segments holds zeros and stays zero.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends import Array, Backend
from ampkit.base.dtypes import LOW, DType, accumulator, bool_, float32, int64
from ampkit.base.errors import DeviceError
from ampkit.base.version_counter import VersionCounter
from ampkit.core import random
from ampkit.core.parameter import Parameter
from ampkit.core.shared_memory import block_of
from ampkit.core.storage import divide, overlapping

from .blockwise import BLOCK, Blockwise, Code, code_of
from .memory import CHUNK, RandomBits, narrow, round_stochastically
from .moments import IN_8_BITS, Moment, Storage, part, stored_dtype
from .segment import Segment, mark_all_updated

_DEFAULT = Storage()
ALIGNMENT = 256  # bytes: what CUDA's allocator promises, and a multiple of every cache line and vector width


class Arena:
    """Flat memory for the parameters of one group, device and master dtype.

    master: flat master weights, float32 or float64; with stochastic rounding in the 16-bit dtype of the parameters. A
    parameter in memory that processes share has an arena of its own, whose master is that memory.
    gradient: flat, in `dtype`, float32 or float64. moments: flat arrays by name, as `state_dtype` says in `dtype`, in
    bfloat16 or the codes of 8 bits, whose scales are in `scales`; of the elements `held`, which are all unless ranks
    share them out. copies: flat 16-bit copies of the master weights by dtype. starts: where the segments begin. steps:
    int64 [segments] on the device, the steps that each segment has taken, which skipped ones are not among.
    step_classes: a number per segment, on the host; those of one number are equal in `steps`, since they have been
    present at the same steps; another tuple where they differ, as recorded steps compare it. random_bits: what this
    step's stochastic rounding of weights draws from, else None; the moments draw from the calls after it. shardings:
    how ranks share its parameters out, by their groups.
    stages: the ranks that have other parameters of the same model, or None.

    The optimizer holds the arena and its segments, a segment its parameter and the arena; the arena knows the optimizer
    and a parameter its segment by weak references. So all of it is freed with the optimizer, except memory that
    parameters and gradients are views of.
    """

    def __init__(
        self,
        owner: Any,
        backend: Backend,
        master: DType,
        parameters: Sequence[tuple[int, Parameter]],
        state_dtype: str = "float32",
    ):
        self.owner, self.backend, self.dtype = weakref.ref(owner), backend, accumulator(master)
        self.state_dtype, self.names = state_dtype, getattr(owner, "moments", ())
        self._non_negative = getattr(owner, "non_negative", ())
        alignment, self.starts, self.size = ALIGNMENT // master.itemsize, list[int](), 0
        if state_dtype in IN_8_BITS:  # so that a block of codes has elements of one parameter
            alignment = BLOCK
        for _, parameter in parameters:
            self.starts.append(self.size)
            self.size += -(-parameter.array.size // alignment) * alignment
        self.held = range(self.size)
        self._sizes = [parameter.array.size for _, parameter in parameters]
        self.gradient = self._aligned_zeros(self.dtype)
        self.is_shared = block_of(parameters[0][1].array) is not None
        self.master = parameters[0][1].array.reshape(-1) if self.is_shared else self._aligned_zeros(master)
        self.random_bits: RandomBits | None = None
        self.moments: dict[str, Array] = {}
        self.scales: dict[str, Array] = {}
        self.copies: dict[DType, Array] = {}
        self.steps = backend.zeros((len(parameters),), int64)
        self.step_classes: tuple[int, ...] = (0,) * len(parameters)
        self._nonfinite: Array = None
        shared = [parameter._sharding for _, parameter in parameters if parameter._sharding is not None]
        self.shardings = {sharding.groups: sharding for sharding in shared}
        self.stages = next((parameter._stages for _, parameter in parameters if parameter._stages is not None), None)

    def _aligned_zeros(self, dtype: DType, size: int | None = None) -> Array:
        padding, size = ALIGNMENT // dtype.itemsize, self.size if size is None else size
        raw = self.backend.zeros((size + padding,), dtype)
        address = getattr(raw, "__array_interface__", {"data": (0,)})["data"][0]
        start = -address % ALIGNMENT // dtype.itemsize
        flat = raw[start : start + size]
        if size == self.size:  # all segments
            divide([flat[first : first + n] for first, n in zip(self.starts, self._sizes, strict=True)])
        return flat

    def move_in(self, parameters: Sequence[tuple[int, Parameter]], mirrors: bool = False) -> list[Segment]:
        """Make the parameters, those that it was made for, views of its memory. -> their segments.

        mirrors: the parameters stay where they are, and the arena has copies of them, which every step reads and writes
        back.
        """
        members = enumerate(zip(parameters, self.starts, strict=True))
        segments = [Segment(self, i, number, p, start) for i, ((number, p), start) in members]
        with backends.device_guard(self.master):
            for segment in segments:
                self._move_in(segment, mirrors and not self.is_shared)
        return segments

    def _move_in(self, segment: Segment, mirrors: bool) -> None:
        parameter, previous = segment.parameter, segment.parameter._arena_segment
        has_master = previous is not None and previous.owns_parameter()
        if not self.is_shared:  # another process may change it meanwhile
            segment.view(self.master)[...] = previous.master_weights() if has_master else parameter.array
        segment.array = segment.view(self.copy(segment.dtype) if segment.dtype in LOW else self.master)
        if not self.is_shared:
            segment.array[...] = parameter.array
        segment.take_gradient()
        if mirrors:
            segment.mirror, segment.array, segment.needs_refresh = segment.array, parameter.array, True
        elif not self.is_shared:
            parameter._version_counter = VersionCounter(parameter._version_counter[:1])  # of this memory
        parameter.array, parameter._segment, parameter._cast_copies = segment.array, segment.reference, None

    def copy(self, dtype: DType) -> Array:
        """The flat 16-bit copy of the master weights in `dtype`; created on first use, as zeros."""
        if dtype == self.master.dtype:
            return self.master
        if dtype not in self.copies:  # two threads that run the model may get here at once, and then use one copy
            self.copies.setdefault(dtype, self._aligned_zeros(dtype))
        return self.copies[dtype]

    def moment(self, name: str) -> Moment:
        """The flat moment `name` of the elements `held`; created on first use, as zeros."""
        if name not in self.moments:
            self.moments[name] = self._aligned_zeros(stored_dtype(self.state_dtype, self.dtype), len(self.held))
            if self.state_dtype in IN_8_BITS:
                self.scales[name] = self.backend.zeros((len(self.held) // BLOCK,), float32)
                self.moments[name][...] = self._code(name).zero
        flat = self.moments[name]
        return Blockwise(flat, self.scales[name], self._code(name)) if name in self.scales else flat

    def hold(self, elements: range) -> None:
        """Keep the moments of these elements, a multiple of BLOCK from 0 on, and forget the others'."""
        first = elements.start - self.held.start
        for name, before in self.moments.items():
            self.moments[name] = self._aligned_zeros(before.dtype, len(elements))
            self.moments[name][...] = before[first : first + len(elements)]
        for name, before in self.scales.items():
            self.scales[name] = before[first // BLOCK : (first + len(elements)) // BLOCK].copy()
        self.held = elements

    def _code(self, name: str) -> Code:
        return code_of(self.state_dtype, name in self._non_negative)

    def moment_arrays(self) -> list[Array]:
        """The flat arrays that hold moments, and their scales."""
        return [*self.moments.values(), *self.scales.values()]

    def nonfinite_scratch(self) -> Array:
        """A flat bool array of CHUNK elements (fewer in a smaller arena), for the finite check to work in."""
        if self._nonfinite is None:
            self._nonfinite = self.backend.empty((min(CHUNK, self.size),), bool_)
        return self._nonfinite

    def begin_step(self, present: list[Span]) -> None:
        """Begin a step in which the spans `present`, all that have gradients, take part."""
        segments = present[0].segments if len(present) == 1 else [s for span in present for s in span.segments]
        for segment in segments:
            if segment.needs_refresh:
                segment.master_weights()
        rounds_moments = self.state_dtype != "float32"
        self.random_bits = RandomBits(*random.default.take()) if rounds_moments or self.master.dtype in LOW else None
        for _ in self.names if rounds_moments else ():
            random.default.take()
        if len(segments) != len(self.step_classes) or len(set(self.step_classes)) > 1:
            self._split_step_classes(segments)

    def _split_step_classes(self, present: list[Segment]) -> None:
        # Where only some segments of a class are present, these become a class of their own.
        sizes = Counter(self.step_classes)
        present_sizes = Counter(self.step_classes[s.index] for s in present)
        split = [number for number, size in present_sizes.items() if size != sizes[number]]
        unused = max(self.step_classes) + 1
        renumbered = dict(zip(split, range(unused, unused + len(split)), strict=True))
        numbers = list(self.step_classes)
        for segment in present:
            numbers[segment.index] = renumbered.get(numbers[segment.index], numbers[segment.index])
        if split:
            self.step_classes = _classes(numbers)

    def load_steps(self, counts: list[int]) -> None:
        """Set the number of steps that each segment has taken."""
        with backends.device_guard(self.steps):
            self.steps[...] = self.backend.asarray(counts, int64)
        self.step_classes = _classes(counts)


def _classes(numbers: list[int]) -> tuple[int, ...]:
    # The same classes by the place of their first segment, so that equal classes are equal tuples.
    first: dict[int, int] = {}
    return tuple([first.setdefault(number, place) for place, number in enumerate(numbers)])


class Span:
    """Consecutive segments of an arena, `first` to `last` (exclusive), with the padding between them, as one range.

    What optimizers and GradScalers work on: one pass over `gradient` is one over the gradients of all its parameters.
    """

    __slots__ = ("_widened", "arena", "first", "last", "segments", "start", "stop")

    def __init__(self, segments: list[Segment]):
        self.segments = segments
        self.arena, self.first, self.last = segments[0].arena, segments[0].index, segments[-1].index + 1
        self.start, self.stop = segments[0].start, segments[-1].stop
        self._widened: Array = None

    def __len__(self) -> int:
        return int(self.stop - self.start)

    @property
    def weights(self) -> Array:
        """The flat master weights as stored: with stochastic rounding in 16 bits."""
        return self.arena.master[self.start : self.stop]

    @property
    def master(self) -> Array:
        """The flat master weights in the gradients' dtype; a widened copy of 16-bit ones, which `commit` rounds."""
        if self.arena.master.dtype == self.arena.dtype:
            return self.weights
        if self._widened is None:
            self._widened = self.arena.backend.cast(self.weights, self.arena.dtype)
        return self._widened

    @property
    def random_bits(self) -> RandomBits | None:
        """What the stochastic rounding of these weights draws from in this step."""
        return None if self.arena.random_bits is None else self.arena.random_bits.skip(self.start)

    @property
    def gradient(self) -> Array:
        """The flat gradients."""
        return self.arena.gradient[self.start : self.stop]

    @property
    def copies(self) -> list[Array]:
        """The flat 16-bit copies that exist, which an update has to rewrite."""
        return [flat[self.start : self.stop] for flat in self.arena.copies.values()]

    @property
    def steps(self) -> Array:
        """How many steps these segments have taken, skipped ones not counted: 0-d int64 on the device."""
        return self.arena.steps[self.first : self.first + 1].reshape(())

    def moment(self, name: str) -> Moment:
        """The flat moment `name`, as it is stored; zeros before the first step."""
        first = self.arena.held.start
        return part(self.arena.moment(name), self.start - first, self.stop - first)

    def round(self) -> None:
        """Round a widened master, if there is one, and rewrite the copies of it."""
        if self._widened is not None:
            round_stochastically(self._widened, self.weights, self.random_bits)
            for copy in self.copies:
                narrow(self.weights, copy)

    def within(self, elements: range) -> Span | None:
        """The part of it that lies in a range of the arena's elements; None for nothing."""
        start, stop = max(self.start, elements.start), min(self.stop, elements.stop)
        segments = [segment for segment in self.segments if segment.start < stop and segment.stop > start]
        if start >= stop or not segments:
            return None
        made = Span(segments)
        made.start, made.stop = max(start, made.start), min(stop, made.stop)
        return made

    def commit(self, all_finite: Array | None) -> None:
        """End a step: round a widened master, count the step if `all_finite`, advance the parameters' versions."""
        if self._widened is not None:
            self.round()
        steps = self.arena.steps[self.first : self.last]
        np.add(steps, 1 if all_finite is None else all_finite, out=steps)
        mark_all_updated(self.segments)


def gradients_of(present: list[Span]) -> list[Any]:
    """The gradients of the parameters in spans, those that they hold as `grad`."""
    return [segment.parameter._grad for span in present for segment in span.segments]


def spans(segments: list[Segment], of_equal_steps: bool = False) -> list[Span]:
    """Group `segments`, ordered as in their arenas, into spans of neighbours; of_equal_steps: that took the same."""
    runs: list[list[Segment]] = []
    arena, index = None, -1
    for segment in segments:
        here, index_before, index = segment.arena, index, segment.index
        begins = here is not arena or index != index_before + 1
        if begins or (of_equal_steps and here.step_classes[index] != here.step_classes[index_before]):
            runs.append([])
        runs[-1].append(segment)
        arena = here
    return [Span(run) for run in runs]


def adopt(owner: Any, parameters: Sequence[Parameter], first: int = 0, storage: Storage = _DEFAULT) -> list[Segment]:
    """Move `parameters` into new arenas of the optimizer `owner`; values, versions and gradients stay the same.

    -> the segments, arena by arena, which the optimizer has to hold.

    A parameter whose memory other tensors share, or other code may write to, stays there (see flat/follow.py). A
    parameter leaves the arena that it was in, whose optimizer raises when it is used. first: the number that the
    optimizer gives to the first parameter. storage: what the options of its group say of memory.
    Raises DeviceError for parameters on several devices.
    """
    by_kind: dict[tuple[str, DType, int, bool], list[tuple[int, Parameter]]] = {}
    mirrored = [has_shared_memory(parameter) for parameter in parameters]
    overlaps = overlapping([parameter.array for parameter in parameters]) if any(mirrored) else mirrored
    for number, parameter in enumerate(parameters, first):
        dtype: DType = parameter.array.dtype
        master = dtype if storage.stochastic_rounding else accumulator(dtype)
        # Overlapping parameters are updated in turn.
        alone = overlaps[number - first] or block_of(parameter.array) is not None
        key = str(parameter.device), master, number + 1 if alone else 0, mirrored[number - first]
        by_kind.setdefault(key, []).append((number, parameter))
    if len(devices := {device for device, *_ in by_kind}) > 1:
        cure = "make a group for each device: [{'params': ...}, {'params': ...}]"
        where, got = f"{type(owner).__name__}, parameter group", ", ".join(sorted(devices))
        raise DeviceError(where, "parameters on one device", got, cure)
    found: list[Segment] = []
    for (_, dtype, _, mirrors), members in by_kind.items():
        backend = backends.backend_of(members[0][1].array)
        found += Arena(owner, backend, dtype, members, storage.state_dtype).move_in(members, mirrors)
    return found


def has_shared_memory(parameter: Parameter) -> bool:
    """Whether other tensors share the memory of a parameter, or other code may write to it."""
    version = parameter._version_counter  # which all of them hold, as do this name and getrefcount
    return (len(version) > 1 and version[1] != 0) or sys.getrefcount(version) > 3
