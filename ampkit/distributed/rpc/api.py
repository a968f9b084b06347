"""Calls of functions on other processes, by the names of `torch.distributed.rpc`."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import secrets
import socket
import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ...base.errors import ArgumentError, StateError
from .. import world
from ..collectives import gathered_objects
from ..environment import Launched, launched, meeting_point
from ..sockets.handshake import machine
from ..sockets.launcher import free_port
from ..sockets.messages import ENDED, Mailbox
from ..sockets.peers import Peers
from ..sockets.rendezvous import PORTS, Meeting, key_of
from ..transport import Call, call_site
from . import registry
from .agent import Agent, WorkerInfo
from .futures import Future
from .operations import serve
from .references import RRef, current, sent, use

DEFAULT_RPC_TIMEOUT = 60.0  # seconds
NAME = re.compile(r"[A-Za-z0-9_:.-]{1,128}")


@dataclass
class RpcBackendOptions:
    """How calls are made. rpc_timeout: seconds for an answer, 0 for no limit. init_method: where the workers meet.

    num_worker_threads: how many functions run here for others at a time.
    """

    rpc_timeout: float = DEFAULT_RPC_TIMEOUT
    init_method: str = "env://"
    num_worker_threads: int = 16


def init_rpc(
    name: str, backend: Any = None, rank: int | None = -1, world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None, functions: Iterable[Any] = (), timeout: Any = None,
) -> None:  # fmt: skip
    """Connect this process, the worker `name`, with all others, which call it too. As torch.distributed.rpc.init_rpc.

    rank, world_size: as in init_process_group, where no launcher says so. The workers need not be those of a process
    group, which is made before or after, or not at all.
    They meet at the 8 ports above those of init_process_group, or at rpc_backend_options.init_method. MPI's launcher
    says no such address: there init_process_group comes first, and carries it.
    functions: what others may call here, beside what `register` declares; of a module all that it defines.
    timeout: a timedelta or seconds, 30 minutes by default, in which all workers must come. backend has no effect.
    Raises StateError where it was called already or no meeting point is known, ArgumentError for a name of other signs
    than letters, digits and `_:.-`, and DistError for workers that do not come in time or share a name.
    """
    options = rpc_backend_options or RpcBackendOptions()
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ArgumentError("init_rpc", "a name of letters, digits and _:.-", repr(name))
    if _agent() is not None:
        raise StateError("init_rpc", "to be called once", "a second call", "rpc.shutdown() first")
    for each in functions:
        registry.register(each)
    limit, own = world._seconds(timeout), launched()
    place = own.rank if rank in (None, -1) else rank
    size = own.world_size if world_size is None else world_size
    if size < 1 or not 0 <= place < size:
        raise ArgumentError("init_rpc", "a rank from 0 to world_size - 1", f"rank={place}, world_size={size}")
    peers = Peers(_meeting(place, size, options.init_method, own), limit) if size > 1 else None
    mail = Mailbox({}) if peers is None else peers.mail
    agent = Agent(place, size, mail, options.num_worker_threads, options.rpc_timeout)
    serve(agent)
    _begin(agent, peers)
    try:
        agent.meet(name, limit)
    except BaseException as error:
        _end(f"{type(error).__name__} in init_rpc")
        raise


class _Open:
    """What init_rpc has opened: the connections, and the hook of errors that it replaced."""

    peers: Peers | None = None
    hook: Any = None


def _agent() -> Agent | None:
    try:
        return current("rpc")
    except StateError:
        return None


def _begin(agent: Agent, peers: Peers | None) -> None:
    _Open.peers, _Open.hook = peers, sys.excepthook
    use(agent)
    atexit.register(_end)
    sys.excepthook = _telling(weakref.ref(agent), _Open.hook)


def _telling(agent: weakref.ref[Agent], before: Any) -> Any:
    # Workers that wait for this one hear at once why it ends.
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if agent() is not None:
            said = str(error).partition("\n")[0]
            _end(f"{kind.__name__}: {said}" if said else kind.__name__)

    return hook


def _end(why: str = ENDED) -> None:
    if (agent := _agent()) is None:
        return
    atexit.unregister(_end)
    sys.excepthook = _Open.hook
    use(None)
    agent.close()
    if _Open.peers is None:
        agent.mail.close()
    else:
        _Open.peers.close(why)
    _Open.peers = _Open.hook = None


def _forget() -> None:
    use(None)


if hasattr(os, "register_at_fork"):  # a forked process has none of the connections
    os.register_at_fork(after_in_child=_forget)


def _meeting(rank: int, size: int, init_method: str, own: Launched) -> Meeting:
    """Where the workers meet, with a key of their own: they and a process group may use the same ports."""
    point, secret = world._point(init_method), ""
    if init_method.startswith("env:") and meeting_point() is not None:
        host, port = point or ("", 0)
        point = host, port + PORTS if port + 2 * PORTS < 1 << 16 else port - PORTS
    if point is None and world.is_initialized():
        point, secret = _told_by_group(size)
    if point is None:
        here = "init_process_group() before, or MASTER_ADDR and MASTER_PORT"
        other = 'ampkit launch, torchrun or srun set them; or init_method="tcp://host:port"'
        got = "no MASTER_ADDR and MASTER_PORT"
        raise StateError("init_rpc", "to know where rank 0 can be reached", got, here if own.launcher else other)
    known = secret.encode() or key_of(*point)
    return Meeting(rank, size, *point, hashlib.sha256(b"rpc" + known).digest(), "init_rpc()")


def _told_by_group(size: int) -> tuple[tuple[str, int], str]:
    """An address and a secret that rank 0 of the process group tells the others. Raises StateError for other ranks."""
    group = world.group_or_world("init_rpc")
    if group.size() != size:
        raise StateError("init_rpc", f"the {group.size()} ranks of the process group", f"world_size={size}")
    mine = machine(), socket.gethostname(), free_port(), secrets.token_hex(16)
    found = gathered_objects(group, mine, Call("init_rpc()", call_site()))
    alone = found[0][0] and all(each[0] == found[0][0] for each in found)
    return ("127.0.0.1" if alone else found[0][1], found[0][2]), found[0][3]


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """Leave the other workers. As torch.distributed.rpc.shutdown.

    graceful: first wait until all have called it and no call is under way. timeout: seconds for that, 0 for no limit.
    Raises DistError for a worker that has ended before, or does not come in time; this one leaves all the same.
    """
    agent = current("rpc.shutdown")
    try:
        if graceful:
            agent.finish(agent.limit("rpc.shutdown", timeout))
    finally:
        _end()


def get_worker_info(worker_name: str | None = None) -> WorkerInfo:
    """Name and rank of a worker, by default of this one. As torch.distributed.rpc.get_worker_info."""
    agent = current("get_worker_info")
    return agent.workers[agent.rank] if worker_name is None else agent.worker("get_worker_info", worker_name)


def rpc_sync(to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> Any:
    """Call func(*args, **kwargs) on the worker `to`, and return the result. As torch.distributed.rpc.rpc_sync.

    to: a name, a rank or a WorkerInfo. func: a function or a class that `to` has declared (`rpc.register`), or its
    name; a function of ampkit.ops; a layer of ampkit.nn. Arguments and result are copied; of a tensor that is its
    values, without the tape. timeout: seconds; -1 for that of init_rpc, 0 for none.
    Raises what the function raised, with the other process's traceback as a note; DistError where no answer comes in
    time or `to` has ended; ArgumentError for a worker that there is not, DTypeError for what cannot be sent.
    """
    return _call(to, "rpc_sync", func, args, kwargs, timeout)


def rpc_async(to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> Future[Any]:
    """Begin `rpc_sync`. -> a Future of the result, whose `wait` raises what rpc_sync would."""
    return _call(to, "rpc_async", func, args, kwargs, timeout)


def remote(to: Any, func: Any, args: Any = None, kwargs: Any = None, timeout: float = -1.0) -> RRef[Any]:
    """Begin to call a function on the worker `to`, where the result stays. -> an RRef to it, at once.

    As torch.distributed.rpc.remote. `to_here` and other uses of the RRef raise what the function raised.
    """
    return _call(to, "remote", func, args, kwargs, timeout)


def _call(to: Any, how: str, func: Any, args: Any, kwargs: Any, timeout: float) -> Any:
    agent = current(f"rpc.{how}")
    name = registry.name_of(f"rpc.{how}", func)
    if not isinstance(args, (tuple, list, type(None))) or not isinstance(kwargs, (dict, type(None))):
        got = f"a {type(args).__name__} and {type(kwargs).__name__}"
        raise ArgumentError(f"rpc.{how}", "args=(...), kwargs={...}", got)
    worker = agent.worker(f"rpc.{how}", to)
    return sent(agent, worker, how, f"{how}({name})", timeout, "call", name, tuple(args or ()), dict(kwargs or {}))
