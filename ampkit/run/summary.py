"""What a recipe's model consists of, what a step of it computes, and which memory it takes in each precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..config import Recipe
from ..core.module_path import follow, path_in_words, starred
from ..debug import FlopCounter, ledger
from .bench import precisions_of, with_dtype
from .build import from_scratch
from .loop import fit


class Layer(NamedTuple):
    """Equal modules whose paths differ in numbers alone, with their own parameters and products.

    path: `blocks.*.attn` of all that are numbered so, `{2,4}` of some. number: how many there are, which have as many
    parameters and operations each. parameters: of all of them, those of their children left out; a parameter that
    several modules share counts with the first. flops: of their forwards for one batch, see `debug.FlopCounter`.
    """

    path: str
    kind: str
    number: int
    parameters: int
    flops: int


@dataclass(frozen=True)
class Summary:
    """A recipe in figures.

    layers: in the order of the model; those with neither parameters nor products are left out. parameters: distinct
    ones. forward, backward: floating-point operations of the products of an update. per_step: samples or tokens
    (`unit`) in it. memory: by precision, bytes by what holds them during a step, see `debug.Ledger`.
    """

    layers: list[Layer]
    parameters: int
    forward: int
    backward: int
    per_step: int
    unit: str
    memory: dict[str, dict[str, int]]


def summarize(recipe: Recipe, precisions: Sequence[str] | None = None) -> Summary:
    """Build a recipe, and run its first batch and some steps in each precision, to count what they take.

    Raises what `fit` raises.
    """
    run = fit(_plain(recipe, "float32"))
    batch = run.first_batch()
    with follow(separately=True), FlopCounter() as whole:
        with FlopCounter() as forward:
            loss = run.loss_of(run.model, *batch)
        loss.backward()
    del loss
    memory = {}
    for dtype in precisions_of(recipe) if precisions is None else precisions:
        made = fit(_plain(recipe, dtype))
        memory[dtype] = ledger(made.advance, made.optimizer, steps=1, warmup=0).memory
    sizes = {id(parameter): parameter.array.size for parameter in run.model.parameters()}
    batches = recipe.train.accumulate
    counts = batches * whole.forward, batches * whole.backward
    return Summary(_layers(run.model, forward), sum(sizes.values()), *counts, run.per_step, run.unit, memory)


def _plain(recipe: Recipe, dtype: str) -> Recipe:
    # Step by step, of a length that admits those that the ledger takes.
    made = with_dtype(from_scratch(recipe), dtype)
    changes = {"steps": 1000, "epochs": None, "eval_every": None, "compile": False, "log_every": 1000}
    return made.model_copy(update={"train": made.train.model_copy(update=changes)})


def _layers(model: Any, counted: FlopCounter) -> list[Layer]:
    groups: dict[tuple[str, str, int, int], list[str]] = {}
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = {id(p): p.array.size for p in module.parameters(recurse=False) if id(p) not in seen}
        seen |= own.keys()
        size, flops = sum(own.values()), counted.by_module[path or "(model)"]
        if size or flops:
            groups.setdefault((starred(path), type(module).__name__, size, flops), []).append(path)
    alike = Counter(pattern for pattern, *_ in groups)
    found = []
    for (pattern, kind, size, flops), paths in groups.items():
        path = pattern if alike[pattern] == 1 and len(paths) > 1 else _folded(paths)
        found.append(Layer(path or "(model)", kind, len(paths), len(paths) * size, len(paths) * flops))
    left = counted.total - sum(layer.flops for layer in found)
    return [*found, Layer(path_in_words(None), "", 1, 0, left)] if left else found


def _folded(paths: Sequence[str]) -> str:
    """Paths that differ in numbers as one: blocks.{0,2}.fc."""
    parts = [dict.fromkeys(each) for each in zip(*(path.split(".") for path in paths), strict=True)]
    return ".".join(f"{{{','.join(part)}}}" if len(part) > 1 else next(iter(part)) for part in parts)
