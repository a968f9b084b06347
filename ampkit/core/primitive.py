"""Primitive: a piece of arithmetic with one reference, plain array code that is its truth, and faster kernels.

The rule of selection lives here and nowhere else: the kernels of the array's backend in the order written, the first
whose `when` holds, the reference last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Any

from .. import backends

Function = Callable[..., Any]

_reference_only: ContextVar[bool] = ContextVar("ampkit.reference_only", default=False)


@contextmanager
def reference_only() -> Iterator[None]:
    """Within the block every primitive runs its reference: faster kernels are switched off."""
    token = _reference_only.set(True)
    try:
        yield
    finally:
        _reference_only.reset(token)


class Kernel:
    """One implementation for one backend: `run`, its condition `when` (None: always), a backward of its own or None.

    wants_cache: whether it is told the versions of its inputs, to cache values derived from them (see
    base/version_counter.py), and in a backward where gradients may be left.
    """

    __slots__ = ("name", "own_backward", "run", "wants_cache", "when")

    def __init__(self, run: Function, when: Function | None, wants_cache: bool = False):
        self.name = getattr(run, "__name__", "kernel")
        self.run, self.when, self.wants_cache = run, when, wants_cache
        self.own_backward: Kernel | None = None

    def backward(self, function: Function) -> Function:
        """Decorate the backward that belongs to this kernel; the tape remembers it when the kernel ran."""
        self.own_backward = Kernel(function, None)
        return function


class Primitive:
    """`reference` and the faster kernels that backends registered for it with `on`.

    name: as errors, observers and profiles show it. module: the path of its module below
    `ampkit.ops` (`nn.conv`), under which a backend's kernels are found; they are loaded the first time one is selected.
    """

    def __init__(self, name: str, module: str, reference: Function):
        self.name, self.module, self.reference = name, module, Kernel(reference, None)
        self.kernels: dict[str, list[Kernel]] = {}
        self.least: float = inf  # no kernel is for a first array of fewer elements
        self._loaded: set[str] = set()

    def on(
        self, backend: str, when: Function | None = None, wants_cache: bool = False, least: int = 0
    ) -> Callable[[Function], Kernel]:
        """Register a faster kernel for `backend`; it is selected where `when`, called like the kernel, is true.

        least: for a first array of fewer elements it is not even asked for, which spares small calls the question.

        A kernel receives arrays in the dtype they are stored in and, as `dtype=`, the dtype of the result. One that
        cannot do what it was selected for returns NotImplemented, and the reference runs. With `wants_cache`, the
        kernel of an op receives `versions=`, those of its tensor inputs in their order, and the kernel of
        its backward also `grad_buffers=`: per input, memory for the gradient, or None (see BackwardPass.grad_buffers).
        """

        def register(run: Function) -> Kernel:
            kernel = Kernel(run, when, wants_cache)
            self.least = min(self.least, least)
            self.kernels.setdefault(backend, []).append(kernel)
            return kernel

        return register

    def of(self, backend: str) -> list[Kernel]:
        """The backend's kernels, loaded when first asked for; those registered later join the same list."""
        if backend not in self._loaded:
            self._loaded.add(backend)
            backends.load_kernels(backend, self.module)
        return self.kernels.setdefault(backend, [])

    def select(self, backend: str, *args: Any, **params: Any) -> Kernel:
        """The kernel that runs these arguments on `backend`."""
        kernels = self.of(backend)
        if kernels and not _reference_only.get():
            for kernel in kernels:
                if kernel.when is None or kernel.when(*args, **params):
                    return kernel
        return self.reference

    def attempt(
        self, kernel: Kernel, faster: Callable[[Kernel], Any], reference: Callable[[], Any]
    ) -> tuple[Any, Kernel]:
        """What the selected `kernel` returns, and the one that ran: every call of a primitive passes here.

        `faster(kernel)` runs a faster one. Where that returns NotImplemented, `reference()` runs, as it does at once
        where `kernel` is the reference.
        """
        out = NotImplemented if kernel is self.reference else faster(kernel)
        return (reference(), self.reference) if out is NotImplemented else (out, kernel)

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run the primitive on arrays; the first argument's backend selects the kernel."""
        device = None if backends.gpus is None else backends.gpus.enter(self.name, args)
        try:
            kernel = self.select(backends.backend_of(args[0]).name, *args, **params)
            return self.attempt(
                kernel, lambda kernel: kernel.run(*args, **params), lambda: self.reference.run(*args, **params)
            )[0]
        finally:
            if device is not None:
                backends.gpus.leave(device)
