"""What a compiled step does with its launches: `Compiled.report()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...backends.launch_queue import FusedChain, Log
from ...base.byte_sizes import bytes_in_words

_ROWS = 12  # chains, and reasons, that the text lists


@dataclass(frozen=True)
class Memory:
    """Of a call. peak: the most bytes that arrays held during it. anew: what was computed anew rather than kept."""

    peak: int = 0
    anew: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What was fused, what was not and why; its text is a table.

    device: cpu, or the GPU's. chains: kinds of chains of the last call on a CPU, or of all recordings of a GPU, by how
    often they ran. alone: why elementwise launches ran by themselves, by how many. ended_by: what ended chains, as it
    may read their outputs. graphs: how many kinds of calls are recorded on a GPU, each launched as one graph.
    eager_because: why calls run eagerly there. peak_bytes: the most bytes that arrays of 128 KiB and more held during
    the last call on a CPU, or the memory of the temporaries of the largest recording on a GPU. anew: bytes that the
    call did not keep for its backward, as it computed them again there, by op. kernels: of mode="max-autotune", the
    kernel chosen for each call of a product.
    """

    device: str
    chains: Mapping[FusedChain, int]
    alone: Mapping[str, int]
    ended_by: Mapping[str, int]
    graphs: int = 0
    eager_because: Sequence[str] = ()
    peak_bytes: int = 0
    anew: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes_before(self) -> int:
        """Bytes that the launches of all chains would read and write one by one."""
        return sum(chain.before * count for chain, count in self.chains.items())

    @property
    def bytes_after(self) -> int:
        """Bytes that the chains read and wrote."""
        return sum(chain.after * count for chain, count in self.chains.items())

    def __str__(self) -> str:
        return "\n".join([*(self._of_gpu() if self.device != "cpu" else self._of_chains()), *self._of_memory()])

    def _of_memory(self) -> list[str]:
        found = [] if not self.peak_bytes else [f"memory at the peak: {bytes_in_words(self.peak_bytes)}"]
        if self.anew:
            each = ", ".join(f"{op} {bytes_in_words(count)}" for op, count in Counter(self.anew).most_common(_ROWS))
            found.append(f"computed anew in backward rather than kept: {each}")
        kernels = Counter(self.kernels.values()).most_common(_ROWS)
        return [*found, *[f"kernel chosen by time: {name} ({count})" for name, count in kernels]]

    def _of_gpu(self) -> list[str]:
        kinds = "no call is recorded yet" if not self.graphs else f"{self.graphs} recorded, each launched as one graph"
        eager = [f"eager: {reason}" for reason in self.eager_because]
        return [f"kinds of calls: {kinds}", *eager, *(self._of_chains() if self.graphs else [])]

    def _of_chains(self) -> list[str]:
        launches = sum(len(chain.names) * count for chain, count in self.chains.items())
        if not launches:
            head = "no elementwise launches fused"
        else:
            before, after = bytes_in_words(self.bytes_before), bytes_in_words(self.bytes_after)
            head = f"{launches} elementwise launches in {sum(self.chains.values())} chains: {before} to {after}"
        lines = [head]
        for chain, count in sorted(self.chains.items(), key=lambda item: -item[0].before * item[1])[:_ROWS]:
            size = " x ".join(map(str, chain.shape))
            before, after = bytes_in_words(chain.before), bytes_in_words(chain.after)
            lines.append(f"  {count} x [{size}] {_steps(chain)}: {before} to {after}, stores {chain.stored}")
        for title, found in (("alone", self.alone), ("chains ended by", self.ended_by)):
            lines += [f"{title}: {reason} ({count})" for reason, count in Counter(found).most_common(_ROWS)]
        return lines


def report_of_cpu(log: Log, memory: Memory, kernels: Mapping[str, str]) -> Report:
    """The report of a call on a CPU."""
    small = {"too few elements": log.small} if log.small else {}
    chains, alone = Counter(log.chains), {**small, **log.alone}
    more = memory.peak, dict(memory.anew), dict(kernels)
    return Report("cpu", chains, alone, dict(log.ends), 0, (), *more)


def report_of_gpu(device: str, logs: Sequence[Log], eager_because: Sequence[str], temporaries: int) -> Report:
    """The report of a step's recordings on a GPU, the largest of which has so many bytes of temporaries."""
    chains, alone, ends = Counter[FusedChain](), Counter[str](), Counter[str]()
    for log in logs:
        chains.update(log.chains)
        alone.update(log.alone)
        ends.update(log.ends)
    return Report(device, chains, dict(alone), dict(ends), len(logs), tuple(eager_because), temporaries)


def _steps(chain: FusedChain) -> str:
    dtypes = sorted(set(chain.dtypes))
    return f"{', '.join(chain.names)} in {' and '.join(dtypes)}"
