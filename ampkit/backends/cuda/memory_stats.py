"""How much of a GPU's memory CuPy's pool holds, and the error for when there is no more."""

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
    """The memory of one device, in bytes, as CuPy's pools count it. xp: CuPy, or what stands for it."""

    def __init__(self, xp: Any, index: int):
        self.xp, self.index = xp, index
        self._watch: Any = None
        self.graph_pools: WeakSet[Any] = WeakSet()  # of recorded steps (see graphpool.py)

    def of_graphs(self) -> int:
        """What recorded steps hold, their temporaries included, on the current device."""
        return sum(int(pool.used_bytes()) for pool in self.graph_pools)

    def _of_default_pool(self, name: str) -> int:
        return int(getattr(self.xp.get_default_memory_pool(), name)())

    def used(self) -> int:
        """What arrays hold."""
        with self.xp.cuda.Device(self.index):
            return self._of_default_pool("used_bytes") + self.of_graphs()

    def reserved(self) -> int:
        """What the pools hold, free blocks included."""
        with self.xp.cuda.Device(self.index):
            return self._of_default_pool("total_bytes") + sum(int(p.total_bytes()) for p in self.graph_pools)

    def free(self) -> None:
        """Give free blocks, those of pinned memory too, back to the system."""
        with self.xp.cuda.Device(self.index):
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()
            for pool in self.graph_pools:
                pool.free()

    def peak(self) -> int:
        """The most that arrays held since `watch`; before its first call what the pool holds, which is no less."""
        return self.reserved() if self._watch is None else max(int(self._watch.most), self.used())

    def watch(self) -> None:
        """Look for the peak from now on: a call of Python for each allocation in this thread."""
        if self._watch is None:
            self._watch = _watch(self.xp.cuda.MemoryHook, self)
            self._watch.__enter__()
        with self.xp.cuda.Device(self.index):
            self._watch.held = self._of_default_pool("used_bytes")
        self._watch.graphs = {allocation.start for pool in self.graph_pools for allocation in pool.live}
        self._watch.most = self.used()

    def out_of_memory_error(self, said: str, accounts: dict[str, int]) -> OutOfMemoryError:
        """The error for one of CuPy's, which `said` so. accounts: bytes that are held, by who holds them."""
        used = self.used()
        parts = {**accounts, "activations and others": max(0, used - sum(accounts.values()))}
        held = ", ".join(f"{name} {size(count)}" for name, count in parts.items())
        asked = re.search(r"allocating ([\d,]+) bytes", said)
        needs = f"{size(int(asked[1].replace(',', '')))} more" if asked else "more memory"
        free, whole = self._left(used)
        got = f"{size(free)} free of {size(whole)}; held: {size(used)} ({held})"
        return OutOfMemoryError(f"cuda:{self.index}", needs, got, _CURES)

    def _left(self, used: int) -> tuple[int, int]:
        """Bytes free, in the pool too, and all there are: the card's, or fewer where the pool has a limit."""
        with self.xp.cuda.Device(self.index) as device:
            free, whole = device.mem_info
            limit = self.xp.get_default_memory_pool().get_limit()
        free += self.reserved() - used
        return (min(free, max(0, limit - used)), min(whole, limit)) if limit else (free, whole)


def size(count: int) -> str:
    """Bytes in words: 1.5 GiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _watch(base: Any, usage: Usage) -> Any:
    class Watch(base):  # type: ignore[misc]
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
