"""Compiled steps: on a GPU captured once as a CUDA graph and replayed as a whole, on a CPU run as they are.

On a GPU the first calls run eagerly; then one is captured, and later calls launch the graph, with new batches, learning
rates, loss scales and random numbers, and bitwise the results of eager calls. On a CPU, which has no launch overhead to
hide, every call runs the step's Python. On both, elementwise launches wait for each other and run together, with the
same bits (see backends/launch_queue.py).
"""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ... import backends
from ...backends.cpu import cpuinfo
from ...backends.cpu.caching_allocator import allocator
from ...backends.cpu.native.library import instruction_set
from ...backends.cpu.onednn.library import isa
from ...backends.determinism import are_deterministic_algorithms_enabled
from ...backends.launch_queue import Log, queue
from ...backends.precision import convolutions_use_tf32, get_float32_matmul_precision
from ...base import dtypes, observe
from ...base.errors import ArgumentError, StateError, check_choice, switch
from .. import policy
from ..autograd import saved_hooks
from ..autograd.grad_mode import is_grad_enabled, is_inference_mode_enabled
from ..dispatch import is_reference_only
from ..dispatch.tuning import Choices
from ..nested import tensors_in
from ..tensor import Tensor, guard_reads
from .anew import computing_anew
from .host_reads import PLAIN
from .inputs import key_of, sharing
from .report import Memory, Report, report_of_cpu, report_of_gpu
from .variant import Variant

WARMUP_CALLS = 3  # eager calls before the capture: they compile kernels, plan products and allocate what persists
MAX_GRAPHS = 8  # of one step; calls of yet other kinds run eagerly
MAX_KINDS = 64  # of calls that are looked at; a step that met so many changes at every call, and new kinds run eagerly
MODES = ("default", "reduce-overhead", "max-autotune")


def compile(
    step: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    warmup: int = WARMUP_CALLS,
    choices: str | PathLike[str] | None = None,
) -> Any:
    """`step` as a callable that is recorded on a GPU and launched as one graph, and fused on a CPU; also a decorator.

    step: a function or a module: forward, backward, and what an optimizer and a GradScaler do. Tensors among its
    arguments may have new values at every call, and the step may change them in place; other shapes, layouts, dtypes or
    other arguments are recorded anew, up to 8 kinds, and beyond that run eagerly. warmup: how many calls of a kind run
    eagerly before it is recorded; they are real steps. What it returns is new memory at every call. On a GPU a step
    whose result is still on the tape, such as a model's forward alone, runs eagerly, and so does one that reads or
    writes the gradient of an argument, or changes memory that an argument shares with what is not that argument.

    Elementwise launches that follow each other, of forward, backward and casts, run together: what only they read is
    never stored. Each still rounds to its dtype, so that results have the bits of an eager call. `report()` of what
    this returns says what was fused, what was not and why. On a GPU they are one generated kernel, compiled at the
    recording; where that fails, they run one by one, with a RuntimeWarning. On a CPU, where every call runs the step's
    Python, they run tile by tile.

    fullgraph, dynamic, mode: PyTorch's words. fullgraph: raise StateError where a kind of call would run eagerly for
    good. dynamic: whether sizes of tensors change from call to call. On a CPU it has no effect, as nothing is recorded
    and chains take any sizes. A graph of a GPU has fixed sizes: with True the sizes that come back first are recorded,
    and calls of all others run eagerly, so that no length costs a recording; pad to few sizes where most calls should
    be launched. With None and False each of up to 8 sizes is recorded. mode: "default" and "reduce-overhead" do the
    same, as a graph has no overhead to reduce. "max-autotune" times on a CPU the kernels that a product or convolution
    may take, each call of its shapes, dtypes and layouts once, and keeps the fastest; a GPU goes on as by default. The
    bits of a step are then those of the kernels chosen, and others than an eager step's. choices: the file that the
    choice is written to, before the call returns that made it, and read from: beside a run's checkpoints, it lets the
    run go on bit for bit. A file of another version or computer, or one that broke off, is left as it is: a
    RuntimeWarning says so, and the kernels are those of the other modes.

    Values of tensors on the device may change between calls. Where something else has changed that the step read on the
    host, it is another kind of call and recorded anew: `training`, `requires_grad`, hyperparameters, hooks, settings,
    numbers in closures, globals, attributes, lists and dicts, models that moved. A step that itself changes what it
    reads there (it counts, appends to a list, draws from Python's random numbers) runs eagerly; `eager_because` of what
    this returns says so. Not seen: what comes from files, the time, the environment, behind weak references, or from
    lists of more than 64 items. A recording keeps what it uses; those of a device share memory of temporaries.

    A step that needs the host between its start and its end (`loss.item()`, `if loss > 1`, data that comes from the
    host), or that prints, writes to files or reads the time, runs eagerly too. Each reason is one RuntimeWarning, which
    names the line.

    Raises ArgumentError for something that cannot be called, or another mode. OutOfMemoryError at a recording, as an
    eager call does; the next calls run eagerly then, and another recording is tried. StateError where a recording fails
    after an optimizer or a scaler has begun its step, which cannot be repeated then; the next calls run eagerly.
    """
    if step is None:
        return lambda f: compile(f, fullgraph=fullgraph, dynamic=dynamic, mode=mode, warmup=warmup, choices=choices)
    if not callable(step):
        raise ArgumentError("compile", "a function or a module", f"a {type(step).__name__}")
    if not isinstance(warmup, int) or warmup < 1:
        raise ArgumentError("compile", "warmup from 1", repr(warmup))
    if mode is not None:
        check_choice("compile", "mode", mode, *MODES)
    if choices is not None and mode != "max-autotune":
        raise ArgumentError("compile", "mode='max-autotune' where choices names a file", f"mode={mode!r}")
    chosen = _choices(choices) if mode == "max-autotune" else None
    varies = dynamic is not None and switch("compile", "dynamic", dynamic)
    return Compiled(step, warmup, switch("compile", "fullgraph", fullgraph), varies, chosen)


def shared_memory(backend: Any) -> AbstractContextManager[Any]:
    """Within the block eager work takes its memory where recorded steps have their temporaries, and so adds none.

    For an evaluation between the steps of a training. Nothing where steps are not recorded.
    """
    return backend.graph_pool().use() if hasattr(backend, "graph_pool") else nullcontext()


class Compiled:
    """A step wrapped by `compile`: one `Variant` per kind of arguments."""

    def __init__(
        self,
        step: Callable[..., Any],
        warmup: int,
        fullgraph: bool = False,
        dynamic: bool = False,
        choices: Choices | None = None,
    ):
        self.step, self.warmup, self.fullgraph, self.dynamic, self.choices = step, warmup, fullgraph, dynamic, choices
        self._log, self._memory = Log(), Memory()  # of the last call on a CPU
        self._device = "cpu"
        self._variants: dict[Any, Variant] = {}  # by the arguments' key and a number
        self._made = 0  # kinds so far
        self.eager_because: list[str] = []  # why calls of some kinds run eagerly
        update_wrapper(self, step, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = list(tensors_in((args, kwargs)))
        backend = _backend(given)
        self._device = backend.device
        if not hasattr(backend, "graph"):
            return self._fused(args, kwargs)
        if backend.recording is not None or observe.observers:  # which look at the single ops
            return self.step(*args, **kwargs)
        key = _frozen((args, kwargs)), sharing(given), _region(backend.name)
        sizeless = _frozen((args, kwargs), sizes=False) if self.dynamic else None
        if self.dynamic and self._only_sizes_differ(key, sizeless):
            self._note("a graph has fixed sizes, and with dynamic=True no other is recorded for these")
            kind = None
        else:
            kind = self._kind(key) or self._new_kind(key, backend, (args, kwargs), sizeless)
        if kind is None or kind.eager:
            self._note("" if kind is None else kind.eager)
            self._need_graph()
            return self.step(*args, **kwargs)
        with backend.here():
            warm = kind.calls < self.warmup
            last = kind.calls == self.warmup - 1
            out = kind.warm(args, kwargs, given, last) if warm else kind(args, kwargs, given)
        if kind.eager:
            self._note(kind.eager)
            self._need_graph()
        return out

    def report(self) -> Report:
        """What was fused, what was not and why: of the last call on a CPU, or of the recordings on a GPU.

        Its text is a table; before any call, of a CPU on which nothing ran.
        """
        if self._device == "cpu":
            return report_of_cpu(self._log, self._memory, {} if self.choices is None else self.choices.kernels)
        recorded = [kind for kind in self._variants.values() if kind.graph.recording is not None]
        most = max((kind.graph.footprint.nbytes for kind in recorded), default=0)
        return report_of_gpu(self._device, [kind.log for kind in recorded], self.eager_because, most)

    def __getattr__(self, name: str) -> Any:
        # what it does not have itself: of a module that is compiled, its parameters, `train`, `state_dict`
        if name.startswith("__") or "step" not in vars(self):
            raise AttributeError(name)
        return getattr(self.step, name)

    def _fused(self, args: Any, kwargs: Any) -> Any:
        guard_reads()
        with computing_anew() as left_out, self.choices or nullcontext(), allocator().measured() as peak:
            out, log = queue.run_step(self.step, args, kwargs)
        if log is not None:
            self._log, self._memory = log, Memory(peak[0], left_out)
        return out

    def _need_graph(self) -> None:
        if self.fullgraph and self.eager_because:
            raise StateError("compile", "a step that is recorded whole, with fullgraph=True", self.eager_because[-1])

    def _kind(self, key: Any) -> Variant | None:
        """The kind of call with these arguments and with what the step reads on the host as it is now."""
        for (known, _), kind in self._variants.items():
            if known == key and kind.guards.hold():
                return kind
        return None

    def _new_kind(self, key: Any, backend: Any, arguments: Any, sizeless: Any) -> Variant | None:
        if len(self._variants) == MAX_GRAPHS:  # one that was never recorded, and for whose state that has gone
            gone = [k for k, kind in self._variants.items() if kind.graph.recording is None and not kind.guards.hold()]
            if not gone:
                self._note(f"there were {MAX_GRAPHS} kinds of calls before")
                return None
            del self._variants[gone[0]]
        if self._made == MAX_KINDS:
            self._note(f"there were {MAX_KINDS} kinds of calls before")
            return None
        self._made += 1
        kind = self._variants[key, self._made] = Variant(backend, self.step, arguments, sizeless)
        return kind

    def _only_sizes_differ(self, key: Any, given: Any) -> bool:
        """Whether graphs of calls that differ from this one in sizes alone are recorded, and none of its own sizes."""
        recorded = [(known, kind) for (known, _), kind in self._variants.items() if kind.graph.recording is not None]
        return all(known != key for known, _ in recorded) and any(kind.sizeless == given for _, kind in recorded)

    def _note(self, reason: str) -> None:
        if reason and reason not in self.eager_because:
            self.eager_because.append(reason)
            if not self.fullgraph:
                warnings.warn(f"compile: runs eagerly: {reason}", RuntimeWarning, stacklevel=3)


def _choices(path: Any) -> Choices:
    package: Any = sys.modules[__name__.partition(".")[0]]  # which is above this layer
    versions = {"ampkit": package.__version__, "numpy": np.__version__}
    processor = {
        "CPU": cpuinfo.entry("model name") or platform.machine(),
        "oneDNN": isa(),
        "kernels": instruction_set(),
    }
    return Choices(None if path is None else Path(path), versions | processor)


def _backend(given: list[Tensor]) -> Any:
    held = [backends.backend_of(t.array) for t in given]
    return next((b for b in held if b.name != "cpu"), backends.get())


def _frozen(value: Any, sizes: bool = True) -> Any:
    # The key of a variant: tensors by shape, dtype and device, numbers and text by value, all else by identity. Without
    # sizes: tensors by how many axes they have, and whole numbers by their type, as they may be lengths.
    if isinstance(value, Tensor):
        return key_of(value, sizes)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_frozen(item, sizes) for item in value])
    if isinstance(value, dict):
        return tuple([(key, _frozen(item, sizes)) for key, item in value.items()])
    if type(value) is int and not sizes:
        return int
    if isinstance(value, slice):
        return (slice, *[_frozen(item, sizes) for item in (value.start, value.stop, value.step)])
    if isinstance(value, (bool, int, str, bytes)):
        return type(value), value
    return type(value), repr(value) if isinstance(value, PLAIN) else id(value)  # repr: -0.0 is not 0.0


def _region(backend: str) -> tuple[Any, ...]:
    region = policy.region()
    settings = get_float32_matmul_precision(), convolutions_use_tf32(), are_deterministic_algorithms_enabled()
    made = dtypes.default(), backends.get_default_device()
    modes = is_grad_enabled(), is_inference_mode_enabled(), is_reference_only(), saved_hooks.in_force()
    return (None, True) if region is None else (region.policies[backend], region.cache), *modes, settings, made
