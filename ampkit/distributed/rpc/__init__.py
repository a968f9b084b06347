"""Calls of functions on other processes, by the names of `torch.distributed.rpc`; nothing is unpickled.

from ampkit.distributed import rpc

@rpc.register
def lookup(rows): ...

rpc.init_rpc("trainer0")                           # on the other process rpc.init_rpc("server")
values = rpc.rpc_sync("server", lookup, args=(rows,))
rpc.shutdown()
"""

from . import functions
from .agent import WorkerInfo
from .api import (
    RpcBackendOptions,
    get_worker_info,
    init_rpc,
    remote,
    rpc_async,
    rpc_sync,
    shutdown,
)
from .futures import Future, collect_all, wait_all
from .references import RRef
from .registry import register
from .remote_error import RemoteError

__all__ = [
    "Future", "RRef", "RemoteError", "RpcBackendOptions", "WorkerInfo", "collect_all", "functions", "get_worker_info",
    "init_rpc", "register", "remote", "rpc_async", "rpc_sync", "shutdown", "wait_all",
]  # fmt: skip
