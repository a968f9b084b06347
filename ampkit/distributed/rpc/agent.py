"""Agent: this process among those that call each other's functions: what is under way, and who runs it.

A thread takes the messages of the mailbox in their order, and hands what is to be run to other threads. It also ends
calls that get no answer: after their time, or when the process that they went to has ended.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Condition, Thread, current_thread
from typing import Any, NamedTuple

from ...backends.threads import on_this_device
from ...base.errors import ArgumentError, StateError
from ..sockets.messages import Mailbox, Message, group_key
from ..transport import Call, DistError, absent, call_site, mismatch
from . import codec, remote_error
from .futures import Future, called_by, collect_all
from .threads import Threads
from .values import Values

GROUP = group_key("rpc")
HELLO, REQUEST, ANSWER, ERROR, NOTE, ROUND = range(6)  # kinds of messages
NUMBER = struct.Struct("<Q")  # of a call, before its values
LOOK = 0.1  # seconds between two looks at time limits


class WorkerInfo(NamedTuple):
    """A process that takes part: its name, and its rank as `id`. As torch.distributed.rpc.WorkerInfo."""

    name: str
    id: int


@dataclass
class _Waiting:
    """A call that was sent and has no answer."""

    future: Future[Any]
    to: WorkerInfo
    call: Call
    seconds: float
    deadline: float


class Agent:
    """This process among `size`, which `mail` connects.

    operations: what a request may name, by name; a function of the rank that asks, and the request's values. -> what
    the answer has; a Future for one that comes later. notes: the same for messages without an answer, which are taken
    in their order. pack, unpack: see codec.py; they also get the rank that values go to, or the Futures without which
    a request cannot run, a list that they may append to.
    """

    def __init__(self, rank: int, size: int, mail: Mailbox, threads: int, seconds: float):
        self.rank, self.size, self.mail, self.seconds = rank, size, mail, seconds
        self.workers: list[WorkerInfo] = []
        self.values = Values(rank)
        self.operations: dict[str, Callable[..., Any]] = {}
        self.notes: dict[str, Callable[..., None]] = {}
        self.pack: Callable[[Any, int], list[Any] | None] = lambda value, to: None
        self.unpack: Callable[[list[Any], list[Future[Any]]], Any] = lambda found, missing: None
        self.outbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # notes to send, of finalizers, which take no locks
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._changed = Condition()
        self._sent = self._received = self._answered = 0  # requests
        self._names: dict[int, str] = {}
        self._rounds: dict[int, dict[int, list[int]]] = {}
        self._closed = False
        self._callees = Threads(threads, "ampkit-rpc")
        self._callers = Threads(threads, "ampkit-rpc-callbacks")
        self._thread = Thread(target=on_this_device(self._run), name="ampkit-rpc-messages", daemon=True)
        self._thread.start()

    # begin and end

    def meet(self, name: str, timeout: float) -> None:
        """Tell all processes this one's name and learn theirs. All call it."""
        call, deadline = Call("init_rpc()", call_site()), time.monotonic() + timeout
        self._tell_all(HELLO, name)
        with self._changed:
            self._learn(self.rank, name)
        self._wait_for_all(lambda: self._names, call, timeout, deadline)
        for worker in self.workers:
            same = [other.id for other in self.workers if other.name == worker.name]
            if len(same) > 1:
                raise DistError(call.place, "another name for each worker",
                                f"{worker.name!r} on ranks {', '.join(map(str, same))}")  # fmt: skip

    def _learn(self, rank: int, name: str) -> None:
        self._names[rank] = name
        if len(self._names) == self.size:
            self.workers = [WorkerInfo(self._names[each], each) for each in range(self.size)]
        self._changed.notify_all()

    def finish(self, timeout: float) -> None:
        """Return when all processes have called it and no call is under way on any.

        They count the calls that they have sent and received. Where the sums over all are equal, and the same twice in
        a row, nothing was under way between (Mattern 1987, Distributed Computing 2(3): the four counter method).
        """
        call, deadline, before = Call("rpc.shutdown()", call_site()), time.monotonic() + timeout, None
        others = [rank for rank in range(self.size) if rank != self.rank]
        for number in count():
            self._wait(self._is_idle, call, timeout, deadline, lambda: others)
            with self._changed:
                mine = [self._sent, self._received]
                self._round(number)[self.rank] = mine
            self._tell_all(ROUND, [number, mine])
            self._wait_for_all(partial(self._round, number), call, timeout, deadline)
            sent, received = (sum(each[place] for each in self._round(number).values()) for place in (0, 1))
            if sent == received and before == (sent, received):
                return
            before = sent, received

    def _is_idle(self) -> bool:
        return not self._waiting and self._received == self._answered

    def _round(self, number: int) -> dict[int, list[int]]:
        return self._rounds.setdefault(number, {})

    def close(self) -> None:
        """End the threads; calls that wait raise StateError."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = list(self._waiting.values()), {}
            self._changed.notify_all()
        for each in waiting:
            each.future.set_exception(StateError(each.call.says, f"an answer of {each.to.name}", "rpc.shutdown()"))
        if current_thread() is not self._thread:
            self._thread.join()
        for pool in (self._callees, self._callers):
            pool.close()

    @property
    def closed(self) -> bool:
        return self._closed

    # calls

    def worker(self, where: str, to: Any) -> WorkerInfo:
        """A process by its name, its rank or its WorkerInfo. Raises ArgumentError for one that there is not."""
        for worker in self.workers:
            if to == worker or (to == worker.name if isinstance(to, str) else to == worker.id and to is not True):
                return worker
        names = ", ".join(worker.name for worker in self.workers)
        raise ArgumentError(where, f"one of the workers {names}", repr(to))

    def limit(self, where: str, timeout: float) -> float:
        """Seconds of a timeout: -1 is that of init_rpc, 0 none."""
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not (timeout >= 0 or timeout == -1):
            raise ArgumentError(where, "a timeout in seconds, 0 for none", repr(timeout))
        return (self.seconds if timeout == -1 else float(timeout)) or float("inf")

    def request(self, to: WorkerInfo, says: str, timeout: float, operation: str, *values: Any) -> Future[Any]:
        """Send a request. -> the Future of what `operation` returns there."""
        seconds, future, number = self.limit(says, timeout), called_by(self._callers), next(self._numbers)
        data = self._encoded(says, number, (operation, *values), to.id)
        call = Call(says, call_site())
        with self._changed:
            if self._closed:
                raise StateError(says, "init_rpc() before", "rpc.shutdown()")
            self._waiting[number] = _Waiting(future, to, call, seconds, time.monotonic() + seconds)
            self._sent += 1
        self._send(to.id, REQUEST, data)
        if to.id in self.mail.ended:
            self._lose(to.id)
        return future

    def _encoded(self, where: str, number: int, value: Any, to: int) -> bytes:
        return codec.encoded(where, value, lambda each: self.pack(each, to), NUMBER.pack(number))

    def _send(self, to: int, kind: int, data: bytes) -> None:
        if to == self.rank:
            self._take(Message(self.rank, GROUP, kind, bytearray(data)))
        else:
            self.mail.send(to, GROUP, kind, data)

    def _tell_all(self, kind: int, value: Any) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                self._send(rank, kind, self._encoded("rpc", 0, value, rank))

    # waiting

    def _wait(
        self, condition: Callable[[], bool], call: Call, timeout: float, deadline: float,
        ranks: Callable[[], Sequence[int]],
    ) -> None:  # fmt: skip
        """Wait for a condition. ranks: those without which it cannot come true."""
        with self._changed:
            while not self._changed.wait_for(condition, LOOK):
                if lost := [rank for rank in ranks() if rank in self.mail.ended]:
                    raise mismatch(call, lost[0], self.mail.ended[lost[0]])
                if time.monotonic() > deadline:
                    raise absent(call, ranks(), timeout)

    def _wait_for_all(self, found: Callable[[], dict[int, Any]], call: Call, timeout: float, deadline: float) -> None:
        def missing() -> list[int]:
            return [rank for rank in range(self.size) if rank not in found()]

        self._wait(lambda: not missing(), call, timeout, deadline, missing)

    # the thread

    def _run(self) -> None:
        lost = 0
        while not self._closed:
            self.mail.wait_until(partial(self._is_due, lost), LOOK)
            ended = list(self.mail.ended)  # before the messages: what they sent comes first
            while (message := self.mail.take(GROUP, self._is_next)) is not None:
                self._take(message)
            for rank in ended[lost:]:
                self._lose(rank)
            lost = len(ended)
            self._send_notes()
            self._end_late()

    def _is_due(self, lost: int) -> bool:
        return self._closed or len(self.mail.ended) > lost or self.mail.has(GROUP, self._is_next) is not None

    def _is_next(self, message: Message) -> bool:
        return bool(self.workers) or message.kind == HELLO  # who has learned all names may call already

    def _send_notes(self) -> None:
        while True:
            try:
                to, value = self.outbox.get_nowait()
            except Empty:
                return
            self._send(to, NOTE, self._encoded("rpc", 0, value, to))

    def _lose(self, rank: int) -> None:
        for each in self._removed(lambda each: each.to.id == rank):
            call = each.call
            got = self.mail.ended[rank]
            each.future.set_exception(DistError(call.place, f"an answer of {each.to.name}", got))

    def _end_late(self) -> None:
        now = time.monotonic()
        for each in self._removed(lambda each: each.deadline < now):
            needs = f"an answer of {each.to.name} within {each.seconds:g} s"
            cure = "a longer timeout=, or rpc_timeout of init_rpc; see what it printed"
            each.future.set_exception(DistError(each.call.place, needs, "none", cure))

    def _removed(self, which: Callable[[_Waiting], bool]) -> list[_Waiting]:
        with self._changed:
            numbers = [number for number, each in self._waiting.items() if which(each)]
            found = [self._waiting.pop(number) for number in numbers]
            self._changed.notify_all()
        return found

    def _take(self, message: Message) -> None:
        data = memoryview(message.data)
        (number,), values = NUMBER.unpack(data[: NUMBER.size]), data[NUMBER.size :]
        missing: list[Future[Any]] = []
        try:
            value = codec.decoded(values, lambda found: self.unpack(found, missing))
        except Exception as error:  # of a function that is not declared, say; or of another version
            self._refuse(message, number, error)
            return
        if message.kind == REQUEST:
            with self._changed:
                self._received += 1
            if missing:
                collect_all(missing).add_done_callback(lambda _: self._begin(message.source, number, value))
            else:
                self._begin(message.source, number, value)
        elif message.kind == NOTE:
            self.notes[value[0]](message.source, *value[1:])
        elif message.kind in (ANSWER, ERROR):
            self._end(number, value, message.kind)
        else:
            with self._changed:
                if message.kind == HELLO:
                    self._learn(message.source, value)
                else:
                    self._round(value[0])[message.source] = value[1]
                    self._changed.notify_all()

    def _begin(self, source: int, number: int, value: Any) -> None:
        self._callees.submit(self._answer, source, number, *value)

    def _refuse(self, message: Message, number: int, error: Exception) -> None:
        if message.kind == REQUEST:
            with self._changed:
                self._received += 1
            self._reply_error(message.source, number, error)
        elif message.kind == ANSWER:
            self._end(number, remote_error.described(error), ERROR)

    def _end(self, number: int, value: Any, kind: int) -> None:
        with self._changed:
            waiting = self._waiting.pop(number, None)
            self._changed.notify_all()
        if waiting is None:  # too late
            return
        if kind == ANSWER:
            waiting.future.set_result(value)
        else:
            waiting.future.set_exception(remote_error.made(waiting.to.name, waiting.call.says, value))

    # the threads that run what others ask for

    def _answer(self, source: int, number: int, operation: str, *values: Any) -> None:
        try:
            result = self.operations[operation](source, *values)
        except BaseException as error:
            self._reply_error(source, number, error)
            return
        if not isinstance(result, Future):
            self._reply(source, number, lambda: result)
            return
        del values
        result.add_done_callback(lambda done: self._reply(source, number, done.wait))

    def _reply(self, source: int, number: int, result: Callable[[], Any]) -> None:
        try:
            self._finish_answer(source, ANSWER, self._encoded("rpc", number, result(), source))
        except BaseException as error:
            self._reply_error(source, number, error)

    def _reply_error(self, source: int, number: int, error: BaseException) -> None:
        self._finish_answer(source, ERROR, self._encoded("rpc", number, remote_error.described(error), source))

    def _finish_answer(self, source: int, kind: int, data: bytes) -> None:
        if not self._closed:
            self._send(source, kind, data)
        with self._changed:
            self._answered += 1
            self._changed.notify_all()
