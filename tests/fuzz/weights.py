"""Fuzz `ampkit.load` with files drawn from grammars of pickles, archives and headers (see pickles, archives).

    python -m tests.fuzz.weights --count 50000 --seed 0 [--grammar zip ...]

Each file is loaded twice, with other bytes in the memory that is free. The exit status is 1 if one led to code that
ran, to a raw error or a warning, to memory that the file did not bring, to a tensor outside its memory, to much memory,
to a hang or to a crash. `--number N` loads one file again.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import resource
import signal
import sys
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from ampkit import Tensor, load, nn, save
from ampkit.base.errors import AmpkitError
from ampkit.serialization.foreign_tensor import ForeignTensor

from . import children, traps
from .archives import GRAMMARS
from .children import GOOD

SECONDS = 5  # of the CPU
MEMORY = 96 * 2**10  # kilobytes by which the most memory of the process may grow with a file of some kilobytes
_EVENTS = ("exec", "compile", "import", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect",
           "pickle.find_class", "os.remove", "os.rename", "shutil.rmtree")  # fmt: skip
_PERTURB = -6  # of mallopt: fill memory with a byte when it is allocated, and with another when it is freed
_OWN = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2] / "ampkit"))  # what Python and the library read
_empty = np.empty
_watched: list[str] = []  # what the process did while it loaded
_loading: list[str] = []  # the folder of the file, while one is loaded


class _HangError(BaseException):
    pass


def drawn(grammar: str, seed: int, number: int) -> bytes:
    """The bytes of a file."""
    return GRAMMARS[grammar](Random(f"{seed} {grammar} {number}"))


def outcomes(grammar: str, seed: int, numbers: range, folder: Path) -> Iterator[tuple[str, str]]:
    """For each number: what came of its file, and a message."""
    _prepare(folder)
    for number in numbers:
        yield outcome(grammar, drawn(grammar, seed, number), folder)


def outcome(grammar: str, data: bytes, folder: Path) -> tuple[str, str]:
    """What comes of a file: read, refused, or a finding."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (first, said, found), (second, _, other) = (_tried(grammar, data, folder, fill) for fill in (0x55, 0xAA))
    if code := traps.sprung or _watched:
        said = repr(code[:3])
        traps.sprung.clear(), _watched.clear()
        return "code", said
    if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > MEMORY:
        return "memory", f"{grown >> 10} MiB for {len(data)} bytes"
    if first not in GOOD or second not in GOOD:
        return first, said
    return (first, said) if (first, found) == (second, other) else ("foreign memory", f"{found!r:.90} {other!r:.90}")


def _tried(grammar: str, data: bytes, folder: Path, fill: int) -> tuple[str, str, Any]:
    # The libc's free memory and what np.empty gives are filled with a byte, so that it shows in what was not written.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings(), _filled_with(fill):
            warnings.simplefilter("error")
            with _watching(folder):
                value = _loaded(grammar, data, folder)
            held = list(_contents(value))
            _overwrite_free_memory(fill)
            return ("read", "", held) if held == list(_contents(value)) else ("freed memory", "changed", held)
    except AmpkitError as error:
        lines = str(error).splitlines()
        fine = lines[0].startswith("load: ") and " needs " in lines[0] and len(lines) <= 2 and len(lines[0]) < 2000
        return ("refused" if fine and "more memory than there is" not in lines[0] else "raw"), str(error)[:300], None
    except _HangError:
        return "hang", "", None
    except BaseException as error:
        return "raw", f"{type(error).__name__}: {str(error)[:200]}", None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _loaded(grammar: str, data: bytes, folder: Path) -> Any:
    weights_only = None if len(data) % 2 else True
    if grammar != "index":
        return load(io.BytesIO(data), weights_only=weights_only)
    path = folder / "model.safetensors.index.json"
    path.write_bytes(data)
    return load(path, weights_only=weights_only)


def _contents(value: Any) -> Iterator[Any]:
    """What can be read of a value, each object once; of a tensor, its corners, by which it would leave its memory."""
    seen, left = set[int](), [value]
    while left:
        each = left.pop()
        if isinstance(each, Tensor | ForeignTensor | np.ndarray):
            array = each.array if isinstance(each, Tensor) else each
            array = array._array if isinstance(array, ForeignTensor) else array
            yield None if array is None else _corners(array)
        elif isinstance(each, str | bytes | int | float | complex | np.generic | None):
            yield repr(each)[:400] if not isinstance(each, int) else each % (2**61 - 1)
        elif id(each) not in seen:
            seen.add(id(each))
            left.extend(_inside(each))
            yield type(each).__name__


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, set | frozenset):  # in an order that does not follow from hashes, which for NaN are addresses
        return sorted((list(_contents(each)) for each in value), key=repr)
    if isinstance(value, list | tuple | deque):
        return list(value)
    return list(vars(value).values()) if isinstance(value, argparse.Namespace | nn.Module) else []


def _corners(array: np.ndarray) -> tuple[Any, ...]:
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    bounds = [np.lib.array_utils.byte_bounds(each) for each in (array, base)]
    if array.size and not bounds[1][0] <= bounds[0][0] <= bounds[0][1] <= bounds[1][1]:
        raise MemoryError(f"a view of shape {array.shape}, strides {array.strides} leaves {base.nbytes} bytes")
    if array.dtype == np.bool_ and array.size and array.view(np.uint8)[tuple(slice(3) for _ in array.shape)].max() > 1:
        raise ValueError("a bool that is neither 0 nor 1")
    ends = [array[tuple(slice(*cut) for _ in array.shape)].tobytes() for cut in ((0, 3), (-3, None))]
    return (array.dtype.str, array.shape, *ends)


@contextmanager
def _filled_with(fill: int) -> Iterator[None]:
    def empty(shape: Any, dtype: Any = float, *rest: Any, **named: Any) -> np.ndarray:
        made = _empty(shape, dtype, *rest, **named)
        made.view(np.uint8).fill(fill) if made.ndim else None
        return made

    _LIBC.mallopt(_PERTURB, fill)
    no_gpu = mock.patch("ctypes.util.find_library", return_value=None)  # which starts a program of the system
    with mock.patch("numpy.empty", empty), no_gpu:
        yield


_LIBC = ctypes.CDLL(None)


def _overwrite_free_memory(fill: int) -> None:
    held = [np.full(size, fill, np.uint8) for size in (1, 8, 24, 64, 800, 1000, 4000, 8000) for _ in range(9)]
    del held


@contextmanager
def _watching(folder: Path) -> Iterator[None]:
    _loading.append(str(folder))
    try:
        yield
    finally:
        _loading.pop()


def _watch(event: str, values: tuple[Any, ...]) -> None:
    if _loading:
        elsewhere = event == "open" and not str(values[0]).startswith((_loading[0], *_OWN))
        if elsewhere or event in _EVENTS:
            _watched.append(f"{event} {str(values)[:100]}")


_prepared: list[bool] = []


def _prepare(folder: Path) -> None:
    signal.signal(signal.SIGPROF, _hang)
    save({"w": Tensor(np.ones(3, np.float32)), "b": Tensor(np.ones(2))}, folder / "a.safetensors")
    save({"x": Tensor(np.ones(3, np.float32))}, folder / "b.bin")
    if not _prepared:  # a hook stays until the process ends
        for number in range(50):  # imports that wait for their first use
            for grammar in GRAMMARS:
                _tried(grammar, drawn(grammar, -1, number), folder, 0)
        sys.addaudithook(_watch)
        _prepared.append(True)


def _hang(*_: object) -> None:
    raise _HangError


def campaign(grammar: str, seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Load `count` files of a grammar in child processes; see children.campaign."""
    return children.campaign(grammar, count, lambda grammar, numbers, folder: outcomes(grammar, seed, numbers, folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="files of each grammar")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grammar", nargs="*", choices=list(GRAMMARS), default=list(GRAMMARS))
    parser.add_argument("--number", type=int, help="load this file alone, with the error's trace")
    options = parser.parse_args()
    if options.number is not None:
        data = drawn(options.grammar[0], options.seed, options.number)
        with tempfile.TemporaryDirectory() as folder:
            _prepare(Path(folder))
            sys.stdout.write(f"{data!r:.3000}\n{outcome(options.grammar[0], data, Path(folder))}\n")
            _loaded(options.grammar[0], data, Path(folder))
        return 0
    bad = sum(len(campaign(each, options.seed, options.count)[1]) for each in options.grammar)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
