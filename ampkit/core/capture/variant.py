"""The calls of one kind of a compiled step, and the graph that they launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary, ref

from ... import backends
from ...backends.launch_queue import Log, queue
from ...base.errors import AmpkitError, StateError
from .. import random
from ..nested import tensors_in, with_tensors
from ..op import Op
from ..tensor import Tensor, guard_reads
from .guards import Guards, described, leave_gradient
from .host_needs import HostNeeds
from .inputs import SHARES, Before, StaticInputs, is_live, shares
from .recorder import Recorder, recorders

MAX_FAILURES = 3  # captures that ran out of memory; from then on such calls run eagerly, as those in between do


class Variant(Recorder):
    """The calls with arguments of the same shapes and dtypes, in the same region, and their graph.

    guards: what they read on the host, which has to be the same, too. sizeless: their arguments, but for sizes.
    """

    def __init__(self, backend: Any, step: Callable[..., Any], arguments: Any, sizeless: Any = None):
        self.backend, self.step, self.graph, self.sizeless = backend, step, backend.graph(), sizeless
        self.calls, self.failures = 0, 0
        self._changed_host = False  # by a recording that failed, so that the step cannot be repeated
        self.eager = ""  # why it runs eagerly from now on
        self.guards = Guards(backend.name, step, arguments)
        self.inputs: list[Tensor] = []  # the recording reads its arguments there
        self.static: Any = None  # the StaticInputs that hold these
        self.changed_inputs: list[int] = []  # the places of those that it changes
        self.counters: dict[int, Any] = {}  # version counters of memory that no argument may share
        self.out: Any = None
        self.log = Log()  # of the recording
        self.draws = 0  # random draws of a step
        self.changes: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # tensors that a step changes in place
        self.copies: list[tuple[Tensor, Any, Any]] = []  # (tensor, dtype, cast): casts that it reads and does not make
        self.known: dict[int, int] = {}  # the versions of the tensors of those casts
        self.filled: list[ref[Tensor]] = []  # tensors whose casts a launch makes
        self.owners: dict[int, object] = {}  # objects whose memory it uses
        self.used: dict[int, tuple[Tensor, Any]] = {}  # tensors that it uses and does not make, with their arrays
        self.gradients: list[tuple[Tensor, Any, Any]] = []  # leaves, their gradients after the step, and scale tags

    def warm(self, args: Any, kwargs: Any, given: list[Tensor], last: bool = False) -> Any:
        """An eager call, in the memory that the recording will use; last: the next one is to be recorded."""
        self.calls = 1 if self.guards.follows_memory() else self.calls + 1  # the first one in that memory
        state = random.default.state()
        try:
            if not last:
                return self._eagerly(args, kwargs, given)
            with HostNeeds(self.backend, transfers=self.calls > 1) as needs:  # a first call brings what it keeps
                out = self._eagerly(args, kwargs, given)
            if not (self.calls > 1 and self.guards.changed_by_step):  # the next call says that, which is more
                self.eager = self.eager or needs.reason
            return out
        except BaseException as error:
            self.calls -= 1  # nothing is known of what it does to its arguments
            if isinstance(error, MemoryError):
                random.default.restore(state)  # as after a failed capture: the step can be repeated
            raise

    def _eagerly(self, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        self.guards.begin_call()
        recorders.append(self.guards)
        try:
            out = self._called(args, kwargs, Before(given))
        finally:
            recorders.remove(self.guards)
            self.guards.end_call()
        return out

    def _called(self, args: Any, kwargs: Any, before: Before) -> Any:
        with self.graph.pool.use():
            out = self.step(*args, **kwargs)
            self.eager = self._why_eager(out) or before.why_eager(self.guards)
            if not self.eager:
                with self.graph.pool.outside():
                    out = with_tensors(out, (Tensor(t.array.copy()) for t in tensors_in(out)))
        return out

    def __call__(self, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """A call that launches the recording, which the first one makes."""
        moved = any(tensor.array is not array for tensor, array in self.used.values())  # to another device or dtype
        if moved or (self.graph.recording is None and self.guards.follows_memory()):
            self._forget()
            self.calls = 0
            return self.warm(args, kwargs, given)
        if self.graph.recording is None:
            if self.calls > 1 and self.guards.changed_by_step:  # not only by a first call, which keeps what it makes
                self._run_eagerly()
                return self.step(*args, **kwargs)
            self._forget()
            try:
                self._record(args, kwargs, given)
            except StateError as error:
                self.eager = str(error).splitlines()[0].removeprefix("compile: ")
                if self._changed_host or self.guards.changed_by_step:
                    raise
                return self.step(*args, **kwargs)
        elif shares(given, self.counters):
            self.eager = SHARES
            self._forget()
            return self.step(*args, **kwargs)
        self.graph.raise_earlier()
        made = [self.backend.empty(t.array.shape, t.array.dtype) for t in tensors_in(self.out)]
        # The casts of tensors that other code has changed since the last launch.
        changed = [each for each in self.copies if each[0]._version_counter[0] != self.known[id(each[0])]]
        fresh = [(copy, tensor._cast(dtype)) for tensor, dtype, copy in changed]
        if self.graph.recording is None:  # its memory was released to allocate those
            return self.warm(args, kwargs, given)
        out = self._launch(given, made, fresh)
        if self.guards.changed_by_step:  # by the capture just made: later launches would not change it
            self._run_eagerly()
        return out

    def _run_eagerly(self) -> None:
        self.eager = f"the step changes on the host what it reads: {described(self.guards.changed_by_step[0])}"
        self.guards.release_changed()
        self._forget()

    def _why_eager(self, out: Any) -> str:
        if any(is_live(t._tape_node) for t in tensors_in(out)):
            return "its result is still on the tape"
        return "it leaves gradients of leaves that no optimizer holds" if self.guards.leaves_gradients() else ""

    def _launch(self, given: list[Tensor], made: list[Any], fresh: list[tuple[Any, Any]]) -> Any:
        # From here on nothing is allocated, so that no launch fails half-way.
        seed, call = random.default.state()
        random.default.restore((seed, call + self.draws))
        self.static.fill(given)
        for copy, values in fresh:
            copy[...] = values
        self.graph.launch(seed, call)
        for tensor in self.changes.values():
            _written(tensor)
        for i in self.changed_inputs:
            backends.backend_of(given[i].array).copy(given[i].array, self.inputs[i].array)
            _written(given[i])
        for leaf, *after in self.gradients:
            leave_gradient(leaf, *after)
        self.known = {id(t): t._version_counter[0] for t, _, _ in self.copies}
        for result, recorded in zip(made, tensors_in(self.out), strict=True):
            result[...] = recorded.array
        return with_tensors(self.out, map(Tensor, made))

    def _record(self, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        self.static = StaticInputs(given)
        self.inputs = self.static.tensors
        args, kwargs = with_tensors((args, kwargs), iter(self.inputs))
        state = random.default.state()

        def work() -> Any:
            out, log = queue.run_step(self.step, args, kwargs, self.backend.chains())
            self.log = log or self.log
            return with_tensors(out, (Tensor(self.backend.recording.address(t.array)) for t in tensors_in(out)))

        guard_reads()
        self.guards.begin_call()
        recorders.extend((self.guards, self))
        try:
            self.out = self.graph.record(work, *state)
            self.gradients = self.guards.gradients_left()
            self.draws = random.default.state()[1] - state[1]
            self.changed_inputs = self.static.changed()
            self.counters = self._shared_counters()
        except MemoryError:
            self.failures += 1
            self.calls = 0
            if self.failures == MAX_FAILURES:
                self.eager = f"{MAX_FAILURES} recordings ran out of memory"
            raise
        except Exception as error:
            self._changed_host = bool(self.owners)  # an optimizer or a scaler, which know how far the step came
            raise _cannot(error) from error
        finally:
            recorders.remove(self)
            recorders.remove(self.guards)
            if self.graph.recording is None:
                self.guards.restore_streams()
            self.guards.end_call()
            random.default.restore(state)
            if self.graph.recording is None:
                self._forget()
                self.guards.restore_gradients()
            self.filled = []
        self.known = {id(t): t._version_counter[0] for t, _, _ in self.copies}
        if shares(given, self.counters):
            self._changed_host = bool(self.owners)
            self._forget()
            self.guards.restore_gradients()
            needs = "arguments that share no memory with what the step changes"
            raise StateError("compile", needs, "one that does", "pass a clone, or let the step refer to it")

    def _forget(self) -> None:
        # After a capture that failed, or whose memory was released: the casts that it should have written are stale,
        # and its memory is freed with the last reference.
        for tensor in (*self.changes.values(), *[each() for each in self.filled]):
            if tensor is not None:
                tensor.changed()
        self.inputs, self.static, self.copies, self.out, self.gradients = [], None, [], None, []
        self.changed_inputs, self.counters = [], {}
        self.used, self.owners, self.changes = {}, {}, WeakValueDictionary()
        self.graph.drop()

    def _shared_counters(self) -> dict[int, Any]:
        # Of tensors that the step changes and are no arguments; where it changes arguments, of all that it uses.
        inputs = {id(tensor) for tensor in self.inputs}
        used = [tensor for tensor, _ in self.used.values()] if self.changed_inputs else []
        counters = [t._version_counter for t in (*self.changes.values(), *used) if id(t) not in inputs]
        return {id(counter): counter for counter in counters}

    # notifications during a capture (see recorder.py)

    def changed(self, tensor: Tensor) -> None:
        self.changes[id(tensor)] = tensor
        self.backend.recording.keep([tensor._array])
        self.backend.recording.writes(tensor._array)

    def exposed(self, tensor: Tensor) -> None:
        if self.backend.recording is not None:
            self.backend.recording.writes(tensor._array)

    def read(self, tensor: Tensor, dtype: Any, copy: Any) -> None:
        if not self.backend.recording.owns(tensor._array):  # whose casts are of the recording, too
            self.copies.append((tensor, dtype, copy))

    def made(self, tensor: Tensor) -> None:
        self.filled.append(ref(tensor))

    def uses(self, owner: object) -> None:
        self.owners[id(owner)] = owner

    def met(self, tensors: Iterable[Any]) -> None:
        recording = self.backend.recording
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not recording.owns(tensor._array):
                self.used[id(tensor)] = (tensor, tensor._array)
                if all(tensor is not held for held in self.inputs):  # those are freed with the recording
                    self.guards.add_tensor(tensor)


def _written(tensor: Tensor) -> None:
    segment = getattr(tensor, "_arena_segment", None)
    if segment is not None and segment.owns_parameter():
        segment.mark_updated()  # its 16-bit copies too
    else:
        tensor.changed()


def _cannot(error: Exception) -> AmpkitError:
    # Name the op that ran when the capture failed, and the reason.
    name, trace = "", error.__traceback__
    while trace is not None:
        held = trace.tb_frame.f_locals.get("op", trace.tb_frame.f_locals.get("self"))
        name = held.name if isinstance(held, Op) else name
        trace = trace.tb_next
    said = (str(error).splitlines() or [type(error).__name__])[0]
    got = f"{name or 'something'} that needs the host: {said}"
    cure = "read values (item, float, if) after the step, and bring batches to the device before it"
    return StateError("compile", "a step that the device can do alone", got, cure)
