"""Primitive: a piece of arithmetic with one reference, plain array code that is its truth, and faster bodies.

The pick rule lives here and nowhere else: the bodies of the array's backend in the order written, the first whose
`when` holds, the reference last.
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
    """Within the block every primitive runs its reference: faster bodies are switched off."""
    token = _reference_only.set(True)
    try:
        yield
    finally:
        _reference_only.reset(token)


class Body:
    """One implementation for one backend: `run`, its condition `when` (None: always), a backward of its own or None.

    keeps: whether it is told the versions of its inputs, to cache values derived from them (see
    base/version_counter.py), and in a backward where gradients may be left.
    """

    __slots__ = ("keeps", "name", "own_backward", "run", "when")

    def __init__(self, run: Function, when: Function | None, keeps: bool = False):
        self.name = getattr(run, "__name__", "body")
        self.run, self.when, self.keeps = run, when, keeps
        self.own_backward: Body | None = None

    def backward(self, function: Function) -> Function:
        """Decorate the backward that belongs to this body; the tape remembers it when the body ran."""
        self.own_backward = Body(function, None)
        return function


class Primitive:
    """`reference` and the faster bodies that backends registered for it with `on`.

    name: as errors, observers and profiles show it. module: the path of its module below
    `ampkit.ops` (`nn.conv`), under which a backend's kernels are found; they are loaded the first time one is picked.
    """

    def __init__(self, name: str, module: str, reference: Function):
        self.name, self.module, self.reference = name, module, Body(reference, None)
        self.bodies: dict[str, list[Body]] = {}
        self.least: float = inf  # no body is for a first array of fewer elements
        self._loaded: set[str] = set()

    def on(
        self, backend: str, when: Function | None = None, keeps: bool = False, least: int = 0
    ) -> Callable[[Function], Body]:
        """Register a faster body for `backend`; it is picked where `when`, called like the body, is true.

        least: for a first array of fewer elements it is not even asked for, which spares small calls the question.

        A body receives arrays in the dtype they are stored in and, as `dtype=`, the dtype to answer in. One that finds
        it cannot do what it is asked for after all returns NotImplemented, and the reference runs. With `keeps`, the
        body of an op receives `versions=`, those of its tensor inputs in their order, and the body of its backward also
        `homes=`: per input, memory to leave the gradient in, or None (see Sweep.homes).
        """

        def register(run: Function) -> Body:
            body = Body(run, when, keeps)
            self.least = min(self.least, least)
            self.bodies.setdefault(backend, []).append(body)
            return body

        return register

    def of(self, backend: str) -> list[Body]:
        """The backend's bodies, loaded when first asked for; those registered later join the same list."""
        if backend not in self._loaded:
            self._loaded.add(backend)
            backends.load_kernels(backend, self.module)
        return self.bodies.setdefault(backend, [])

    def pick(self, backend: str, *args: Any, **params: Any) -> Body:
        """The body that runs these arguments on `backend`."""
        bodies = self.of(backend)
        if bodies and not _reference_only.get():
            for body in bodies:
                if body.when is None or body.when(*args, **params):
                    return body
        return self.reference

    def attempt(self, body: Body, kernel: Callable[[Body], Any], reference: Callable[[], Any]) -> tuple[Any, Body]:
        """What the selected `body` returns, and the one that ran: every call of a primitive passes here.

        `kernel(body)` runs a faster one. Where that returns NotImplemented, `reference()` runs, as it does at once
        where `body` is the reference.
        """
        out = NotImplemented if body is self.reference else kernel(body)
        return (reference(), self.reference) if out is NotImplemented else (out, body)

    def __call__(self, *args: Any, **params: Any) -> Any:
        """Run the primitive on arrays; the first argument's backend picks the body."""
        device = None if backends.gpus is None else backends.gpus.enter(self.name, args)
        try:
            body = self.pick(backends.of(args[0]).name, *args, **params)
            return self.attempt(
                body, lambda kernel: kernel.run(*args, **params), lambda: self.reference.run(*args, **params)
            )[0]
        finally:
            if device is not None:
                backends.gpus.leave(device)
