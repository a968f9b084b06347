"""The time of exchanges and of a step on a described cluster, by latency and bandwidth (Hockney 1994)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .trace import Exchange


@dataclass(frozen=True)
class Cluster:
    """Machines of `ranks_per_machine` ranks. bandwidth, local_bandwidth: bytes per second of a rank's link to other
    machines and within its own. latency, local_latency: seconds of each message, which follow one another."""

    name: str
    ranks_per_machine: int
    latency: float
    bandwidth: float
    local_latency: float
    local_bandwidth: float

    def seconds(self, exchange: Exchange, rank: int = 0) -> float:
        """Of an exchange, for a rank that sends and receives at a time."""
        machine, total = rank // self.ranks_per_machine, 0.0
        for here, latency, bandwidth in (
            (True, self.local_latency, self.local_bandwidth),
            (False, self.latency, self.bandwidth),
        ):
            ways = []
            for counts in (exchange.sent, exchange.received):
                on = [n for other, n in enumerate(counts) if n and (other // self.ranks_per_machine == machine) == here]
                ways.append(len(on) * latency + sum(on) / bandwidth)
            total = max(total, max(ways))  # links within and between machines work side by side
        return total


def fitted(samples: Sequence[tuple[Exchange, float]], ranks_per_machine: int) -> Cluster:
    """The cluster of one machine whose latency and bandwidth fit measured seconds best, relative to them."""
    rows = [[sum(n > 0 for n in each.received) / s, sum(each.received) / s] for each, s in samples]
    (latency, per_byte), *_ = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)
    latency, per_byte = max(float(latency), 0.0), max(float(per_byte), 1e-15)
    return Cluster("measured", ranks_per_machine, latency, 1 / per_byte, latency, 1 / per_byte)


@dataclass(frozen=True)
class Step:
    """Seconds of a step: of computing, of communication, and of both, which runs beside backward."""

    compute: float
    communication: float
    total: float

    @property
    def efficiency(self) -> float:
        return self.compute / self.total

    @property
    def hidden(self) -> float:
        """The part of the communication that runs beside computing."""
        return 1 - (self.total - self.compute) / self.communication if self.communication else 1.0


def step(
    cluster: Cluster, exchanges: Sequence[Exchange], forward: float, backward: float, update: float,
    work: Cluster | None = None,
) -> Step:  # fmt: skip
    """A step whose exchanges begin during backward, one after the other, each when its gradients are there.

    Gradients become ready evenly over backward by their bytes; the update follows the last exchange. work: what
    exchanges take of the processor where no core is left for them: backward waits meanwhile. By default nothing.
    """
    bytes_of = [sum(each.sent) for each in exchanges]
    total, passed, spent = sum(bytes_of) or 1, 0, 0.0
    now, computed = forward, 0.0  # seconds of backward
    for each, count in zip(exchanges, bytes_of, strict=True):
        passed += count
        taken, needed = 0.0 if work is None else work.seconds(each), backward * passed / total
        seconds = max(cluster.seconds(each), taken)
        spent += seconds
        if computed < needed:
            now, computed = now + needed - computed, needed
        now, computed = now + seconds, min(backward, computed + seconds - taken)
    return Step(forward + backward + update, spent, now + backward - computed + update)
