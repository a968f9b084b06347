"""CuPy's RawModule on a CPU: kernels compiled by g++ and run by `cuda_on_cpu.h`, one fiber per CUDA thread.

    module = RawModule(code='#include "amp/found_inf.cu"', options=OPTIONS, name_expressions=("unscale<float>",))
    module.get_function("unscale<float>")((blocks,), (256,), (x, out, np.int64(n)), shared_mem=0)

It refuses what a GPU would run into garbage: arguments whose number, kind or size are not the kernel's, arrays of
another dtype than the parameter points to, grids and blocks that CUDA does not take.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from . import launch_limits
from .entries import entries
from .sources import cache_folder, cached, headers, included

HERE = Path(__file__).parent
FORWARD, REVERSE, SHUFFLED = 0, 1, 20211  # orders of the threads; any number above 1 is the seed of a shuffle
FLAGS = ["-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fvisibility=hidden"]
FLAGS += ["-fno-gnu-unique", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-fcf-protection=none"]
LINKED = ["-shared", "-nodefaultlibs", "-Wl,--no-as-needed", "-lstdc++", "-lm", "-lc", "-lgcc_s"]  # and no sanitizer's
MAX_SIZES = (2**31 - 1, 65535, 65535, 1024, 1024, 64)  # blocks and threads along each axis
CONTRACTED = ["-ffp-contract=fast", "-mfma", "-fexpensive-optimizations"]  # a * b + c rounded once, where g++ finds it
ENTRIES_PER_RUN = 60  # entries that one run of g++ compiles
order = SHUFFLED
extra_flags: list[str] = []
_machine: list[int] = []  # the address of the Machine on which all libraries launch, that of the first


@contextmanager
def thread_order(how: int) -> Iterator[None]:
    """Within the block kernels run their threads FORWARD, in REVERSE, or shuffled by the seed `how`."""
    global order
    before, order = order, how
    try:
        yield
    finally:
        order = before


@contextmanager
def compiled_with(flags: Sequence[str]) -> Iterator[None]:
    """Within the block kernels that are loaded are compiled with these flags of g++ besides FLAGS."""
    before = list(extra_flags)
    extra_flags[:] = [*before, *flags]
    try:
        yield
    finally:
        extra_flags[:] = before


def contracted() -> bool:
    """Whether kernels that are loaded round a * b + c once."""
    return CONTRACTED[0] in extra_flags


class LaunchError(RuntimeError):
    """What a GPU would refuse, or turn into garbage."""


class Parameter(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_char) for name in ("kind", "element", "constant")), ("size", ctypes.c_int))


class Entry(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kernel", ctypes.c_void_p),
        ("call", ctypes.c_void_p),
        ("parameters", ctypes.POINTER(Parameter)),
        ("count", ctypes.c_int),
    )


class RawModule:
    """`code`, compiled; all entries that a file names at once, where it is `#include "<source>.cu"` alone."""

    def __init__(self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = ()):
        source = re.fullmatch(r'\s*#include "([\w/]+)\.cu"\s*', code)
        folders = [Path(o[2:]) for o in options if o.startswith("-I")]
        folder = next((f for f in folders if source and (f / f"{source[1]}.cu").exists()), None)
        self.code = code
        with compiled_with(["-ffp-contract=off"] if "--fmad=false" in options else []):
            names = tuple(name_expressions)
            self.entries = library(code, tuple(map(str, folders)), names, source and source[1], folder)

    def get_function(self, name: str) -> Function:
        """The entry `name`. Raises LookupError for one that the comments at the end of the file do not name."""
        if name not in self.entries:
            near = [n for n in self.entries if n.partition("<")[0] == name.partition("<")[0]] or list(self.entries)
            raise LookupError(f"no entry {name!r}; the comments at the end of the .cu file name {', '.join(near)}")
        return Function(name, *self.entries[name], self.code)


class Function:
    """A kernel, called as CuPy's: (grid, block, arguments, shared_mem)."""

    def __init__(self, name: str, lib: ctypes.PyDLL, entry: Entry, shared: list[tuple[int, int]], code: str):
        self.name, self.lib, self.entry, self.shared, self.code = name, lib, entry, shared, code
        self.parameters = entry.parameters[: entry.count]
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int = 0) -> None:
        self.bound(grid, block, args, shared_mem)()

    def bound(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int = 0
    ) -> Callable[[], None]:
        """A launch, with its arguments as they are now: addresses and values."""
        sizes = (*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block)))
        self._check(sizes, args, shared_mem)
        values = [self._value(i, p, a) for i, (p, a) in enumerate(zip(self.parameters, args, strict=True))]
        return lambda: self._run(sizes, values, shared_mem)

    def _run(self, sizes: Sequence[int], values: list[Any], shared: int) -> None:
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        for address, size in self.shared:
            ctypes.memset(address, 0xFF, size)
        given = ((ctypes.c_uint * 6)(*sizes), ctypes.c_size_t(shared), pointers, order)
        error = self.lib.cuda_on_cpu_launch(ctypes.byref(self.entry), *given)
        if error:
            raise LaunchError(f"{self.name}: {error.decode()}")

    def _check(self, sizes: Sequence[int], args: Sequence[Any], shared: int) -> None:
        if any(not 1 <= n <= most for n, most in zip(sizes, MAX_SIZES, strict=True)) or math.prod(sizes[3:]) > 1024:
            raise LaunchError(f"{self.name}: CUDA takes no grid {tuple(sizes[:3])} of blocks {tuple(sizes[3:])}")
        if shared > min(self.max_dynamic_shared_size_bytes, 227 << 10):
            limit = "48 KiB, or up to 227 KiB with max_dynamic_shared_size_bytes"
            raise LaunchError(f"{self.name}: {shared} bytes of dynamic shared memory; {limit}")
        if len(args) != len(self.parameters):
            raise LaunchError(f"{self.name}: {len(self.parameters)} parameters, {len(args)} arguments")
        limit = self.max_dynamic_shared_size_bytes
        refused = launch_limits.refusal(self.code, self.name, math.prod(sizes[3:]), shared, limit)
        if refused:
            raise LaunchError(f"{self.name}: {refused}")

    def _value(self, i: int, parameter: Parameter, given: Any) -> Any:
        wrong = mismatch(parameter, given)
        if wrong:
            raise LaunchError(f"{self.name}: argument {i} is {wrong}")
        if parameter.kind == b"p":
            return ctypes.c_void_p(address(given))
        raw = np.asarray(given).tobytes()
        return ctypes.create_string_buffer(raw, len(raw))


def address(array: Any) -> int | None:
    if isinstance(array, np.generic):
        return None
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def letter(dtype: np.dtype) -> str:
    """What cuda_on_cpu.h calls a dtype: float16 h, bfloat16 b, other floats f, integers and bools i, records s."""
    named = {"float16": "h", "bfloat16": "b"}
    return named.get(dtype.name) or {"f": "f", "i": "i", "u": "i", "b": "i"}.get(dtype.kind, "s")


def mismatch(parameter: Parameter, given: Any) -> str | None:
    """Why `given` cannot be passed for `parameter`, or None."""
    kind, element = parameter.kind.decode(), parameter.element.decode()
    if kind == "p":
        if isinstance(given, np.uintp) and not given:
            return None
        if isinstance(given, np.generic) or not hasattr(given, "dtype"):
            return f"{given!r} and the parameter a pointer"
        known = (letter(given.dtype), given.dtype.itemsize) == (element, parameter.size)
        return (
            None if known or element == "s" else f"of {given.dtype}; the parameter points to {element}{parameter.size}"
        )
    record = isinstance(given, np.ndarray) and given.size == 1 and given.dtype.kind == "V" and given.dtype.names
    if not isinstance(given, np.generic) and not record:
        return f"a {type(given).__name__}; the parameter is a value, which takes a NumPy scalar"
    same = given.dtype.itemsize == parameter.size and (kind == "s" or letter(given.dtype) == kind)
    return None if same else f"of {given.dtype}; the parameter is {kind}{parameter.size}"


def library(
    code: str, folders: tuple[str, ...], names: tuple[str, ...], source: str | None, folder: Path | None
) -> Any:
    """The compiled entries by name: (library, entry, its static shared memory)."""
    if folder is None:
        return _loaded(code, folders, names, _digest(code, *map(Path, folders)))
    return _loaded(code, folders, _entries(source, folder), _digest(code, folder, *map(Path, folders)))


def _entries(source: str | None, folder: Path) -> tuple[str, ...]:
    return tuple(entries(source or "", folder))


def _digest(code: str, *folders: Path) -> str:
    """Of everything that the compiled code is made of."""
    files = [*included(code, folders), *sorted(HERE.rglob("*.h"))]
    text = "\n".join([code, *FLAGS, *extra_flags, _compiler(), *(f.read_text() for f in files)])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def _loaded(code: str, folders: tuple[str, ...], names: tuple[str, ...], digest: str) -> dict[str, Any]:
    found = {}
    parts = [names[i : i + ENTRIES_PER_RUN] for i in range(0, len(names), ENTRIES_PER_RUN)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = list(pool.map(lambda part: _compiled(code, folders, part, digest), parts))
    for path in paths:
        found.update(_opened(path))
    return found


def _opened(path: Path) -> dict[str, Any]:
    lib = ctypes.PyDLL(str(path))
    lib.cuda_on_cpu_launch.restype = ctypes.c_char_p
    machine_of = lib.cuda_on_cpu_machine
    machine_of.argtypes, machine_of.restype = [ctypes.c_void_p], ctypes.c_void_p
    _machine[:] = [machine_of(*(_machine or [None]))]
    count = ctypes.c_int.in_dll(lib, "cuda_on_cpu_count").value
    listed = (Entry * count).in_dll(lib, "cuda_on_cpu_entries")
    base = ctypes.addressof(listed)
    shared = [(base + offset, size) for offset, size in _statics(path)]
    return {entry.name.decode(): (lib, entry, shared) for entry in listed}


def _statics(path: Path) -> list[tuple[int, int]]:
    """Where, from the table of entries on, the `__shared__` variables of kernels lie, and their sizes."""
    table = subprocess.run(["objdump", "-t", str(path)], check=True, capture_output=True, text=True).stdout
    lines = [line.replace("\t", " ").split() for line in table.splitlines()]
    base = next(int(line[0], 16) for line in lines if line and line[-1] == "cuda_on_cpu_entries" and ".bss" in line)
    ours = [line for line in lines if line and line[-1].startswith("_ZZ") and ".bss" in line]
    return [(int(line[0], 16) - base, int(line[line.index(".bss") + 1], 16)) for line in ours]


def _compiled(code: str, folders: tuple[str, ...], names: tuple[str, ...], digest: str) -> Path:
    name = hashlib.sha256("\n".join([digest, *names]).encode()).hexdigest()[:24]
    listed = "".join(f'    cuda_on_cpu_entries[i++] = ENTRY("{n}", {n});\n' for n in names)
    table = TABLE.format(count=len(names), length=max(1, len(names)), listed=listed)
    flags = [*LINKED, *_includes(), *(f"-I{f}" for f in folders)]
    return cached(cache_folder() / f"{name}.so", lambda path: build(_header() + code + table, path, flags))


TABLE = """
extern "C" {{
__attribute__((visibility("default"))) cuda_on_cpu::Entry cuda_on_cpu_entries[{length}];
__attribute__((visibility("default"))) int cuda_on_cpu_count = {count};
__attribute__((visibility("default"))) const char* cuda_on_cpu_launch(
    const cuda_on_cpu::Entry* entry, const unsigned* sizes, size_t shared, void** arguments, int how) {{
    return cuda_on_cpu::launch(*entry, sizes, shared, arguments, how);
}}
__attribute__((visibility("default"))) void* cuda_on_cpu_machine(void* shared) {{
    if (shared) cuda_on_cpu::machine = static_cast<cuda_on_cpu::Machine*>(shared);
    return cuda_on_cpu::machine;
}}
}}
__attribute__((constructor)) static void fill_table() {{
    int i = 0;
{listed}}}
"""


def build(source: str, path: Path, flags: Sequence[str]) -> None:
    """Compile `source` to `path`, which appears whole or not at all. Raises RuntimeError with g++'s words."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        file, result = Path(work) / "code.cpp", Path(work) / "result"
        file.write_text(source)
        command = ["g++", *FLAGS, *extra_flags, *flags, str(file), "-o", str(result)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"g++ refused:\n{run.stderr[:4000]}")
        result.replace(path)


def _header() -> str:
    """The line that includes cuda_on_cpu.h, compiled before, once."""
    line = f'#include "{HERE}/cuda_on_cpu.h"\n'

    def precompile(path: Path) -> None:
        path.with_suffix("").write_text(line)
        build(line, path, ["-x", "c++-header", *_includes()])

    path = cached(cache_folder() / f"{_digest('header')}.h.gch", precompile)
    return f'#include "{path.with_suffix("")}"\n'


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "-v"], check=True, capture_output=True, text=True).stderr


def cpu_flags() -> set[str]:
    """What the CPU can do, in Linux's words."""
    return set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0]))


def missing() -> str | None:
    """What keeps the emulation from running here, or None."""
    if subprocess.run(["sh", "-c", "command -v g++ objdump"], capture_output=True).returncode:
        return "no g++ or objdump"
    return None if headers() else "no cuda_fp16.h: pip install nvidia-cuda-runtime"


def _includes() -> list[str]:
    return [f"-I{HERE}", f"-I{HERE / 'stub'}", f"-I{headers()}"]
