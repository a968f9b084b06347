"""How many of its warps a multiprocessor of an H100 holds at once, of the blocks of a launch."""

from __future__ import annotations

from typing import NamedTuple

from .launch_limits import REGISTERS, registers_of, resource_usage
from .traffic import Launch

WARPS, BLOCKS = 64, 32  # of a multiprocessor, at most
SHARED, RESERVED = 228 << 10, 1 << 10  # bytes of a multiprocessor; what each block takes besides its own


class Occupancy(NamedTuple):
    """share: of WARPS, where there are blocks enough."""

    registers: int
    static: int
    share: float


def of(launch: Launch) -> Occupancy:
    usage = resource_usage(f'#include "{launch.source}.cu"\n', launch.name, "sm_90")
    blocks = resident(usage.registers, usage.shared + launch.dynamic, launch.threads)
    return Occupancy(usage.registers, usage.shared, blocks * -(-launch.threads // 32) / WARPS)


def resident(registers: int, shared: int, threads: int) -> int:
    """Blocks that a multiprocessor holds."""
    warps = -(-threads // 32)
    return min(BLOCKS, WARPS // warps, REGISTERS // registers_of(registers, threads), SHARED // (shared + RESERVED))
