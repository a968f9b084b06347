"""The precision laboratory: which layers of a model survive which format below 16 bits, and at what cost in the loss.

Everything is measured against the 16-bit policy, on the same batches and random numbers: quantization is exact on any
device, so that the answer does not need the card that runs the format fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...base.byte_sizes import bytes_in_words
from ...base.errors import ArgumentError, NonFiniteError
from ...base.html import ShowsItsText
from ...core.policy import Policy
from ...core.policy.recipe import QuantizationRecipe
from ...core.policy.recipe import recipe as named
from ...nn.modules.linear import Linear
from ...optim.matrix.hidden import output_layer
from .cards import CARDS
from .format_policy import Cost, Option, cost, least_error, least_work, options_to_take, policy_of
from .operands import PRODUCTS, LayerLosses, ProductLoss, operand_losses
from .sensitivity import Evaluation, Loss, Sensitivity, sensitivities
from .tuning import Progress, percent

FORMATS = ("current", "rowwise", "blockwise", "mxfp8", "nvfp4", "int8")
# Quantizes nothing. Under it no op runs several linear layers as one, so that each product can be seen.
_NONE = QuantizationRecipe("none", None, None, None)


class LayerLoss(NamedTuple):
    """One layer by one recipe, others in 16 bits: the model's sensitivity, what happens to each product, the cost."""

    layer: str
    recipe: str
    sensitivity: Sensitivity
    products: dict[str, ProductLoss]
    cost: Cost


class FormatLoss(NamedTuple):
    """Every layer by one recipe: the sensitivity of the model, and with one of the three products alone.

    inner: that with the output layer in 16 bits; None for a model without one.
    """

    recipe: str
    sensitivity: Sensitivity
    products: dict[str, Sensitivity]
    inner: Sensitivity | None = None


@dataclass(frozen=True, repr=False)
class Laboratory(ShowsItsText):
    """What `lab` found; str() is a table. All errors are relative to the 16-bit policy.

    layers: by layer and recipe. formats: by recipe, the most precise first. dtype: of the 16-bit policy. recipes: those
    that were measured, by name. wide: what each layer costs in 16 bits. output: the path of the output layer, which a
    run of a recipe keeps in 16 bits; None for a model without another layer that runs `linear`.
    """

    dtype: str
    recipes: dict[str, QuantizationRecipe]
    wide: dict[str, Cost]
    layers: tuple[LayerLoss, ...]
    formats: tuple[FormatLoss, ...]
    output: str | None = None

    def ranking(self) -> list[str]:
        """The recipes by the predicted error of the loss, the smallest first."""
        return [each.recipe for each in self.formats]

    def sensitive(self, recipe: str) -> list[str]:
        """The layers by the error that they cause alone under `recipe`, the largest first."""
        rows = [row for row in self.layers if row.recipe == recipe]
        return [row.layer for row in sorted(rows, key=lambda row: -row.sensitivity.error)]

    def policy(self, budget: float | None = None, *, memory: float | None = None) -> Policy:
        """The policy with the least work whose layers' errors add up to at most `budget`.

        Or, with `memory`, the one with the least error whose layers keep at most that share of what they keep for the
        backward in 16 bits. Of recipes that cost alike, one is taken for all layers: see `Cost`.
        Raises ArgumentError for a budget that is not positive, for both or none, and for memory that no recipe attains.
        """
        return self.choice(budget, memory)[0]

    def choice(self, budget: float | None, memory: float | None) -> tuple[Policy, dict[str, str], str]:
        """`policy`, the recipe of each layer that is quantized by it, and the solver."""
        given = [value for value in (budget, memory) if value is not None]
        if len(given) != 1 or not (isinstance(given[0], (int, float)) and 0 < given[0] < math.inf):
            got = repr(given[0]) if len(given) == 1 else "both" if given else "none"
            raise ArgumentError("Laboratory.policy", "a budget above 0 of the loss, or of memory", got)
        options = [Option(row.layer, row.recipe, row.sensitivity.error, row.cost) for row in self.layers]
        options = options_to_take(options)
        if budget is None:
            chosen, solver = least_error(options, self.wide, given[0])
        else:
            chosen, solver = least_work(options, self.wide, budget)
        return policy_of(self.dtype, self.recipes, chosen, self.wide), chosen, solver

    def parts(self) -> list[tuple[str, list[Sensitivity | None]]]:
        """Titles and errors by recipe of what is not all: without the output layer, and each product alone."""
        inner = [] if self.output is None else [(f"without {self.output}", [each.inner for each in self.formats])]
        return [*inner, *((f"{name} alone", [each.products.get(name) for each in self.formats]) for name in PRODUCTS)]

    def kept(self, recipe: str | None = None) -> int:
        """Bytes that the layers keep for the backward, all by `recipe`; None: in 16 bits."""
        costs = self.wide.values() if recipe is None else [row.cost for row in self.layers if row.recipe == recipe]
        return sum(cost.kept for cost in costs)

    def memory(self) -> tuple[str, list[str]]:
        """A title and by recipe, in words, what the layers keep for the backward."""
        whole, kept = self.kept(), [self.kept(name) for name in self.ranking()]
        cells = [f"{bytes_in_words(size)}, {size / (whole or 1):.0%}" for size in kept]
        return f"kept for backward, {bytes_in_words(whole)} in {self.dtype}", cells

    def __str__(self) -> str:
        recipes = [each.recipe for each in self.formats]
        names = list(dict.fromkeys(row.layer for row in self.layers))
        errors = {(row.layer, row.recipe): percent(row.sensitivity.error) for row in self.layers}
        titles = [*names, "all layers", self.memory()[0], *(name for name, *_ in self.cards())]
        width = max([*map(len, titles), *(len(title) + 2 for title, _ in self.parts())])
        lines = [f"error of the loss that each layer alone is predicted to cause, against {self.dtype}"]
        lines += [f"{'layer':{width}}" + "".join(f"{name:>20}" for name in recipes)]
        lines += [f"{name:{width}}" + "".join(f"{errors[name, r]:>20}" for r in recipes) for name in names]
        lines += [f"{'all layers':{width}}" + "".join(f"{percent(f.sensitivity.error):>20}" for f in self.formats)]
        for title, row in self.parts():
            cells = "".join(f"{'-' if each is None else percent(each.error):>20}" for each in row)
            lines.append(f"{'  ' + title:{width}}{cells}")
        for title, words in (self.memory(), *((name, figures) for name, figures, _ in self.cards())):
            lines.append(f"{title:{width}}" + "".join(f"{word:>20}" for word in words))
        sources = dict.fromkeys(f"cards, published, against bfloat16: {source}" for *_, source in self.cards())
        return "\n".join([*lines, *sources])

    def cards(self) -> list[tuple[str, list[str], str]]:
        """For each card that others have measured: name, speed or memory of a step by recipe, source."""
        found = []
        for card in CARDS:
            for title, figures in ((card.name, card.speeds), (f"{card.name}, peak memory", card.memory)):
                cells = [f"{figures[name]:.2f} x" if name in figures else "-" for name in self.ranking()]
                if any(cell != "-" for cell in cells):
                    found.append((title, cells, card.source))
        return found


def lab(
    model: Any, batches: Iterable[Any], loss: Loss, dtype: Any = "bfloat16", *,
    formats: Sequence[str | QuantizationRecipe] = FORMATS, show: Callable[[Progress], None] = lambda progress: None,
) -> Laboratory:  # fmt: skip
    """Which layers survive which format below 16 bits: the loss and gradients of `model` by recipes, per layer.

    batches: a few that the model trains on, tuples of Tensors. loss: loss(model, *batch) -> Tensor [], the mean loss of
    a batch, without autocast. dtype: of everything but the quantized products. formats: names of recipes, or Recipes
    that need no history: "delayed" is measured as "current", which has the same formats.
    Each layer alone is quantized by each recipe, then all of them, then one of the three products of all, and all but
    the output layer; losses and gradients are compared with those in 16 bits on every batch. The model, its buffers,
    its gradients and the default random stream stay as they are.
    Raises ArgumentError without a batch or a layer that runs `linear`, ConfigError for an unknown recipe, DTypeError
    for parameters that are not float32, NonFiniteError if the 16-bit policy is not finite.
    """
    if isinstance(formats, (str, QuantizationRecipe)):
        raise ArgumentError("debug.lab", "formats as a list of names", repr(formats), "write formats=[...]")
    asked = {found.name: found for found in map(named, formats)}
    recipes = [_stateless(each) for each in asked.values()]
    given = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in batches]
    if not given or not recipes:
        raise ArgumentError("debug.lab", "at least one batch and one format", f"{len(given)} and {len(recipes)}")
    evaluation, base = Evaluation(model, loss), Policy(dtype, recipe=_NONE)
    wide = evaluation.gradients(given[0], base)
    if not math.isfinite(wide.loss + wide.square()):
        raise NonFiniteError("debug.lab", f"a loss and gradients that are finite in {dtype}", "others")
    show(Progress("operands", 0, 1))
    losses = operand_losses(evaluation, given[0], base, recipes)
    show(Progress("operands", 1, 1))
    layers = sorted(losses)
    if not layers:
        alone = isinstance(model, Linear)
        got, cure = (
            ("a Linear itself", "wrap it, so that it has a path: nn.Sequential(model)") if alone else ("none", None)
        )
        raise ArgumentError("debug.lab", "a model with a module that calls `linear`", got, cure)
    by_layer = [(layer, recipe) for layer in layers for recipe in recipes]
    pairs = [(base, Policy(dtype, recipe=_NONE, modules=_alone(layer, recipe, layers))) for layer, recipe in by_layer]
    whole = [(recipe, product) for recipe in recipes for product in (None, *PRODUCTS) if _has(recipe, product)]
    pairs += [(base, Policy(dtype, recipe=_only(recipe, product))) for recipe, product in whole]
    output = path if (path := output_layer(model)) in losses and len(layers) > 1 else None
    inner = [] if output is None else [Policy(dtype, recipe=each, modules={output: _NONE}) for each in recipes]
    pairs += [(base, policy) for policy in inner]
    total = len(pairs) * len(given)
    found = sensitivities(evaluation, given, pairs, lambda done: show(Progress("sensitivity", done, total)))
    rows = zip(by_layer, found, strict=False)
    per_layer = tuple(
        LayerLoss(layer, r.name, each, _of(losses[layer], r.name), cost(losses[layer], r)) for (layer, r), each in rows
    )
    wide_costs = {layer: cost(losses[layer], None) for layer in layers}
    keys = [(each.name, part) for each, part in (*whole, *((each, "inner") for each in recipes if inner))]
    rest = dict(zip(keys, found[len(by_layer) :], strict=True))
    per_format = [
        FormatLoss(
            r.name, rest[r.name, None], {p: rest[r.name, p] for p in PRODUCTS if (r.name, p) in rest},
            rest.get((r.name, "inner")),
        )
        for r in recipes
    ]  # fmt: skip
    per_format.sort(key=lambda each: each.sensitivity.error)
    return Laboratory(base.dtype.name, asked, wide_costs, per_layer, tuple(per_format), output)


def _alone(layer: str, recipe: QuantizationRecipe, layers: Sequence[str]) -> dict[str, QuantizationRecipe]:
    # The recipe for the products of the module itself, not for those of the modules in it.
    return {layer: recipe, **{each: _NONE for each in layers if each.startswith(f"{layer}.")}}


def _of(losses: LayerLosses, name: str) -> dict[str, ProductLoss]:
    return {product: loss for (product, recipe), loss in losses.products.items() if recipe == name}


def _stateless(recipe: QuantizationRecipe) -> QuantizationRecipe:
    return replace(named("current"), name="delayed") if recipe == named("delayed") else recipe


def _has(recipe: QuantizationRecipe, product: str | None) -> bool:
    return product is None or getattr(recipe, product) is not None


def _only(recipe: QuantizationRecipe, product: str | None) -> QuantizationRecipe:
    if product is None:
        return recipe
    others: dict[str, Any] = {each: None for each in PRODUCTS if each != product}
    return replace(recipe, name=f"{recipe.name}, {product}", **others)
