"""The collectives on the ranks that mpiexec starts, each compared with what all ranks' inputs give.

mpiexec -n 3 python tests/distributed/collectives_program.py
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from program_device import on_device_of

import ampkit
from ampkit import distributed as dist

backend = on_device_of(sys.argv)
dist.init_process_group(backend, timeout=30)
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def of(rank: int, *shape: int, dtype: str = "float32"):
    """The input of a rank: every rank knows those of all."""
    values = np.random.default_rng(rank).standard_normal(shape).astype(np.float32)
    return ampkit.tensor(values * 4).to(getattr(ampkit, dtype))


def everyone(*shape: int, dtype: str = "float32") -> list[np.ndarray]:
    return [of(rank, *shape, dtype=dtype).double().numpy() for rank in range(SIZE)]


def sums() -> None:
    for shape in ((), (3,), (5, 7), (3000,), (100_001,)):
        for dtype, error in (("float64", 1e-15), ("float32", 2e-7), ("bfloat16", 2**-8), ("float16", 2**-11)):
            tensor, whole = of(RANK, *shape, dtype=dtype), sum(everyone(*shape, dtype=dtype))
            magnitude = sum(map(np.abs, everyone(*shape, dtype=dtype)))
            dist.all_reduce(tensor)
            assert np.all(np.abs(tensor.double().numpy() - whole) <= error * magnitude), (shape, dtype)
    tensor = of(RANK, 40)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    assert np.array_equal(tensor.numpy(), np.max(everyone(40), axis=0))
    transposed = of(RANK, 6, 5).t()
    dist.all_reduce(transposed, dist.ReduceOp.AVG)
    assert np.allclose(transposed.numpy(), np.mean(everyone(6, 5), axis=0).T, rtol=1e-6, atol=1e-6)
    works = [dist.all_reduce(of(RANK, 5000), async_op=True) for _ in range(5)]
    assert all(work.wait() and work.exception() is None for work in works)
    assert "nccl" in backend or all(work.is_success() for work in works)  # a GPU may still be at it
    one = of(RANK, 9)
    dist.reduce(one, SIZE - 1)
    expected = sum(everyone(9)) if RANK == SIZE - 1 else of(RANK, 9).numpy()
    assert np.allclose(one.numpy(), expected, rtol=1e-6)
    part = ampkit.zeros(4, 3)
    dist.reduce_scatter_tensor(part, of(RANK, 4 * SIZE, 3))
    assert np.allclose(part.numpy(), sum(everyone(4 * SIZE, 3))[4 * RANK : 4 * RANK + 4], rtol=1e-6, atol=1e-6)
    listed = ampkit.zeros(2)
    dist.reduce_scatter(listed, [ampkit.full((2,), float(RANK + rank)) for rank in range(SIZE)])
    assert listed.tolist() == [float(sum(range(SIZE)) + RANK * SIZE)] * 2


def copies() -> None:
    for source in range(SIZE):
        tensor = of(RANK, 2000)
        version = tensor._version_counter[0]
        dist.broadcast(tensor, source)
        assert np.array_equal(tensor.numpy(), of(source, 2000).numpy()) and tensor._version_counter[0] > version
    listed = [ampkit.zeros(3) for _ in range(SIZE)]
    dist.all_gather(listed, of(RANK, 3))
    assert np.array_equal([tensor.numpy() for tensor in listed], everyone(3))
    whole = ampkit.zeros(2 * SIZE, 3)
    dist.all_gather_into_tensor(whole, of(RANK, 2, 3))
    assert np.array_equal(whole.numpy(), np.concatenate(everyone(2, 3)))
    there = [ampkit.zeros(3) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(of(RANK, 3), there, dst=0)
    assert there is None or np.array_equal([tensor.numpy() for tensor in there], everyone(3))
    mine = ampkit.zeros(1)
    dist.scatter(mine, [ampkit.tensor([float(rank)]) for rank in range(SIZE)] if RANK == 0 else None, src=0)
    assert mine.tolist() == [float(RANK)]
    swapped = ampkit.zeros(SIZE)
    dist.all_to_all_single(swapped, ampkit.tensor([10.0 * RANK + rank for rank in range(SIZE)]))
    assert swapped.tolist() == [10.0 * rank + RANK for rank in range(SIZE)]
    uneven = ampkit.zeros(sum(range(1, SIZE + 1)))
    dist.all_to_all_single(
        uneven, ampkit.full((SIZE * (RANK + 1),), float(RANK)), list(range(1, SIZE + 1)), [RANK + 1] * SIZE
    )
    assert uneven.tolist() == [float(rank) for rank in range(SIZE) for _ in range(rank + 1)]
    objects: list[object] = [None] * SIZE
    dist.all_gather_object(objects, {"rank": RANK, "text": "x" * RANK})
    assert objects == [{"rank": rank, "text": "x" * rank} for rank in range(SIZE)]
    said = [RANK, "said by", RANK]
    dist.broadcast_object_list(said, src=SIZE - 1)
    assert said == [SIZE - 1, "said by", SIZE - 1]


def messages() -> None:
    following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    if SIZE == 1:
        return
    works = [dist.isend(ampkit.full((1000,), float(i)), following, tag=i % 2) for i in range(6)]
    for i in (1, 0, 3, 2, 5, 4):  # of one tag in order, of two tags in any
        tensor = ampkit.zeros(1000)
        assert dist.recv(tensor, before if i < 4 else None, tag=i % 2) == before
        assert tensor.tolist() == [float(i)] * 1000
    assert all(work.wait() for work in works)
    empty, columns = ampkit.zeros(0), of(RANK, 5, 2)
    work = dist.isend(columns[:, 0], following)
    dist.recv(columns[:, 1], before)
    assert work.wait() and np.array_equal(columns.numpy()[:, 1], of(before, 5, 2).numpy()[:, 0])
    work = dist.isend(empty, following)
    assert dist.recv(empty, before) == before and work.wait()
    for wrong in (lambda: dist.send(empty, RANK), lambda: dist.recv(empty, RANK)):
        with pytest.raises(ampkit.StateError, match=f"needs another rank, got rank {RANK}"):
            wrong()
    with pytest.raises(ampkit.ArgumentError, match="a tag from 0 to 3275, got -1"):
        dist.send(empty, following, tag=-1)


def shapes_and_dtypes() -> None:
    """No elements, no axes, strides, and every dtype."""
    for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"):
        for shape in ((), (0,), (2, 3)):
            tensor = ampkit.ones(shape, dtype=dtype)
            dist.all_reduce(tensor)
            assert tensor.dtype.name == dtype and (tensor == (SIZE if dtype != "bool" else True)).all().item()
            dist.broadcast(tensor, SIZE - 1)
            listed = [ampkit.zeros(shape, dtype=dtype) for _ in range(SIZE)]
            dist.all_gather(listed, ampkit.full(shape, RANK % 2, dtype=dtype))
            assert all((each == rank % 2).all().item() for rank, each in enumerate(listed))
    whole = ampkit.zeros(6, SIZE)
    whole[:, 0] = of(RANK, 6)
    for part in (whole[:, 0], whole[::2]):  # the second changes every other row of the first's sums
        dist.all_reduce(part)
    expected = sum(everyone(6))
    expected[::2] *= SIZE
    assert np.allclose(whole.numpy()[:, 0], expected, rtol=1e-5, atol=1e-5)
    columns = ampkit.zeros(4, SIZE)
    dist.all_gather([columns[:, rank] for rank in range(SIZE)], ampkit.full((4,), float(RANK)))
    assert columns.tolist() == [[float(rank) for rank in range(SIZE)]] * 4
    none = ampkit.zeros(0, 3)
    dist.all_to_all_single(none, ampkit.zeros(0, 3))
    with pytest.raises(ampkit.DTypeError, match="all_to_all: needs tensors of one dtype, float32, got int32"):
        dist.all_to_all([ampkit.zeros(1, dtype="int32")] * SIZE, [ampkit.zeros(1)] * SIZE)


def groups() -> None:
    even, last = dist.new_group(list(range(0, SIZE, 2))), dist.new_group([SIZE - 1])
    assert dist.get_rank(even) == (RANK // 2 if RANK % 2 == 0 else -1)
    if RANK % 2 == 0:
        tensor = ampkit.tensor([1.0])
        dist.all_reduce(tensor, group=even)
        assert tensor.tolist() == [float((SIZE + 1) // 2)] == [float(dist.get_world_size(even))]
        dist.broadcast(tensor, src=0, group=even)
    if RANK == SIZE - 1:
        dist.barrier(last)
        assert dist.get_process_group_ranks(last) == [SIZE - 1]
    first, again = dist.new_group(list(range(SIZE - 1, -1, -1))), dist.new_group(list(range(SIZE)))
    assert dist.get_rank(first) == SIZE - 1 - RANK
    for group in (first, again):
        tensor = ampkit.full((3000,), float(RANK))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.barrier()  # of another group, while the first is under way
        assert work.wait() and tensor.tolist() == [float(sum(range(SIZE)))] * 3000


if __name__ == "__main__":
    for part in (sums, copies, messages, shapes_and_dtypes, groups):
        part()
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {RANK} of {SIZE}: all collectives are right")
