"""Compiled steps: a training step captured once as a CUDA graph and replayed as a whole.

On a GPU the first calls run eagerly; then one is captured, and later calls launch the graph, with new batches, learning
rates, loss scales and random numbers, and bitwise the results of eager calls. On a CPU, which has no launch overhead to
hide, every call runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from typing import Any
from weakref import WeakValueDictionary

from .. import backends
from ..backends.determinism import are_deterministic_algorithms_enabled
from ..backends.precision import convolutions_use_tf32, get_float32_matmul_precision
from ..base.errors import AmpkitError, ArgumentError, StateError
from . import random
from .autograd.grad_mode import _recording
from .nested import tensors_in, with_tensors
from .op import Op
from .policy import _stack
from .tensor import Tensor, recorders

WARMUP_CALLS = 3  # eager calls before the capture: they compile kernels, plan products and allocate what persists
MAX_GRAPHS = 8  # of one step; calls with yet other shapes run eagerly
MAX_FAILURES = 3  # captures that ran out of memory; from then on such calls run eagerly, as those in between do


def compile(step: Callable[..., Any] | None = None, *, warmup: int = WARMUP_CALLS) -> Any:
    """`step` as a callable that is recorded on a GPU and launched as one graph; also a decorator.

    step: a function or a module: forward, backward, and what an optimizer and a GradScaler do. Tensors among its
    arguments may have new values at every call; other shapes, dtypes or other arguments are recorded anew, up to 8
    kinds, and beyond that run eagerly. warmup: how many calls of a kind run eagerly before it is recorded; they are
    real steps. What it returns is new memory at every call. A step whose result is still on the tape, such as a model's
    forward alone, runs eagerly, as every step does on a CPU.

    What a step closes over is that of the recording: names that are bound anew afterwards change nothing, and the
    recording keeps what it uses. Values may change in place; a model that moves or gets another dtype is recorded anew.
    Recordings of a device share the memory of their temporaries.

    Raises ArgumentError for something that cannot be called. At the recording, StateError for a step that needs the
    host between its start and its end (`loss.item()`, `if loss > 1`, data that comes from the host), naming the op; and
    OutOfMemoryError as an eager call does; the next calls run eagerly then, and another recording is tried.
    """
    if step is None:
        return lambda f: compile(f, warmup=warmup)
    if not callable(step):
        raise ArgumentError("compile", "a function or a module", f"a {type(step).__name__}")
    if not isinstance(warmup, int) or warmup < 1:
        raise ArgumentError("compile", "warmup from 1", repr(warmup))
    return Compiled(step, warmup)


def shared_memory(backend: Any) -> AbstractContextManager[Any]:
    """Within the block eager work takes its memory where recorded steps have their temporaries, and so adds none.

    For an evaluation between the steps of a training. Nothing where steps are not recorded.
    """
    return backend.graph_pool().use() if hasattr(backend, "graph_pool") else nullcontext()


class Compiled:
    """A step wrapped by `compile`: one `_Variant` per kind of arguments."""

    def __init__(self, step: Callable[..., Any], warmup: int):
        self.step, self.warmup = step, warmup
        self._variants: dict[Any, _Variant] = {}
        update_wrapper(self, step, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = list(tensors_in((args, kwargs)))
        backend = _backend(given)
        if not hasattr(backend, "graph") or backend.recording is not None:  # on a CPU, or within another recording
            return self.step(*args, **kwargs)
        key = _frozen((args, kwargs)), _region(backend.name)
        if key not in self._variants and len(self._variants) < MAX_GRAPHS:
            self._variants[key] = _Variant(backend, self.step)
        kind = self._variants.get(key)
        if kind is None or kind.eager:
            return self.step(*args, **kwargs)
        with backend.here():
            return kind.warm(args, kwargs) if kind.calls < self.warmup else kind(args, kwargs, given)


class _Variant:
    """The calls with arguments of the same shapes and dtypes, in the same region, and their graph."""

    def __init__(self, backend: Any, step: Callable[..., Any]):
        self.backend, self.step, self.graph = backend, step, backend.graph()
        self.calls, self.failures, self.eager = 0, 0, False
        self.inputs: list[Tensor] = []  # static inputs: the recording reads its arguments there
        self.out: Any = None
        self.draws = 0  # random draws of a step
        self.changes: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # tensors that a step changes in place
        self.copies: list[tuple[Tensor, Any, Any]] = []  # (tensor, dtype, cast): casts that it reads and does not make
        self.known: dict[int, int] = {}  # the versions of the tensors of those casts
        self.filled: list[Tensor] = []  # tensors whose casts a launch makes
        self.owners: dict[int, object] = {}  # objects whose memory it uses
        self.used: dict[int, tuple[Tensor, Any]] = {}  # tensors that it uses and does not make, with their arrays

    def warm(self, args: Any, kwargs: Any) -> Any:
        """An eager call, in the memory that the recording will use."""
        self.calls += 1
        state = random.default.state()
        try:
            return self._eagerly(args, kwargs)
        except MemoryError:
            random.default.restore(state)  # as after a failed capture: the step can be repeated
            raise

    def _eagerly(self, args: Any, kwargs: Any) -> Any:
        with self.graph.pool.use():
            out = self.step(*args, **kwargs)
            self.eager = any(_is_live(t._tape_node) for t in tensors_in(out))
            if not self.eager:
                with self.graph.pool.outside():
                    out = with_tensors(out, (Tensor(t.array.copy()) for t in tensors_in(out)))
        return out

    def __call__(self, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
        """A call that launches the recording, which the first one makes."""
        if any(tensor.array is not array for tensor, array in self.used.values()):  # moved to another device or dtype
            self._forget()
            self.calls = 0
            return self.warm(args, kwargs)
        if self.graph.recording is None:
            self._forget()
            self._record(args, kwargs, given)
        self.graph.raise_earlier()
        made = [self.backend.empty(t.array.shape, t.array.dtype) for t in tensors_in(self.out)]
        fresh = [(copy, tensor._cast(dtype)) for tensor, dtype, copy in self.copies if self._stale(tensor)]
        if self.graph.recording is None:  # its memory was released to allocate those
            return self.warm(args, kwargs)
        return self._launch(given, made, fresh)

    def _stale(self, tensor: Tensor) -> bool:
        """Whether other code changed the tensor since the last launch."""
        return tensor._version_counter[0] != self.known[id(tensor)]

    def _launch(self, given: list[Tensor], made: list[Any], fresh: list[tuple[Any, Any]]) -> Any:
        # From here on nothing is allocated, so that no launch fails half-way.
        seed, call = random.default.state()
        random.default.restore((seed, call + self.draws))
        for held, new in zip(self.inputs, given, strict=True):
            held.array[...] = new.array
        for copy, values in fresh:
            copy[...] = values
        self.graph.launch(seed, call)
        for tensor in self.changes.values():
            _written(tensor)
        self.known = {id(t): t._version_counter[0] for t, _, _ in self.copies}
        for result, recorded in zip(made, tensors_in(self.out), strict=True):
            result[...] = recorded.array
        return with_tensors(self.out, map(Tensor, made))

    def _record(self, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        self.inputs = [Tensor(t.array.copy(), t.requires_grad) for t in given]
        args, kwargs = with_tensors((args, kwargs), iter(self.inputs))
        state = random.default.state()

        def work() -> Any:
            out = self.step(*args, **kwargs)
            return with_tensors(out, (Tensor(self.backend.recording.address(t.array)) for t in tensors_in(out)))

        recorders.append(self)
        try:
            self.out = self.graph.record(work, *state)
            self.draws = random.default.state()[1] - state[1]
        except MemoryError:
            self.failures += 1
            self.calls, self.eager = 0, self.failures == MAX_FAILURES
            raise
        except Exception as error:
            raise _cannot(error) from error
        finally:
            recorders.remove(self)
            random.default.restore(state)
            if self.graph.recording is None:
                self._forget()
            self.filled = []
        self.known = {id(t): t._version_counter[0] for t, _, _ in self.copies}

    def _forget(self) -> None:
        # After a capture that failed, or whose memory was released: the casts that it should have written are stale,
        # and its memory is freed with the last reference.
        for tensor in (*self.changes.values(), *self.filled):
            tensor.changed()
        self.inputs, self.copies, self.out = [], [], None
        self.used, self.owners, self.changes = {}, {}, WeakValueDictionary()
        self.graph.drop()

    # notifications during a capture (see tensor.recorders)

    def changed(self, tensor: Tensor) -> None:
        """A tensor's values changed in place."""
        self.changes[id(tensor)] = tensor
        self.backend.recording.keep([tensor.array])

    def read(self, tensor: Tensor, dtype: Any, copy: Any) -> None:
        """A cached cast of a tensor to `dtype` was read."""
        self.copies.append((tensor, dtype, copy))

    def made(self, tensor: Tensor) -> None:
        """A cast of a tensor was made and cached."""
        self.filled.append(tensor)

    def uses(self, owner: object) -> None:
        """An object's memory is used, such as an optimizer's."""
        self.owners[id(owner)] = owner

    def met(self, tensors: Iterable[Any]) -> None:
        """An op has read tensors."""
        recording = self.backend.recording
        for tensor in tensors:
            if isinstance(tensor, Tensor) and not recording.owns(tensor.array):
                self.used[id(tensor)] = (tensor, tensor.array)


def _written(tensor: Tensor) -> None:
    segment = getattr(tensor, "_arena_segment", None)
    if segment is not None and segment.owns_parameter():
        segment.mark_updated()  # its 16-bit copies too
    else:
        tensor.changed()


def _backend(given: list[Tensor]) -> Any:
    held = [backends.backend_of(t.array) for t in given]
    return next((b for b in held if b.name != "cpu"), backends.get())


def _frozen(value: Any) -> Any:
    # The key of a variant: tensors by shape, dtype and device, numbers and text by value, all else by identity.
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device, value.requires_grad
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return (type(value), value if isinstance(value, (bool, int, float, str, bytes)) else id(value))


def _region(backend: str) -> tuple[Any, ...]:
    region = _stack.get()
    settings = get_float32_matmul_precision(), convolutions_use_tf32(), are_deterministic_algorithms_enabled()
    return None if region is None else region.policies[backend], _recording.get(), settings


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


def _is_live(node: Any) -> bool:
    # Whether no backward pass has used up the graph of an output.
    return node is not None and node.saved is not None and not node.used
