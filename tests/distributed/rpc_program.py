"""Three workers that call each other: values, references and their counts, errors, answers that come later.

torchrun --nproc-per-node 3 tests/distributed/rpc_program.py
mpiexec -n 3 python tests/distributed/rpc_program.py mpi
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from typing import ClassVar

import numpy as np

import ampkit
from ampkit import distributed as dist
from ampkit import nn
from ampkit.distributed import rpc
from ampkit.distributed.environment import launched
from ampkit.distributed.rpc.references import current


@rpc.register
def doubled(x, *, by=2):
    return {"y": x * by, "dtype": x.dtype, "who": rpc.get_worker_info().name}


@rpc.register
def passed_on(to, x):
    return rpc.rpc_sync(to, doubled, args=(x,))


@rpc.register
@rpc.functions.async_execution
def passed_on_later(to, x):
    return rpc.rpc_async(to, doubled, args=(x,)).then(lambda done: done.wait()["y"] + 1)


@rpc.register
@rpc.functions.async_execution
def not_later():
    return 1


@rpc.register
def failing():
    raise KeyError("nothing there")


class OddError(Exception):
    pass


@rpc.register
def odd():
    raise OddError("of its own class")


@rpc.register
def slow(seconds):
    time.sleep(seconds)
    return seconds


@rpc.register
class Table:
    made: ClassVar = weakref.WeakSet()

    def __init__(self, rows):
        Table.made.add(self)
        self.rows = ampkit.arange(rows).float()

    def row(self, index):
        return self.rows[index]

    def add(self, index, value):
        self.rows[index] += value
        return self


@rpc.register
def alive():
    gc.collect()
    return len(Table.made), len(current("alive").values)


@rpc.register
def row_of(table, index):
    return float(table.rpc_sync().row(index))


@rpc.register
def kept(table):
    kept.table = table


@rpc.register
def kept_row(index):
    table = kept.__dict__.pop("table")
    return row_of(table, index)


def error_of(action):
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("no error")


def dropped(worker):
    """Whether a worker drops its tables within some time."""
    for _ in range(100):
        if rpc.rpc_sync(worker, alive) == (0, 0):
            return True
        time.sleep(0.05)
    return False


def calls():
    half = ampkit.tensor(np.arange(6).reshape(2, 3), dtype=ampkit.bfloat16).T
    for x in (half, ampkit.zeros(0, 3), ampkit.tensor(2.5), ampkit.tensor([True, False]).long()):
        found = rpc.rpc_sync("b", doubled, args=(x,), kwargs={"by": 3})
        assert found["dtype"] is x.dtype and found["who"] == "b"
        assert found["y"].shape == x.shape and bool((found["y"] == x * 3).all())
    big = ampkit.randn(700, 1000)
    workers = [1, "c", rpc.get_worker_info("b")] * 3
    several = [rpc.rpc_async(to, doubled, args=(big + n,)) for n, to in enumerate(workers)]
    assert all(bool((each["y"] == 2 * (big + n)).all()) for n, each in enumerate(rpc.wait_all(several)))
    assert rpc.rpc_sync("b", passed_on, args=("c", ampkit.ones(2)))["who"] == "c"
    assert rpc.rpc_sync("b", passed_on_later, args=("a", ampkit.ones(2))).tolist() == [3, 3]
    many = [rpc.rpc_async("b", passed_on_later, args=("c", ampkit.ones(1) * n)) for n in range(50)]
    assert [each.wait().item() for each in many] == [2 * n + 1 for n in range(50)]
    assert rpc.rpc_sync("c", ampkit.add, args=(ampkit.ones(2), 3)).tolist() == [4, 4]
    heard = []
    rpc.rpc_async("b", "__main__.slow", args=(0.01,)).add_done_callback(lambda done: heard.append(done.value()))
    while not heard:
        time.sleep(0.01)


def references():
    table = rpc.remote("b", Table, args=(5,))
    assert not table.is_owner() and table.owner().name == "b" and table.owner().id == 1
    assert float(table.rpc_sync().row(3)) == 3.0
    assert table.remote().add(3, 4.0).rpc_async().row(3).wait().item() == 7.0
    assert rpc.rpc_sync("c", row_of, args=(table, 3)) == 7.0  # by a third worker
    assert rpc.rpc_sync("b", row_of, args=(table, 3)) == 7.0  # by its owner
    for _ in range(60):  # beyond what one weight can be halved
        assert rpc.rpc_sync("c", row_of, args=(table, 3)) == 7.0
    rpc.rpc_sync("c", kept, args=(table,))
    del table
    assert rpc.rpc_sync("c", kept_row, args=(3,)) == 7.0  # which has the last reference
    assert dropped("b")
    mine = rpc.RRef(ampkit.ones(2))
    assert mine.local_value() is mine.to_here()
    assert rpc.rpc_sync("b", passed_on_by_reference, args=(mine,)).tolist() == [2, 2]
    layer = rpc.remote("c", nn.Linear, args=(3, 2))
    assert layer.rpc_sync()(ampkit.ones(4, 3)).shape == (4, 2)
    late = rpc.remote("b", slow, args=(0.2,))
    assert rpc.rpc_sync("c", value_of, args=(late,)) == 0.2
    here = rpc.remote("a", Table, args=(2,))
    assert here.is_owner() and here.rpc_sync().row(1).item() == 1.0 and here.to_here() is here.local_value()
    del here, mine
    assert dropped("a")


@rpc.register
def passed_on_by_reference(reference):
    return reference.to_here() * 2


@rpc.register
def value_of(reference):
    return reference.to_here()


def errors():
    error = error_of(lambda: rpc.rpc_sync("b", failing))
    assert type(error) is KeyError and "rpc_sync(__main__.failing) on b: 'nothing there'" in str(error)
    assert "On b:" in error.__notes__[0] and 'raise KeyError("nothing there")' in error.__notes__[0]
    error = error_of(lambda: rpc.remote("b", odd).to_here())
    assert type(error) is rpc.RemoteError and "on b: OddError: of its own class" in str(error), error
    error = error_of(lambda: rpc.rpc_sync("b", time.sleep, args=(1,)))
    assert "needs a function that this worker has declared, got 'time.sleep'" in str(error), error
    error = error_of(lambda: rpc.rpc_sync("b", not_later))
    assert "needs a Future from a function of @rpc.functions.async_execution, got a int" in str(error), error
    error = error_of(lambda: rpc.rpc_sync("b", slow, args=(1.0,), timeout=0.2))
    assert "needs an answer of b within 0.2 s, got none" in str(error), error
    table = rpc.remote("b", Table, args=(2,))
    for name in ("_hidden", "nowhere"):
        assert name in str(error_of(lambda name=name: getattr(table.rpc_sync(), name)()))
    assert "needs None, bools, numbers" in str(error_of(table.to_here))
    assert "its owner is b" in str(error_of(table.local_value))


words = sys.argv[1:]
if "mpi" in words:
    dist.init_process_group("mpi")
rank = launched().rank
rpc.init_rpc("abc"[rank])
if rank == 0:
    calls()
    references()
    errors()
rpc.shutdown()
print("right")
