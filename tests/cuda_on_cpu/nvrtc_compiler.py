"""NVIDIA's run-time compiler by ctypes: what `.cu` files become for an architecture, on a machine without a GPU.

The library is that of the wheel nvidia-cuda-nvrtc, or of an installed toolkit; options are those that CuPy gives.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ampkit.backends.cuda.nvrtc import FOLDERS, OPTIONS, options

from .entries import entries
from .sources import cache_folder, cached, headers, included


class Compiled(NamedTuple):
    """An entry's price on a GPU."""

    name: str
    registers: int
    spilled: int  # bytes stored to local memory for want of registers
    stack: int  # bytes of local memory, spills and arrays with indices known at run time alone
    shared: int  # bytes of static shared memory
    threads: int  # of a block, at most: its launch bounds, or what any block may have


@cache
def library() -> ctypes.CDLL | None:
    """libnvrtc, or None."""
    site = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = [*sorted(site.glob("*/lib/libnvrtc.so.*")), *sorted(Path("/usr/local/cuda/lib64").glob("libnvrtc.so"))]
    if not places:
        return None
    for beside in places[0].parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(beside))  # NVRTC asks the loader for it by name, which then knows where it is
    return ctypes.CDLL(str(places[0]))


def missing() -> str | None:
    """What keeps NVRTC from running here, or None."""
    if library() is None:
        return "no NVRTC: pip install nvidia-cuda-nvrtc"
    return None if headers() else "no cuda_fp16.h: pip install nvidia-cuda-runtime"


def build(code: str, names: Sequence[str], arch: str, extra: Sequence[str] = ()) -> list[Compiled]:
    """Compile the entries `names` of `code` for `arch` (sm_90). Raises RuntimeError with the compiler's log."""
    program = _Program(code, names)
    try:
        log = program.compile([*OPTIONS, f"-I{headers()}", f"-arch={arch}", "-ftz=true", "--ptxas-options=-v", *extra])
        ptx = program.ptx()
        return [_price(name, program.lowered(name), log, ptx) for name in names]
    finally:
        program.close()


def build_source(source: str, arch: str, extra: Sequence[str] = (), names: Sequence[str] = ()) -> list[Compiled]:
    """Entries of `<source>.cu`, all or `names`; cached while nothing that they include changes."""
    more = [*options(source)[len(OPTIONS) :], *extra]
    return build_once(f'#include "{source}.cu"\n', names or entries(source), arch, more)


def build_once(code: str, names: Sequence[str], arch: str, extra: Sequence[str] = ()) -> list[Compiled]:
    """As `build`; cached while nothing that they include changes."""
    parts = [code, *names, arch, *extra, library()._name, _text(code)]
    name = f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.json"

    def compile_and_store(path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(build(code, names, arch, extra)))
        partial.replace(path)

    return [Compiled(*row) for row in json.loads(cached(cache_folder() / name, compile_and_store).read_text())]


def instructions(code: str, name: str, arch: str, start: str) -> int:
    """How many instructions of the entry `name` of `code` begin with `start`, in the PTX for `arch` (compute_90)."""
    program = _Program(code, [name])
    try:
        program.compile([*OPTIONS, f"-I{headers()}", f"-arch={arch}", "-ftz=true"])
        body = program.ptx().partition(f".entry {program.lowered(name)}(")[2].partition("\n}\n")[0]
        return len(re.findall(rf"^\s*(?:@\S+\s+)?{re.escape(start)}", body, re.M))
    finally:
        program.close()


@cache
def _text(code: str) -> str:
    """What `code` includes, and how it is compiled."""
    return "".join(path.read_text() for path in (*included(code, FOLDERS), Path(__file__)))


def _price(name: str, lowered: str, log: str, ptx: str) -> Compiled:
    text = log.partition(f"Compiling entry function '{lowered}'")[2].partition("Compiling entry function")[0]
    found = {key: re.search(pattern, text) for key, pattern in PATTERNS.items()}
    bounds = re.search(rf"\.entry {re.escape(lowered)}\([^)]*\)\s*\.maxntid (\d+)", ptx)
    figures = {key: int(match[1]) if match else 0 for key, match in found.items()}
    return Compiled(name, **figures, threads=int(bounds[1]) if bounds else 1024)


PATTERNS = {
    "registers": r"Used (\d+) registers",
    "spilled": r"(\d+) bytes spill stores",
    "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}


class _Program:
    """One nvrtcProgram."""

    def __init__(self, code: str, names: Sequence[str]):
        self.lib = library()
        self.handle = ctypes.c_void_p()
        self._do("nvrtcCreateProgram", ctypes.byref(self.handle), code.encode(), b"kernels.cu", 0, None, None)
        for name in names:
            self._do("nvrtcAddNameExpression", self.handle, name.encode())

    def _do(self, function: str, *args) -> None:
        status = getattr(self.lib, function)(*args)
        if status:
            self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{function}: {self.lib.nvrtcGetErrorString(status).decode()}")

    def compile(self, options: Sequence[str]) -> str:
        """Returns the log."""
        given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        try:
            self._do("nvrtcCompileProgram", self.handle, len(options), given)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n{self._log()[:4000]}") from None
        return self._log()

    def _log(self) -> str:
        return self._text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog").decode()

    def ptx(self) -> str:
        return self._text("nvrtcGetPTXSize", "nvrtcGetPTX").decode()

    def _text(self, of_size: str, of_text: str) -> bytes:
        size = ctypes.c_size_t()
        self._do(of_size, self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._do(of_text, self.handle, buffer)
        return buffer.value

    def lowered(self, name: str) -> str:
        """The name of an entry in the compiled code."""
        found = ctypes.c_char_p()
        self._do("nvrtcGetLoweredName", self.handle, name.encode(), ctypes.byref(found))
        return (found.value or b"").decode()

    def close(self) -> None:
        self.lib.nvrtcDestroyProgram(ctypes.byref(self.handle))
