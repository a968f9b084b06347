"""Which layer takes which recipe below 16 bits, from what each loses and saves: the policy within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...base.errors import ArgumentError
from ...base.search import search
from ...core.policy import Policy
from ...core.policy.recipe import CODE_BITS, QuantizationRecipe
from .choices import module_entries
from .operands import LayerLosses

_MOST = 1e3  # what an error counts at most where errors are compared: of values that are not finite


class Cost(NamedTuple):
    """What a layer costs by a recipe, or in 16 bits.

    work: the multiply-adds of a step, each times the bits of its wider operand over 16: in proportion to the time on a
    card whose speed is in proportion to the bits. kept: bytes of its inputs and weight as codes and scales, which stay
    from the forward for the backward.
    """

    work: float
    kept: int


class Option(NamedTuple):
    """A layer by a recipe: the error of the loss that it is predicted to cause, and its cost."""

    layer: str
    recipe: str
    error: float
    cost: Cost


def cost(losses: LayerLosses, recipe: QuantizationRecipe | None) -> Cost:
    """The cost of a layer by `recipe`; None: in 16 bits."""
    work = sum(size * _bits(recipe, product) / 16 for product, size in losses.work.items())
    by_recipe = {product: losses.products.get((product, recipe.name if recipe else "")) for product in losses.kept}
    return Cost(work, sum(losses.kept[p] if found is None else found.kept for p, found in by_recipe.items()))


def _bits(recipe: QuantizationRecipe | None, product: str) -> int:
    operands = None if recipe is None else getattr(recipe, product)
    return 16 if operands is None else max(CODE_BITS[how.format] for how in operands)


def options_to_take(options: Sequence[Option]) -> list[Option]:
    """`options` with one of the recipes that cost alike for all layers: the one whose errors add up to the least.

    How they differ in one layer is mostly chance, few cards have all, and the policy is shorter.
    """
    totals: dict[str, tuple[float, float]] = {}
    for each in options:
        work, error = totals.get(each.recipe, (0.0, 0.0))
        totals[each.recipe] = work + each.cost.work, error + min(each.error, _MOST)
    best: dict[float, str] = {}
    for name, (work, error) in totals.items():
        if work not in best or error < totals[best[work]][1]:
            best[work] = name
    return [each for each in options if each.recipe in best.values()]


def least_work(options: Sequence[Option], wide: Mapping[str, Cost], budget: float) -> tuple[dict[str, str], str]:
    """By layer the recipe, so that the work is the least whose errors add up to at most `budget`; and the solver."""
    values = [wide[each.layer].work - each.cost.work for each in options]
    taken, solver = search(values, [each.error for each in options], budget, [each.layer for each in options])
    return {each.layer: each.recipe for each, is_taken in zip(options, taken, strict=True) if is_taken}, solver


def least_error(options: Sequence[Option], wide: Mapping[str, Cost], memory: float) -> tuple[dict[str, str], str]:
    """By layer the recipe, so that errors add up to the least where layers keep the share `memory` of their 16 bits.

    Raises ArgumentError where the recipes need more.
    """
    # Each layer starts with its smallest option, and what is left pays for others that err less.
    every = [*options, *(Option(layer, "", 0.0, found) for layer, found in wide.items())]
    least: dict[str, Option] = {}
    for each in sorted(every, key=lambda each: (each.cost.kept, each.error)):
        least.setdefault(each.layer, each)
    whole = sum(found.kept for found in wide.values())
    smallest = sum(each.cost.kept for each in least.values())
    if smallest > memory * whole:
        needs = f"a share of at least {math.ceil(1e3 * smallest / (whole or 1)) / 1e3:g} of what layers keep in 16 bits"
        raise ArgumentError("the memory of a policy", needs, f"{memory:g}")
    values = [min(least[each.layer].error, _MOST) - min(each.error, _MOST) for each in every]
    added = [float(each.cost.kept - least[each.layer].cost.kept) for each in every]
    taken, solver = search(values, added, memory * whole - smallest, [each.layer for each in every])
    found = {layer: each.recipe for layer, each in least.items()}
    found |= {each.layer: each.recipe for each, is_taken in zip(every, taken, strict=True) if is_taken}
    return {layer: recipe for layer, recipe in found.items() if recipe}, solver


def policy_of(
    dtype: str, recipes: Mapping[str, QuantizationRecipe], chosen: Mapping[str, str], layers: Iterable[str]
) -> Policy:
    """The policy that runs the layers `chosen` by their recipes, and the others of `layers` in `dtype`."""
    words = {layer: chosen.get(layer, dtype) for layer in layers}
    if len(set(words.values())) == 1:
        only = next(iter(words.values()))
        return Policy(dtype) if only == dtype else Policy(dtype, recipe=recipes[only])
    modules = dict(module_entries(words, dtype))
    return Policy(dtype, modules={path: recipes.get(word, word) for path, word in modules.items()})
