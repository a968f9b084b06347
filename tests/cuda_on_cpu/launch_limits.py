"""What a multiprocessor has for a block: whether a launch fits into it, by the figures of NVIDIA's assembler.

Only launches that can exceed the limits are looked up: those with dynamic shared memory, as the compiler itself refuses
too much static shared memory, and those with so many threads that 255 registers for each are more than there are.
"""

from __future__ import annotations

from functools import cache

from . import nvrtc_compiler

ARCHS = ("sm_75", "sm_80", "sm_90")
BLOCK_SHARED = 48 << 10  # bytes, static and dynamic
BLOCK_SHARED_OPT_IN = {"sm_75": 64 << 10, "sm_80": 163 << 10, "sm_90": 227 << 10}
REGISTERS = 65536  # of a multiprocessor, and of a block at most
PER_WARP = 256  # registers that a warp is given at once
ANY_THREADS = REGISTERS // 256  # threads of a block that fit whatever the registers of each, 255 at most


def refusal(code: str, name: str, threads: int, dynamic: int, opted: int = BLOCK_SHARED) -> str | None:
    """Why a GPU refuses to launch the entry `name` of `code`, or None.

    threads: of a block. dynamic: bytes of dynamic shared memory. opted: the attribute max_dynamic_shared_size_bytes.
    Without NVRTC nothing is known, and nothing refused.
    """
    if (not dynamic and threads <= ANY_THREADS) or nvrtc_compiler.missing():
        return None
    arch = _arch(opted)
    return _refusal(resource_usage(code, name, arch), arch, threads, dynamic, opted)


def _arch(opted: int) -> str:
    """With the least shared memory of those that the attribute fits; with the most, which refuses it, if none."""
    return next((arch for arch in ARCHS if opted <= BLOCK_SHARED_OPT_IN[arch]), ARCHS[-1])


@cache
def resource_usage(code: str, name: str, arch: str) -> nvrtc_compiler.Compiled:
    """What the entry `name` takes on `arch`."""
    return nvrtc_compiler.build_once(code, (name,), arch)[0]


def _refusal(usage: nvrtc_compiler.Compiled, arch: str, threads: int, dynamic: int, opted: int) -> str | None:
    limit = BLOCK_SHARED if opted <= BLOCK_SHARED else BLOCK_SHARED_OPT_IN[arch]
    if opted > BLOCK_SHARED and usage.shared + opted > limit:
        return f"{usage.shared} bytes of static shared memory and a limit of {opted}; {arch} has {limit} for a block"
    if usage.shared + dynamic > limit:
        return f"{usage.shared} bytes of static and {dynamic} of dynamic shared memory; {arch} has {limit} for a block"
    if threads > usage.threads:
        return f"blocks of {threads} threads; its launch bounds allow {usage.threads}"
    registers = registers_of(usage.registers, threads)
    if registers > REGISTERS:
        each = f"{usage.registers} registers for each of {threads} threads"
        return f"{each} are {registers}; {arch} has {REGISTERS} for a block"
    return None


def registers_of(each: int, threads: int) -> int:
    """Registers that a block takes: whole warps, each in units of PER_WARP."""
    return -(-threads // 32) * -(-each * 32 // PER_WARP) * PER_WARP
