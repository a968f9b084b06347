"""Guards of a captured step: what it read on the host, and whether that still has the same values.

A launch runs no Python: numbers, switches and names that the step read are those of the capture. So each is kept with
where it was read, and compared before a launch. A step that itself changes what it reads cannot be captured.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..autograd import hooks
from ..random import Stream
from ..tensor import Tensor
from .host_reads import MAX_ITEMS, PLAIN, Reads, Source
from .recorder import Recorder

_Guard = tuple[Callable[[Any], Any], Any, Any]  # read(key) was the value
_COMPARED = (bool, int, float, complex, str, bytes, tuple, list, frozenset, range, slice, np.generic, np.dtype)


def _global_state_of_python_random(name: str) -> Any:
    return random.getstate()


def _global_state_of_numpy_random(name: str) -> str:
    return repr(np.random.get_state())


_GLOBAL_GENERATORS: list[Source] = [(_global_state_of_python_random, ""), (_global_state_of_numpy_random, "")]


class Guards(Recorder):
    """What a step reads on the host, with the values that it has for the step.

    device: the backend that captures it, for which values of the CPU's tensors are constants. arguments: of the calls.
    changed_by_step: what the last call changed of it. _gradients: which leaves had a gradient when the step first
    asked, and where. _written: the leaves whose gradient it writes or drops. reads_host_memory: whether the last call
    read values of a tensor of the CPU.
    """

    def __init__(self, device: str, step: Callable[..., Any], arguments: Any = ()):
        self._device = device
        self.changed_by_step: list[_Guard] = []
        self._reads = Reads()
        self._guards: list[_Guard] = []
        self._generators, self._states = list(_GLOBAL_GENERATORS), list[_Guard]()
        self._gradients: dict[int, tuple[Tensor, int | None]] = {}
        self._written: dict[int, Tensor] = {}
        self._before: list[tuple[Tensor, Tensor | None, Any, Any]] = []  # those leaves, gradients, arrays, scale tags
        self._streams: list[tuple[Stream, Any]] = []  # of random numbers, with their states before the call
        self.reads_host_memory = False
        self._tensors: dict[int, Tensor] = {}
        self._arrays: list[Any] = []  # theirs after the last call
        self._seen: dict[int, Any] = {}  # modules, owners and hooks
        self._add(step, *_objects_in(arguments))

    def hold(self) -> bool:
        """Whether a call would read what the guards have."""
        if not all(_address(leaf) == at for leaf, at in self._gradients.values()):
            return False
        try:
            for read, key, old in self._guards:  # a loop of its own, as it runs before each launch
                new = read(key)
                if new is not old and not _equal(new, old):
                    return False
        except (LookupError, ValueError, AttributeError):  # it is gone
            return False
        return True

    def __len__(self) -> int:
        """How many values are compared."""
        return len(self._guards) + len(self._gradients)

    def begin_call(self) -> None:
        """Before a call that runs the step's Python."""
        self._gradients, self._written, self._before = {}, {}, []
        self.reads_host_memory = False
        self._add()
        self._states = _with_values(self._generators)
        self._streams = [(key, key.state()) for read, key, _ in self._guards if read is Stream.state]

    def end_call(self) -> None:
        """After it: take the values that the step itself has changed."""
        self.changed_by_step = [guard for guard in self._states if not _unchanged(guard)]
        for index, guard in enumerate(self._guards):
            if not _unchanged(guard):
                self.changed_by_step.append(guard)
                self._guards[index] = (*guard[:2], _value(*guard[:2]))
        self._arrays = [tensor._array for tensor in self._tensors.values()]

    def follows_memory(self) -> bool:
        """Whether a tensor that the last call used has other memory now, which optimizers follow on the host."""
        held = zip(self._tensors.values(), self._arrays, strict=False)  # some are found by a recording
        return any(tensor._array is not array for tensor, array in held)

    def release_changed(self) -> None:
        """Compare no more what the step itself changes."""
        changed = {(guard[0], id(guard[1])) for guard in self.changed_by_step}
        self._guards = [guard for guard in self._guards if (guard[0], id(guard[1])) not in changed]

    def gradients_left(self) -> list[tuple[Tensor, Any, Any]]:
        """For each leaf whose gradient the call has made or dropped: the array, None without one, and its scale tag."""
        written = [(leaf, leaf._grad) for leaf in self._written.values()]
        return [(leaf, None, None) if g is None else (leaf, g._array, g._scale_tag) for leaf, g in written]

    def leaves_gradients(self) -> bool:
        """Whether leaves that no optimizer holds have gradients after the call: memory that each call makes."""
        written = self._written.values()
        return any(leaf._grad is not None and getattr(leaf, "_arena_segment", None) is None for leaf in written)

    def touches_gradient(self, leaf: Tensor) -> bool:
        """Whether the call has read, made or dropped the gradient of `leaf`."""
        return id(leaf) in self._gradients or id(leaf) in self._written

    def restore_streams(self) -> None:
        """Let streams of random numbers draw again what the call drew, which computed nothing."""
        for stream, state in self._streams:
            stream.restore(state)

    def restore_gradients(self) -> None:
        """Give the leaves the gradients from before the call, which computed nothing: its recording failed."""
        for leaf, gradient, array, tag in self._before:
            leave_gradient(leaf, None, None)
            if gradient is not None:
                gradient.array, gradient._scale_tag, leaf._grad = array, tag, gradient

    def add_tensor(self, tensor: Tensor) -> None:
        """Compare whether `tensor` asks for a gradient, and its hooks."""
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = tensor
            constant = isinstance(tensor._array, np.ndarray) and self._device != "cpu"
            on_host = _reads_of_values(tensor) if constant else []
            self._guards += _with_values([(_asks_for_gradient, tensor), (_hooks_of, tensor), *on_host])
            for hook in hooks.registered(tensor).values():
                self._add_once(hook)

    def _add(self, *values: Any) -> None:
        found = self._reads.of(*values)
        self._guards += _with_values(found.sources)
        self._generators += found.generators
        self._states += _with_values(found.generators)
        for tensor in found.tensors:
            self.add_tensor(tensor)

    def _add_once(self, value: Any) -> None:
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._add(value)

    # notifications

    def read_on_host(self, tensor: Tensor) -> None:
        self.reads_host_memory |= isinstance(tensor._array, np.ndarray)

    def ran(self, module: Any) -> None:
        self._add_once(module)

    def uses(self, owner: object) -> None:
        self._add_once(owner)

    def reads(self, read: Callable[[Any], Any], key: Any) -> None:
        self._guards += _with_values([(read, key)])

    def asks_gradient(self, leaf: Tensor) -> None:
        if id(leaf) not in self._written:
            self._gradients.setdefault(id(leaf), (leaf, _address(leaf)))

    def writes_gradient(self, leaf: Tensor) -> None:
        if id(leaf) not in self._written:
            held = leaf._grad
            kept = (None, None, None) if held is None else (held, held._array, held._scale_tag)
            self._before.append((leaf, *kept))
        self._written[id(leaf)] = leaf


def leave_gradient(leaf: Tensor, array: Any, tag: Any) -> None:
    """Let `leaf.grad` be what a launch has written, if it is not, or None."""
    held = leaf._grad
    if array is None or held is None or held._array.data.ptr != array.data.ptr:
        leaf.drop_grad()
        leaf._grad = None if array is None else Tensor(array)
    if leaf._grad is not None:
        leaf._grad._scale_tag = tag


def described(guard: _Guard) -> str:
    """A guard in words: the name or the key of what is compared."""
    read, key, _ = guard
    if read is len:
        return f"the length of a {type(key).__name__}"
    if isinstance(key, (str, int)) and getattr(read, "__self__", None) is not None:
        return repr(key)
    return getattr(read, "__name__", "a slot").strip("_").replace("_", " ")


def _objects_in(arguments: Any) -> Iterator[Any]:
    # Tensors, numbers and text are in the key of a kind, and containers by what they hold.
    if isinstance(arguments, (list, tuple)):
        for each in arguments:
            yield from _objects_in(each)
    elif isinstance(arguments, dict):
        yield from _objects_in(list(arguments.values()))
    elif not isinstance(arguments, (Tensor, *PLAIN)):
        yield arguments


def _with_values(sources: Iterable[Source]) -> list[_Guard]:
    return [(read, key, read(key)) for read, key in sources]


def _value(read: Callable[[Any], Any], key: Any) -> Any:
    try:
        return read(key)
    except (LookupError, ValueError, AttributeError):  # it is gone
        return None


def _unchanged(guard: _Guard) -> bool:
    read, key, old = guard
    new = _value(read, key)
    return new is old or _equal(new, old)


def _equal(new: Any, old: Any) -> bool:
    # repr, which tells -0.0 from 0.0 and takes nan for equal
    if type(new) is not type(old) or not isinstance(new, _COMPARED):
        return False
    if isinstance(new, (tuple, list)):
        return len(new) == len(old) and all(a is b or _equal(a, b) for a, b in zip(new, old, strict=True))
    return bool(new == old) if isinstance(new, (frozenset, range, slice)) else repr(new) == repr(old)


def _address(leaf: Tensor) -> int | None:
    gradient = leaf._grad
    return None if gradient is None else gradient._array.data.ptr


def _reads_of_values(tensor: Tensor) -> list[Source]:
    # Of a tensor of the CPU, whose values a capture takes for constants.
    if tensor.array.size <= MAX_ITEMS:
        return [(type(tensor.array).tobytes, tensor.array)]
    return [(_version, tensor)]


def _version(tensor: Tensor) -> int:
    return tensor._version_counter[0]


def _asks_for_gradient(tensor: Tensor) -> bool:
    return tensor._edge is not None


def _hooks_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(hooks.registered(tensor))
