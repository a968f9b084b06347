"""precisions: the dtypes that a training keeps its numbers in, before its first step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .. import nn
from ..backends import backend_of
from ..base.dtypes import LOW, DType, parse
from ..base.html import ShowsItsText
from ..core.policy import region
from ..optim.flat.moments import IN_8_BITS
from ..optim.optimizer import Optimizer


@dataclass(frozen=True, repr=False)
class Precisions(ShowsItsText):
    """The dtypes of a training, in words.

    weights: of the parameters, by number of elements. masters: what updates accumulate in. moments: of the optimizer.
    gradients: where they are accumulated. activations: what the autocast region makes of its ops. wire: what is sent
    where gradients are averaged over ranks. warning: of trained 16-bit weights without float32 master weights, else "".
    """

    weights: str
    masters: str
    moments: str
    gradients: str
    activations: str
    wire: str
    warning: str = ""

    def named(self) -> dict[str, str]:
        """The lines by name, `warning` among them where there is one."""
        return {name: words for name, words in asdict(self).items() if words}

    def lines(self) -> list[str]:
        """One line each."""
        return [f"{name:12}{words}" for name, words in self.named().items()]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def precisions(model: nn.Module, optimizer: Optimizer | None = None, wire_dtype: Any = None) -> Precisions:
    """In which dtypes `model` is trained by `optimizer`, in the autocast region around the call.

    wire_dtype: in which gradients are sent between ranks, for a model that is not in DistributedDataParallel; None for
    one process.

        with ampkit.autocast(dtype=ampkit.bfloat16):
            print(ampkit.debug.precisions(model, optimizer))
    """
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    rounded = [parameter for parameter in trained if parameter.array.dtype in LOW and not _has_master(parameter)]
    return Precisions(
        weights=_by_size((p.array.dtype.name, p.array.size) for p in parameters),
        masters=_by_size((_master(p), p.array.size) for p in trained),
        moments="no optimizer" if optimizer is None else _moments(optimizer),
        gradients=_by_size((_gradient(p).name, p.array.size) for p in trained),
        activations=_activations(parameters),
        wire=_wire(model, wire_dtype),
        warning=_warning(rounded, optimizer) if rounded else "",
    )


def _by_size(pairs: Iterable[tuple[str, int]]) -> str:
    # Words of several kinds, the most frequent first, with the elements of each where there are several.
    sizes: dict[str, int] = {}
    for words, size in pairs:
        sizes[words] = sizes.get(words, 0) + size
    ordered = sorted(sizes, key=lambda words: -sizes[words])
    if len(ordered) < 2:
        return "".join(ordered) or "none"
    return ", ".join(f"{words} ({sizes[words]:,} elements)" for words in ordered)


def _has_master(parameter: Any) -> bool:
    segment = parameter._arena_segment
    return segment is not None and segment.has_wider_master


def _master(parameter: Any) -> str:
    if _has_master(parameter):
        return str(parameter._arena_segment.arena.master.dtype.name)
    dtype = parameter.array.dtype
    return f"none, {dtype.name} weights are updated in place" if dtype in LOW else "the weights themselves"


def _gradient(parameter: Any) -> DType:
    segment = parameter._arena_segment
    return parameter.array.dtype if segment is None else segment.arena.dtype


def _moments(optimizer: Optimizer) -> str:
    found = []
    for group in optimizer.param_groups:
        needs = getattr(optimizer, "needs_moment", lambda group, name: True)
        names = [name for name in optimizer.moments if needs(group, name)]
        for arena in group.arenas:
            words = arena.dtype.name if arena.state_dtype == "float32" else _STORED[arena.state_dtype]
            size = sum(segment.stop - segment.start for segment in group.segments if segment.arena is arena)
            found.append((f"{', '.join(names)} in {words}" if names else "none", size))
    return _by_size(found) if found else "as the optimizer's own step keeps them"


_STORED = {"bfloat16": "bfloat16, rounded stochastically"}
_STORED |= {name: f"{name} with a float32 scale per 256, rounded stochastically" for name in IN_8_BITS}


def _activations(parameters: list[Any]) -> str:
    entry = region()
    backend = backend_of(parameters[0].array).name if parameters else "cpu"
    policy = None if entry is None else entry.policies.get(backend)
    if policy is None:
        return f"{_by_size((p.array.dtype.name, p.array.size) for p in parameters)}, without autocast"
    return f"{policy.low_dtype.name} where the policy says low, {policy!r}"


def _wire(model: Any, wire_dtype: Any) -> str:
    if isinstance(model, nn.Module) and hasattr(model, "process_group"):
        wire = getattr(model, "_wire", None)
        return "float32" if wire is None else str(wire.name)
    return "none, one process" if wire_dtype is None else parse(wire_dtype).name


def _warning(parameters: list[Any], optimizer: Any) -> str:
    count, dtype = sum(p.array.size for p in parameters), parameters[0].array.dtype.name
    said = f"{count:,} trained weights are in {dtype} and have no float32 master weights"
    if optimizer is None or all(p._arena_segment is None for p in parameters):
        return f"{said}: an optimizer of ampkit.optim keeps them"
    cure = "stochastic_rounding=False keeps them; or load the weights in float32: model.float() before the optimizer"
    return f"{said}: small updates survive on average only; {cure}"
