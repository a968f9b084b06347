"""What graphpool.py and allocator.py take for granted of CuPy, asked of CuPy itself, which needs no GPU for it."""

from __future__ import annotations

import gc
import weakref

import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


class Owner:
    """Something that has memory."""


def unowned(owner, size=4096):
    return cupy.cuda.UnownedMemory(1 << 20, size, owner, 0)


def test_an_array_on_unowned_memory_keeps_its_owner_as_do_its_views():
    owner = Owner()
    gone = weakref.ref(owner)
    pointer = cupy.cuda.MemoryPointer(unowned(owner), 16)
    array = cupy.ndarray((4, 3), "f4", pointer, (4, 16))
    assert (array.data.ptr, array.data.mem.ptr, array.data.mem.size) == ((1 << 20) + 16, 1 << 20, 4096)
    assert (array.strides, array.data.device_id) == ((4, 16), 0)
    view = array[1:]
    del owner, pointer, array
    gc.collect()
    assert gone() is not None
    assert view.data.mem.ptr == 1 << 20
    del view
    gc.collect()
    assert gone() is None


@pytest.fixture
def allocator():
    """Replaces the default pool as the allocator of CuPy; sizes: what it was asked for."""
    before, sizes = cupy.cuda.get_allocator(), []

    def allocate(size):
        sizes.append(size)
        return cupy.cuda.MemoryPointer(unowned(None, size), 0)

    allocate.sizes = sizes
    yield allocate
    cupy.cuda.set_allocator(before)


def test_any_callable_is_an_allocator_and_one_for_a_block_of_code_comes_first(allocator):
    cupy.cuda.set_allocator(allocator)
    assert cupy.cuda.get_allocator() is allocator
    assert cupy.ndarray((8,), "f4").data.ptr == 1 << 20
    assert allocator.sizes == [32]
    with cupy.cuda.using_allocator(lambda size: allocator(2 * size)):
        cupy.ndarray((8,), "f4")
        with pytest.raises(ValueError, match="using_allocator"):
            cupy.cuda.set_allocator(allocator)
    assert allocator.sizes == [32, 64]


def test_the_names_that_memory_goes_by_exist():
    cuda = cupy.cuda
    assert issubclass(cuda.Memory, cuda.BaseMemory)
    assert issubclass(cuda.memory.OutOfMemoryError, MemoryError)
    assert str(cuda.memory.OutOfMemoryError(4096, 512, 0)).startswith("Out of memory allocating 4,096 bytes")
    assert {"malloc", "free_all_blocks", "used_bytes", "total_bytes"} <= set(dir(cuda.MemoryPool))
