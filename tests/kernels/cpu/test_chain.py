"""Elementwise launches that wait and run tile by tile give the bits that each gives by itself."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampkit import kernels
from ampkit.backends.cpu import copies, threads
from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import bfloat16, bool_, float16, float32

pytestmark = [pytest.mark.no_gpu, pytest.mark.skipif(not available(), reason="without compiled kernels")]
if available():
    from ampkit.kernels.cpu.pointwise import chain, elementwise

DTYPES = {"float32": float32, "bfloat16": bfloat16, "float16": float16}
TABLE = (Path(kernels.__file__).parent / "shared" / "functions.h").read_text()
NAMES = sorted(set(re.findall(r"^FUNCTION\w*\((\w+),", TABLE, re.MULTILINE)))
ROWS, COLUMNS = 7, 1111  # neither a multiple of a vector nor of a tile


@pytest.fixture(autouse=True, params=["in caches", "past caches"])
def _opened(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Let launches of any size wait, and fill their outputs with NaN until they are computed."""
    monkeypatch.setattr(chain, "PAST_CACHES", 0 if request.param == "past caches" else chain.PAST_CACHES)
    monkeypatch.setattr(elementwise, "MIN_WAITING", 1)
    monkeypatch.setattr(chain, "MIN_WAITING", 1)
    monkeypatch.setattr(queue, "fills", True)
    yield
    assert not queue.active and not queue.waiting


def bits(arrays: Any) -> list[bytes]:
    return [b"" if array is None else np.ascontiguousarray(array).tobytes() for array in arrays]


def together(launch: Any) -> Any:
    """What `launch()` returns, computed as one chain."""

    def opened() -> Any:
        queue.opened = True
        return launch()

    made, log = queue.run_step(opened, (), {})
    assert log is not None
    return made, log


def values(seed: int, dtype: Any, *shape: int) -> Any:
    """Random elements, with infinities, NaN, zeros of both signs and subnormals among them."""
    random = np.random.default_rng(seed)
    found = random.normal(size=shape).astype(np.float32)
    flat = found.reshape(-1)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-40, 1e-38, 3e38, 1.0, 2.0, -1.0, 6e-8]
    places = random.choice(flat.size, min(flat.size, 4 * len(special)), replace=False)
    with np.errstate(over="ignore"):
        flat[places] = np.resize(np.array(special, np.float32), places.size)
        return found.astype(dtype)


def operands_of(kind: str, dtype: Any) -> tuple[Any, ...]:
    """Four operands that broadcast to [ROWS, COLUMNS]."""
    x, y, z = (values(i, dtype, ROWS, COLUMNS) for i in range(3))
    if kind == "rows":
        return x, y, z, 0.75
    if kind == "numbers":
        return x, 0.5, 2.0, 1.0
    if kind == "one element":
        return x, values(4, dtype, 1), z, values(5, dtype, 1, 1)
    if kind == "broadcast":
        return x, values(4, dtype, COLUMNS), values(5, dtype, ROWS, 1), 0.75
    if kind == "strided":
        return x, values(4, dtype, ROWS, 2 * COLUMNS)[:, ::2], values(5, dtype, ROWS, COLUMNS + 5)[:, 5:], 0.75
    if kind == "transposed":
        return values(3, dtype, COLUMNS, ROWS).T, y, values(5, dtype, COLUMNS, ROWS).T, 0.75
    return x, values(4, float32, ROWS, COLUMNS), values(5, bool_, ROWS, COLUMNS), 0.75  # mixed


_SHORT_ROWS = (bfloat16, 31, 100), (bfloat16, 100), (float32, 31, 100)
KINDS = ("rows", "numbers", "one element", "broadcast", "strided", "transposed", "mixed")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_in_a_chain_has_the_bits_that_it_has_alone(kind, dtype):
    stored = DTYPES[dtype]
    x, *others = operands_of(kind, stored)
    differ = []
    for name in NAMES:

        def launch(name: str = name) -> Any:
            first = elementwise.forward("Neg", (x,), stored)
            value = elementwise.forward(name, (first, *others), stored)
            return elementwise.forward("Neg", (value,), float32), elementwise.forward("Mul", (value, first), stored)

        alone = launch()
        made, log = together(launch)
        if bits(alone) != bits(made):
            differ.append(name)
        assert sum(len(each.names) for each in log.chains) + sum(log.alone.values()) == 4
    assert not differ


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_gradient_in_a_chain_has_the_bits_that_it_has_alone(kind, dtype):
    stored = DTYPES[dtype]
    x, *others = operands_of(kind, stored)
    dy = values(9, stored, ROWS, COLUMNS)
    differ = []
    for name in NAMES:
        loops = elementwise.loops_of(name)
        count = sum(bool(ctypes.c_void_p.from_address(loops + (i + 1) * elementwise._LOOPS).value) for i in range(3))
        wanted = tuple([stored, float32, None][:count])
        if not count:
            continue

        def launch(name: str = name, wanted: Any = wanted) -> Any:
            first = elementwise.forward("Add", (dy, 0.0, 1.0), stored)
            found = elementwise.backward(name, first, (x, *others[:2]), wanted)
            return [elementwise.forward("Neg", (each,), stored) for each in found if each is not None]

        alone = launch()
        made, _ = together(launch)
        if bits(alone) != bits(made):
            differ.append(name)
    assert not differ


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_those_of_any_number_of_threads(dtype):
    stored = DTYPES[dtype]
    x, y = values(0, stored, 300, 1111), values(1, stored, 1111)

    def launch() -> Any:
        z = elementwise.forward("Silu", (x,), stored)
        for _ in range(4):
            z = elementwise.forward("Mul", (elementwise.forward("Add", (z, y, 1.0), stored), x), stored)
        return [z]

    before, found = threads.get_num_threads(), [bits(launch())]
    try:
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            found.append(bits(together(launch)[0]))
    finally:
        threads.set_num_threads(before)
    assert found.count(found[0]) == 4


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_casts_and_copies_in_a_chain_have_the_bits_that_they_have_alone(dtype, kind):
    size = f"u{DTYPES[dtype].itemsize}"
    x = np.random.default_rng(0).integers(0, np.iinfo(size).max, (300, 1111), size, endpoint=True).view(DTYPES[dtype])
    wanted = np.empty_like(x, DTYPES[kind])
    copies.copy(wanted, x)

    def launch() -> Any:
        made = chain.cast(x, DTYPES[kind])
        return [made, chain.cast(made, DTYPES[kind]), elementwise.forward("Neg", (made,), DTYPES[kind])]

    made, log = together(launch)
    assert bits(made) == bits([wanted, wanted, elementwise.forward("Neg", (wanted,), DTYPES[kind])])
    assert [one.stored for one in log.chains] == [3]
    assert bits(together(lambda: [chain.cast(x, DTYPES[kind])])[0]) == bits([wanted])


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_tiles_that_begin_between_cache_lines_are_stored_whole(offset):
    x = values(0, bfloat16, 5000 + offset)[offset:]

    def launch() -> Any:
        first = elementwise.forward("Silu", (x,), bfloat16)
        return [first, elementwise.forward("Add", (first, x, 1.0), float32)]

    assert bits(together(launch)[0]) == bits(launch())


def test_what_only_the_chain_reads_is_never_stored():
    x = values(0, float32, ROWS, COLUMNS)

    def launch() -> Any:
        first = elementwise.forward("Neg", (x,), float32)
        second = elementwise.forward("Exp", (first,), float32)
        kept = elementwise.forward("Mul", (second, second), float32)
        return kept[2:], elementwise.forward("Add", (kept, first, 1.0), float32)  # a view keeps the third one

    _, log = together(launch)
    assert [(one.names, one.stored) for one in log.chains] == [(("Neg", "Exp", "Mul", "Add"), 2)]
    assert log.chains[0].before == 9 * x.nbytes
    assert log.chains[0].after == 3 * x.nbytes


def test_a_chain_goes_on_across_outputs_that_are_kept_in_another_order_of_axes():
    x = values(0, bfloat16, 4, 9, 11, 8).transpose(0, 3, 1, 2)  # channels last

    def launch() -> Any:
        y = elementwise.forward("Silu", (x,), bfloat16)
        return [elementwise.forward("Mul", (y, x), bfloat16)]

    made, log = together(launch)
    assert made[0].strides == x.strides
    assert [one.stored for one in log.chains] == [1]
    assert bits(made) == bits(launch())


def test_more_launches_than_a_chain_holds_and_other_shapes_are_all_computed():
    x, y = values(0, float32, ROWS, COLUMNS), values(1, float32, 3, 500)

    def launch() -> Any:
        a, b = x, y
        for step in range(chain.MAX_STEPS + 5):
            a = elementwise.forward("Add", (a, 1.0, float(step)), float32)
            b = elementwise.forward("Mul", (b, 1.25), float32)
        return a, b, elementwise.forward("Add", (y, b, 1.0), float32), elementwise.forward("Neg", (a[:, 1:],), float32)

    made, log = together(launch)
    assert bits(made) == bits(launch())
    assert max(len(one.names) for one in log.chains) == chain.MAX_STEPS


def test_a_cut_that_decides_about_subnormals_stays_as_it_is():
    x, row, wide = (values(i, dtype, *shape) for i, (dtype, *shape) in enumerate(_SHORT_ROWS))
    x[...] = np.float32(1e-39)  # rows alone are read and written as stored, where some CPUs make products 0

    def launch() -> Any:
        first = elementwise.forward("Mul", (wide, values(3, float32, 100)), float32)  # 20 rows a tile
        return [first, elementwise.forward("Mul", (x, row), bfloat16), elementwise.forward("Neg", (first,), bfloat16)]

    assert bits(together(launch)[0]) == bits(launch())


def test_memory_that_runs_out_for_tiles_lets_each_launch_run_alone(monkeypatch):
    x = values(0, float32, ROWS, COLUMNS)

    def launch() -> Any:
        return [elementwise.forward("Exp", (elementwise.forward("Neg", (x,), float32),), float32)]

    def short(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(chain, "_run_chain", short)
    assert bits(together(launch)[0]) == bits(launch())
