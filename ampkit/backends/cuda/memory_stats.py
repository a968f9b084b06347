"""Memory statistics of a GPU from CuPy's pools, and the error for running out of memory."""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakSet

from ampkit.base.errors import OutOfMemoryError

_CURES = (
    "a smaller batch, with loss.backward() for several before a step; ampkit.recompute(block, x), which keeps no "
    "activations of a block; or autocast(dtype=ampkit.bfloat16), and SGD, which keeps less than Adam"
)


class Usage:
    """Memory of one device in bytes, as CuPy's pools count it. xp: CuPy, or its emulation."""

    def __init__(self, xp: Any, index: int):
        self.xp, self.index = xp, index
        self._watch: Any = None
        self.graph_pools: WeakSet[Any] = WeakSet()  # of recorded steps (see graph_pool.py)

    def of_graphs(self) -> int:
        """Bytes held by captured steps on the current device, temporaries included."""
        return sum(int(pool.used_bytes()) for pool in self.graph_pools)

    def _of_default_pool(self, name: str) -> int:
        return int(getattr(self.xp.get_default_memory_pool(), name)())

    def used(self) -> int:
        """Bytes allocated to arrays."""
        with self.xp.cuda.Device(self.index):
            return self._of_default_pool("used_bytes") + self.of_graphs()

    def reserved(self) -> int:
        """Bytes reserved by the pools, free blocks included."""
        with self.xp.cuda.Device(self.index):
            return self._of_default_pool("total_bytes") + sum(int(p.total_bytes()) for p in self.graph_pools)

    def free(self) -> None:
        """Return free blocks, pinned ones too, to the driver."""
        with self.xp.cuda.Device(self.index):
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()
            for pool in self.graph_pools:
                pool.free()

    def peak(self) -> int:
        """Peak bytes of arrays since `watch`; before its first call the bytes reserved, an upper bound."""
        return self.reserved() if self._watch is None else max(int(self._watch.most), self.used())

    def watch(self) -> None:
        """Start or reset the peak: a Python hook runs at each allocation of this thread."""
        if self._watch is None:
            self._watch = _watch(self.xp.cuda.MemoryHook, self)
            self._watch.__enter__()
        with self.xp.cuda.Device(self.index):
            self._watch.held = self._of_default_pool("used_bytes")
        self._watch.graphs = {allocation.start for pool in self.graph_pools for allocation in pool.live}
        self._watch.most = self.used()

    def out_of_memory_error(self, said: str, accounts: dict[str, int]) -> OutOfMemoryError:
        """The error for CuPy's message `said`. accounts: bytes by owner."""
        used = self.used()
        parts = {**accounts, "activations and others": max(0, used - sum(accounts.values()))}
        held = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
        asked = re.search(r"allocating ([\d,]+) bytes", said)
        needs = f"{size(int(asked[1].replace(',', '')))} more" if asked else "more memory"
        free, total = self._left(used)
        got = f"{size(free)} free of {size(total)}; held: {size(used)} ({held})"
        return OutOfMemoryError(f"cuda:{self.index}", needs, got, _CURES)

    def _left(self, used: int) -> tuple[int, int]:
        """Bytes free (in the pool too) and bytes in all: the device's, or the pool's limit."""
        with self.xp.cuda.Device(self.index) as device:
            free, total = device.mem_info
            limit = self.xp.get_default_memory_pool().get_limit()
        free += self.reserved() - used
        return (min(free, max(0, limit - used)), min(total, limit)) if limit else (free, total)


def size(count: int) -> str:
    """Bytes in words: 1.5 GiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _watch(base: Any, usage: Usage) -> Any:
    class Watch(base):  # type: ignore[misc]  # CuPy's class
        name = f"ampkit, cuda:{usage.index}"
        held = most = 0  # CuPy tells of the blocks of every pool; held: those of the default one

        def __init__(self) -> None:
            super().__init__()
            self.graphs: set[int] = set()  # where recorded steps have theirs

        def malloc_postprocess(self, **about: Any) -> None:
            if about["device_id"] != usage.index or not about["mem_ptr"]:
                return
            if any(pool.allocates for pool in usage.graph_pools):
                self.graphs.add(about["mem_ptr"])
            else:
                self.held += about["mem_size"]
            self.most = max(self.most, self.held + usage.of_graphs())

        def free_postprocess(self, **about: Any) -> None:
            if about["device_id"] != usage.index:
                return
            if about["mem_ptr"] in self.graphs:
                self.graphs.discard(about["mem_ptr"])
            else:
                self.held -= about["mem_size"]

    return Watch()
