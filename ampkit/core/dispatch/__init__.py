"""Dispatch: which implementation of a primitive runs, and in which dtype its arrays reach it.

A primitive has one reference, plain array code that defines it, and faster kernels that backends register for it.
`Primitive.choose` alone decides which of them runs. A kernel reads arrays as they are stored; a reference reads them
in the accumulator dtype, and its result is rounded here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...backends.launch_queue import queue
from ...base.dtypes import DType, accumulator
from ...base.errors import UnsupportedError
from ...base.scoped import ScopedVariable
from ..autograd.saved import Saved, widen_saved
from ..casts import widen
from .batching.array import innermost, live_levels
from .tuning import Choices, in_force, running, signature

Function = Callable[..., Any]

_reference_only = ScopedVariable("ampkit.reference_only", False)
_reference_scope = _reference_only.scope


def reference_only() -> AbstractContextManager[None]:
    """Within the block every primitive runs its reference: faster kernels are switched off."""
    return _reference_only.holding(True)


def is_reference_only() -> bool:
    """Whether this runs within `reference_only()`."""
    return _reference_scope().value


class Sum(NamedTuple):
    """Memory that a backward adds a gradient to, among its `grad_buffers`, where its kernel can."""

    array: Any


class Kernel:
    """One implementation for one backend: `run`, its predicate `when` (None: always), a backward of its own or None.

    wants_cache: whether it receives the versions of its inputs, under which it can cache values derived from them (see
    base/version_counter.py), and in a backward the buffers that gradients may be written to. replays: whether second
    derivatives run the reference forward again, since what it saved is neither an input nor the output.
    launches: whether all that it does with arrays is to launch elementwise functions of its arguments, on a GPU also
    reductions and norms, and to return the outputs, which may wait in a compiled step (see backends/launch_queue.py).
    views: whether all that it does with its first array is to make views of it: None, or a predicate of the array.
    """

    __slots__ = (
        "dtypes", "launches", "min_elements", "name", "own_backward", "replays", "run", "views", "wants_cache", "when",
    )  # fmt: skip
    level: Any = None  # of what runs a call on batched arrays, whose samples they are (see core/dispatch/batching)

    def __init__(
        self,
        run: Function,
        when: Function | None,
        wants_cache: bool = False,
        min_elements: int = 0,
        dtypes: Function | None = None,
        launches: bool = False,
    ):
        self.launches = launches
        self.name = getattr(run, "__name__", "kernel")
        self.run, self.when, self.wants_cache, self.min_elements = run, when, wants_cache, min_elements
        self.dtypes = dtypes
        self.own_backward: Kernel | None = None
        self.replays = False
        self.views: Callable[[Any], bool] | None = None

    def backward(self, function: Function) -> Function:
        """Decorate the backward that belongs to this kernel: it runs for every node that this kernel made."""
        self.own_backward = Kernel(function, None)
        return function


class Primitive:
    """`reference` and the faster kernels that backends registered for it with `on`.

    name: as errors, observers and profiles show it. module: the path of its module below `ampkit.ops` (`nn.conv`),
    under which a backend's kernels are found. They are loaded when the primitive first runs on the backend.
    """

    def __init__(self, name: str, module: str, reference: Function):
        self.name, self.module, self.reference = name, module, Kernel(reference, None)
        self.launches = False  # by a call: what calls a primitive may read the result
        self.views: Callable[[Any], bool] | None = None
        self.writes = True  # to arrays that it is given, or reads others
        self.kernels: dict[str, list[Kernel]] = {}
        self.min_elements: float = 0  # no kernel for NumPy arrays takes a first one of fewer
        self._loaded: set[str] = set()

    def on(
        self,
        backend: str,
        when: Function | None = None,
        wants_cache: bool = False,
        min_elements: int = 0,
        dtypes: Function | None = None,
        launches: bool = False,
    ) -> Callable[[Function], Kernel]:
        """Register a faster kernel for `backend`; it runs where the predicate `when`, called like the kernel, is true.

        dtypes: a second predicate, called with the dtypes of the first array and of an op's result. launches: see
        Kernel.

        min_elements: of the first array; for fewer the predicate is not even called, which keeps small calls cheap. A
        kernel for the CPU never gets an empty one.

        A kernel receives arrays in the dtype they are stored in and, as `dtype=`, the dtype of the result. Where its
        predicate cannot foresee that it has no implementation, such as a library without an algorithm, it raises
        UnsupportedError, and the reference runs. With `wants_cache`, the kernel of an op receives `versions=`, those of
        its tensor inputs in their order, and the kernel of its backward also `grad_buffers=`: per input, memory for the
        gradient, or None (see BackwardPass.grad_buffers); for the weight of `linear` also a Sum.
        """

        def register(run: Function) -> Kernel:
            least = max(min_elements, 1) if backend == "cpu" else min_elements  # empty arrays are the reference's
            kernel = Kernel(run, when, wants_cache, least, dtypes, launches)
            if backend == "cpu":
                self.min_elements = min(self.min_elements, least)
            self.kernels.setdefault(backend, []).append(kernel)
            return kernel

        return register

    def kernels_of(self, backend: str) -> list[Kernel]:
        """The backend's kernels, loaded at the first call; those registered later join the same list."""
        if backend not in self._loaded:
            self.kernels.setdefault(backend, [])
            backends.load_kernels(backend, self.module)  # another thread that comes here waits for the import
            if backend == "cpu":
                self.min_elements = min((kernel.min_elements for kernel in self.kernels["cpu"]), default=inf)
            self._loaded.add(backend)
        return self.kernels[backend]

    def choose(
        self, backend: str, call: Function, args: Sequence[Any], params: Any, dtype: DType | None = None
    ) -> Kernel:
        """The kernel that runs on `backend`: in the order written, the first whose predicate holds, else the reference.

        call(function, args, params) calls a predicate like the kernel. dtype: of an op's result.
        """
        size = args[0].size if args and isinstance(args[0], np.ndarray) else inf
        if size < self.min_elements:
            return self.reference
        kernels = self.kernels[backend] if backend in self._loaded else self.kernels_of(backend)
        if kernels and not _reference_scope().value:
            for kernel in kernels:
                if size < kernel.min_elements or not (kernel.when is None or call(kernel.when, args, params)):
                    continue
                if dtype is None or kernel.dtypes is None or kernel.dtypes(args[0].dtype, dtype):
                    return kernel
        return self.reference

    def candidates(
        self, backend: str, call: Function, args: Sequence[Any], params: Any, dtype: DType | None = None
    ) -> list[Kernel]:
        """All kernels that run these arguments (see `choose`), the reference last."""
        size = args[0].size if isinstance(args[0], np.ndarray) else inf
        found = [
            kernel
            for kernel in self.kernels_of(backend)
            if size >= kernel.min_elements
            and (kernel.when is None or call(kernel.when, args, params))
            and (dtype is None or kernel.dtypes is None or kernel.dtypes(args[0].dtype, dtype))
        ]
        return [*found, self.reference]

    def select(self, backend: str, *args: Any, **params: Any) -> Kernel:
        """The kernel that runs these arguments on `backend` (see `choose`)."""
        return self.choose(backend, call, args, params)

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run the primitive on arrays; the first argument's backend selects the kernel."""
        device = None if backends.gpus is None else backends.gpus.enter(self.name, args)
        try:
            if live_levels and innermost(args) is not None:  # kernels know no batched arrays
                return self.reference.run(*args, **params)
            kernel = self.choose(backends.backend_of(args[0]).name, call, args, params)
            if queue.waiting:
                queue.before(self, (), None if self.writes else args)
            try:
                return kernel.run(*args, **params)
            except UnsupportedError:
                pass
            return self.reference.run(*args, **params)
        finally:
            if device is not None:
                backends.gpus.leave(device)

    def launch(self, *args: Any) -> Any:
        """`__call__` for callers that read no elements of the result: the kernel may leave its launches waiting."""
        kernel = self.choose(backends.backend_of(args[0]).name, call, args, {}) if queue.active else self.reference
        if not kernel.launches:
            return self(*args)
        queue.before(kernel)
        try:
            return kernel.run(*args)
        except UnsupportedError:
            pass
        finally:
            queue.after()
        return self(*args)


def primitive(module: str, name: str | None = None) -> Callable[[Function], Primitive]:
    """Decorate the reference of a Primitive, whose name is by default the function's."""
    return lambda reference: Primitive(name or reference.__name__, module, reference)


def always(array: Any) -> bool:
    """Of a kernel that makes views of any array."""
    return True


def of_contiguous(array: Any) -> bool:
    """Of a kernel that makes views of contiguous arrays, and copies others."""
    return bool(array.flags.c_contiguous)


def call(function: Function, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Call a kernel or a predicate of a primitive that takes these arguments as they are."""
    return function(*args, **params)


def forward(
    op: Any, kernel: Kernel, arrays: Sequence[Any], params: Any, dtype: DType, compute: DType | None, versions: Any
) -> tuple[Any, Kernel]:
    """Run the chosen `kernel` of `op` on bound arguments. -> what it returned, and the kernel that ran.

    dtype: of the result of a kernel. compute: what the reference reads its arrays in; None for as they are stored.
    """
    if running and op.is_product and (choices := in_force()) is not None:
        kernel = _chosen_forward(choices, op, kernel, arrays, params, dtype, compute, versions)
    return _forward(op, kernel, arrays, params, dtype, compute, versions)


def _forward(
    op: Any, kernel: Any, arrays: Sequence[Any], params: Any, dtype: DType, compute: DType | None, versions: Any
) -> tuple[Any, Kernel]:
    if kernel is not op.forward.reference:
        if kernel.level is not None:
            return kernel.run_bound(arrays, params), kernel
        run = partial(kernel.run, versions=versions) if kernel.wants_cache else kernel.run
        try:
            return op.signature.call_kernel(run, arrays, params, dtype), kernel
        except UnsupportedError:
            _close_queue((*arrays, *params))
    wide = arrays if compute is None else [widen(a, compute) for a in arrays]
    return op.call(op.forward.reference.run, wide, params), op.forward.reference


def _close_queue(reads: Sequence[Any]) -> None:
    # Before a reference in place of a kernel whose launches may wait: it reads what it makes on the way.
    if queue.opened:
        queue.after()
    if queue.waiting:
        queue.flush(reads)


def backward(
    op: Any,
    kernel: Kernel,
    dy: Any,
    saved: Saved,
    needs: Any,
    params: dict[str, Any],
    compute: DType | None,
    versions: Any = (),
    grad_buffers: Any = (),
) -> tuple[Any, Kernel]:
    """Run the chosen `kernel` of `op`'s backward. -> the gradients, as it returned them, and the kernel that ran.

    compute: what the reference reads its arrays in. grad_buffers: see BackwardPass.grad_buffers.
    """
    if running and op.is_product and (choices := in_force()) is not None:
        call_of = dy, saved, needs, params, compute, versions
        kernel = _chosen_backward(choices, op, kernel, call_of)
        if kernel.wants_cache and not grad_buffers:
            grad_buffers = (None,) * len(needs)
    return _backward(op, kernel, dy, saved, needs, params, compute, versions, grad_buffers)


def _backward(
    op: Any, kernel: Kernel, dy: Any, saved: Saved, needs: Any, params: dict[str, Any], compute: DType | None,
    versions: Any, grad_buffers: Any,
) -> tuple[Any, Kernel]:  # fmt: skip
    reference = op.backward_primitive.reference
    if kernel is not reference:
        more = {**params, "versions": versions, "grad_buffers": grad_buffers} if kernel.wants_cache else params
        try:
            return kernel.run(dy, saved, needs, **more), kernel
        except UnsupportedError:
            _close_queue((dy, *saved.__dict__.values(), *params.values()))
    if compute is not None:
        dy, saved = widen(dy, compute), widen_saved(saved, compute)
    return reference.run(dy, saved, needs, **params), reference


# Products and convolutions whose kernels are chosen by time.


def _is_registered(primitive: Primitive, kernel: Kernel, backend: str) -> bool:
    # Whether the CPU has `kernel` among those that may take each other's place.
    return backend == "cpu" and (kernel is primitive.reference or kernel in primitive.kernels_of(backend))


def _chosen_forward(choices: Choices, op: Any, kernel: Kernel, arrays: Sequence[Any], params: Any, *how: Any) -> Kernel:
    primitive, backend = op.forward, backends.backend_of(arrays[0]).name
    if not _is_registered(primitive, kernel, backend):
        return kernel  # a format's

    def candidates() -> list[Kernel]:
        return primitive.candidates(backend, op.call, arrays, params, how[0])

    def run(one: Kernel) -> Any:
        return _forward(op, one, arrays, params, *how)

    key = f"{op.name} {signature((*arrays, *params))} -> {signature(how[:1])}"
    return choices.pick(key, kernel, candidates, run)


def _chosen_backward(choices: Choices, op: Any, kernel: Kernel, call_of: tuple[Any, ...]) -> Kernel:
    dy, saved, needs, params, compute, versions = call_of
    primitive, items = op.backward_primitive, vars(saved)
    backend = backends.backend_of(dy[0] if type(dy) is tuple else dy).name
    if not _is_registered(primitive, kernel, backend):
        return kernel  # that of a forward, which reads what that saved

    def candidates() -> list[Kernel]:
        return primitive.candidates(backend, call, (dy, saved, needs), params)

    def run(one: Kernel) -> Any:  # into memory of its own
        return _backward(op, one, dy, saved, needs, params, compute, versions, (None,) * len(needs))

    names = sorted(items)
    kept = f"{' '.join(names)}: {signature([items[name] for name in names])}"
    key = f"{primitive.name} {signature([dy])}; {kept}; {signature([needs, *params.values()])}"
    return choices.pick(key, kernel, candidates, run)


# For a kernel that is made of other ops: nothing is recorded, and the caller says in which dtype to answer.


def run_op(op: Any, arrays: Sequence[Any], *params: Any, dtype: DType, versions: Any = ()) -> Any:
    """The first output of `op` on arrays, in `dtype`; versions: those of its tensor inputs."""
    kernel = op.forward.choose(backends.backend_of(arrays[0]).name, op.call, arrays, params, dtype)
    out, _ = forward(op, kernel, arrays, params, dtype, accumulator(dtype), versions)
    return widen(out[0], dtype)


def run_op_backward(
    op: Any, dy: Any, saved: Saved, needs: tuple[Any, ...], versions: Any = (), grad_buffers: Any = (),
    chosen_for: tuple[Any, ...] | None = None, **params: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of `op`'s tensor inputs, in the dtypes `needs`; saved: what its reference would have saved.

    chosen_for: those for which the kernel is chosen, where one backward is cut into several calls with its bits.
    """
    kernel = op.backward_primitive.select(backends.backend_of(dy).name, dy, saved, chosen_for or needs, **params)
    found, _ = backward(op, kernel, dy, saved, needs, params, accumulator(dy.dtype), versions, grad_buffers)
    found = found if isinstance(found, tuple) else (found,)
    return tuple([None if need is None else widen(each, need) for each, need in zip(found, needs, strict=False)])
