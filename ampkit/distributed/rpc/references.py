"""RRef: a reference to a value on another process, where it lives as long as a reference to it does.

References are counted by weights (Bevan 1987, PARLE; Watson and Watson 1987): the owner of a value gives a weight to
each reference that it sends, a process that passes one on to a third gives half of its own, and a reference that goes
returns what it has. The value is dropped when all weights are back. So passing a reference needs no message to the
owner, and none can come too late. Weights are powers of 1/2, and their exponents are sent.
"""

from __future__ import annotations

import weakref
from concurrent.futures import TimeoutError as LateError
from threading import Lock
from typing import Any, Generic, TypeVar

from ...base.errors import ArgumentError, StateError
from ..transport import DistError, call_site
from .agent import Agent, WorkerInfo
from .futures import Future
from .values import Key, Value

_T = TypeVar("_T")
SMALLEST = 30  # an exponent from which on a reference asks its owner for more weight
_current: Agent | None = None


def current(where: str) -> Agent:
    """The agent of this process. Raises StateError before init_rpc."""
    if _current is None:
        raise StateError(where, "rpc.init_rpc() before", "none, or rpc.shutdown()")
    return _current


def use(agent: Agent | None) -> None:
    """Make `agent` this process's."""
    global _current
    _current = agent


class RRef(Generic[_T]):
    """A reference to `value`, which this process owns; `rpc.remote` returns those to values of others.

    It can be sent to other processes. The value is dropped there when no process has a reference to it any more.
    type_hint has no effect. As torch.distributed.rpc.RRef.
    """

    def __init__(self, value: _T, type_hint: Any = None):
        agent = current("RRef")
        held = Value(True)
        held.future.set_result(value)
        self._set(agent, agent.workers[agent.rank], agent.values.key(), held, 0)

    def _set(self, agent: Agent, owner: WorkerInfo, key: Key, held: Value | None, exponent: int) -> None:
        """held: at its owner. exponent: of the weight, elsewhere."""
        self._agent, self._owner, self._key, self._held, self._exponent = agent, owner, key, held, exponent
        self._lock, self._asked = Lock(), False
        self._created: Future[Any] | None = None

    def __del__(self) -> None:
        if hasattr(self, "_held") and self._held is None and not self._agent.closed:
            self._agent.outbox.put((self._owner.id, ["forget", *self._key, self._exponent]))

    def __repr__(self) -> str:
        kind = "UserRRef" if self._held is None else "OwnerRRef"
        return f"{kind}(owner={self._owner.name!r}, id={self._key})"

    def __reduce__(self) -> Any:
        raise StateError("RRef", "an argument or a result of a call", "a pickle, or a copy")

    def owner(self) -> WorkerInfo:
        """The process that has the value."""
        return self._owner

    def owner_name(self) -> str:
        return self._owner.name

    def is_owner(self) -> bool:
        """Whether this process has the value."""
        return self._held is not None

    def confirmed_by_owner(self) -> bool:
        """Whether the owner has the value, or the error of the function that was to make it."""
        return self._created is None or self._created.done()

    def local_value(self) -> _T:
        """The value itself, on its owner. Raises StateError elsewhere, and what the function raised that made it."""
        if self._held is None:
            got = f"{self._agent.workers[self._agent.rank].name}; its owner is {self._owner.name}"
            raise StateError("RRef.local_value", "the owner of the value", got, "to_here(), which copies it")
        return self._waited("RRef.local_value()", self._held, -1)

    def to_here(self, timeout: float = -1.0) -> _T:
        """A copy of the value; on its owner the value itself. timeout: seconds; -1 for that of init_rpc, 0 for none.

        Raises what the function raised that made it, and DistError where the owner does not answer in time.
        """
        if self._held is not None:
            return self._waited("RRef.to_here()", self._held, timeout)
        return self._agent.request(self._owner, "RRef.to_here()", timeout, "fetch", self).wait()

    def _waited(self, says: str, held: Value, timeout: float) -> Any:
        seconds = self._agent.limit(says, timeout)
        try:
            return held.future._future.result(None if seconds == float("inf") else seconds)
        except LateError:
            if held.future.done():  # the function's own
                raise
            raise DistError(f"{says}, at {call_site()}", f"the value within {seconds:g} s", "none") from None

    def rpc_sync(self, timeout: float = -1.0) -> Any:
        """`rref.rpc_sync().method(...)` calls a method of the value on its owner, and returns the result."""
        return _Methods(self, "rpc_sync", timeout)

    def rpc_async(self, timeout: float = -1.0) -> Any:
        """`rref.rpc_async().method(...)` begins to call a method of the value on its owner. -> a Future."""
        return _Methods(self, "rpc_async", timeout)

    def remote(self, timeout: float = -1.0) -> Any:
        """`rref.remote().method(...)` begins to call a method of the value on its owner. -> an RRef of the result."""
        return _Methods(self, "remote", timeout)

    # sending

    def packed(self, to: int) -> list[Any]:
        """What stands for this reference in a message to `to`: its key, its owner, and a weight or None."""
        if self._held is not None:
            self._agent.values.give(self._key, self._held)
            return ["rref", *self._key, self._owner.id, 0]
        if to == self._owner.id:  # where this one's weight counts until the message has come
            return ["rref", *self._key, self._owner.id, None]
        with self._lock:
            self._exponent += 1
            ask = self._exponent > SMALLEST and not self._asked
            self._asked |= ask
            exponent = self._exponent
        if ask:
            self._ask_for_more()
        return ["rref", *self._key, self._owner.id, exponent]

    def _ask_for_more(self) -> None:
        agent, owner, key, found = self._agent, self._owner, self._key, weakref.ref(self)

        def came(answer: Future[Any]) -> None:
            if answer.exception() is not None:
                return
            this, back = found(), 0
            if this is not None:
                with this._lock:
                    back, this._exponent, this._asked = this._exponent, 0, False
            agent.outbox.put((owner.id, ["forget", *key, back]))

        agent.request(owner, "RRef", 0, "more", self).add_done_callback(came)


def reference(agent: Agent, owner: WorkerInfo, key: Key, held: Value | None, exponent: int = 0) -> RRef[Any]:
    """An RRef with a key that exists, or will."""
    made: RRef[Any] = RRef.__new__(RRef)
    made._set(agent, owner, key, held, exponent)
    return made


def unpacked(
    agent: Agent, missing: list[Future[Any]], creator: int, number: int, owner: int, exponent: int | None
) -> RRef[Any]:
    """The RRef of what `packed` made. missing: where the Future of a value that is yet to come is appended."""
    key = creator, number
    if owner != agent.rank:
        if exponent is None:
            raise ArgumentError("RRef", "a weight", "none")
        return reference(agent, agent.workers[owner], key, None, exponent)
    held = agent.values.at(key)
    made = reference(agent, agent.workers[owner], key, held)
    if not held.future.done():
        missing.append(held.future)
    if exponent is not None:
        agent.values.take_back(key, exponent)
    return made


class _Methods:
    """The methods of a value that an RRef refers to."""

    def __init__(self, rref: RRef[Any], how: str, timeout: float):
        self._rref, self._how, self._timeout = rref, how, timeout

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: begun(self._rref, self._how, self._timeout, "method", self._rref, name, args,
                                             kwargs)  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return begun(self._rref, self._how, self._timeout, "method", self._rref, "__call__", args, kwargs)


def begun(rref: RRef[Any], how: str, timeout: float, *values: Any) -> Any:
    """Begin a request about the value of an RRef, as `how` says: rpc_sync, rpc_async or remote."""
    return sent(rref._agent, rref._owner, how, f"{how}({values[2]})", timeout, *values)


def sent(agent: Agent, to: WorkerInfo, how: str, says: str, timeout: float, *values: Any) -> Any:
    """Begin a request. -> its result for rpc_sync, its Future for rpc_async, the RRef of its result for remote."""
    if how != "remote":
        future = agent.request(to, says, timeout, *values)
        return future.wait() if how == "rpc_sync" else future
    key = agent.values.key()
    held = agent.values.create(key) if to.id == agent.rank else None
    created = agent.request(to, says, timeout, "create", *key, *values)
    made = reference(agent, to, key, held)
    made._created = created
    return made
