"""QuantizationRecipe: how the operands of a matrix product are quantized to formats below 16 bits.

A linear layer runs three products in a training step, and each has two operands:

    forward           output = input @ weight.T
    input_gradient    grad_input = grad_output @ weight
    weight_gradient   grad_weight = grad_output.T @ input

A recipe says for each product how its operands become codes and scales, or None for a product in the policy's 16-bit
dtype. A matrix is quantized with the axis that the product sums over last: its blocks lie along that axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...base.errors import ConfigError
from ...base.html import heading, table
from ...base.near_names import did_you_mean

E4M3, E5M2, E2M1, INT8 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int8"
LARGEST = {E4M3: 448.0, E5M2: 57344.0, E2M1: 6.0, INT8: 127.0}  # the largest finite value of each format
CODE_BITS = {E4M3: 8, E5M2: 8, E2M1: 4, INT8: 8}
_16 = "in the policy's 16-bit dtype"
_MOST_MARGIN = 126  # 2 ** margin and its inverse are normal numbers of float32
_SCALES = ("float32", "power_of_2", "float8_e8m0fnu", "float8_e4m3fn")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How one operand of a product is quantized: codes in `format`, and a scale for each block of them.

    format: "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn" or "int8". block: the extents (rows, columns) of a block
    that shares a scale, None for the whole axis: (None, None) is one scale per matrix, (1, None) one per row,
    (1, 32) one for 32 neighbours along the axis that is summed over. scale: what a scale is stored as: "float32",
    "power_of_2" (float32, rounded so that values grow no larger), "float8_e8m0fnu" (a power of two in 8 bits), or
    "float8_e4m3fn" beside one float32 factor per matrix. delayed: the scale follows from the largest magnitudes of
    earlier steps (block (None, None) alone). stochastic: round up with the probability of the distance, not to
    nearest. hadamard: multiply 16 neighbours by a Hadamard matrix with signs first, which spreads outliers; both
    operands of a product do, or none. epsilon: the least magnitude that a scale is computed from.
    Raises ConfigError for what does not fit together.
    """

    format: str
    block: tuple[int | None, int | None] = (None, None)
    scale: str = "float32"
    delayed: bool = False
    stochastic: bool = False
    hadamard: bool = False
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        _need("format", self.format, LARGEST)
        _need("scale", self.scale, _SCALES)
        extents = self.block if type(self.block) is tuple and len(self.block) == 2 else (0, 0)
        if any(extent is not None and (type(extent) is not int or extent < 1) for extent in extents):
            raise ConfigError("Quantization, block", "two extents, each an integer from 1 or None", f"{self.block}")
        if self.delayed and (self.block != (None, None) or self.scale not in ("float32", "power_of_2")):
            raise ConfigError("Quantization, delayed", "one float32 scale per matrix", f"{self.block}, {self.scale}")
        if self.format == INT8 and (self.scale != "float32" or self.delayed):
            raise ConfigError("Quantization, int8", "float32 scales of the current values", self.scale)
        for key in ("delayed", "stochastic", "hadamard"):
            if type(getattr(self, key)) is not bool:
                raise ConfigError(f"Quantization, {key}", "True or False", repr(getattr(self, key)))
        if type(self.epsilon) not in (int, float) or not 0 <= self.epsilon < math.inf:
            raise ConfigError("Quantization, epsilon", "a finite number from 0", repr(self.epsilon))

    @property
    def in_words(self) -> str:
        """The format and its block: "e4m3", "e4m3 1 x 32"."""
        name = self.format.removeprefix("float8_").removeprefix("float4_").removesuffix("fn")
        rows, columns = ("all" if extent is None else extent for extent in self.block)
        return name if self.block == (None, None) else f"{name} {rows} x {columns}"

    @property
    def symmetric(self) -> bool:
        """Whether a matrix and its transpose have the same codes and scales."""
        return self.block[0] == self.block[1] and not (self.stochastic or self.hadamard)


def _need(key: str, word: str, known: Any) -> None:
    if word not in known:
        raise ConfigError(f"Quantization, {key}", f"one of {', '.join(known)}", repr(word))


class Operands(NamedTuple):
    """How the two operands of a product are quantized; for their order see the head of this file."""

    first: Quantization
    second: Quantization


@dataclass(frozen=True)
class QuantizationRecipe:
    """How the three products of a linear layer are quantized; None for a product in the 16-bit dtype.

    name: as in `Policy("float8", recipe=name)`. history: the number of steps whose largest magnitudes delayed scaling
    keeps. margin: delayed scaling leaves a factor of 2 ** margin below the format's largest value.
    `dataclasses.replace(recipe("mxfp8"), name="mine", weight_gradient=None)` makes another one.
    Raises ConfigError where one operand of a product is transformed by a Hadamard matrix and the other is not, or one
    is int8 and the other is not, and where what is quantized with delayed scaling is not quantized alike in both
    products that take it, which share its scale.
    """

    name: str
    forward: Operands | None
    input_gradient: Operands | None
    weight_gradient: Operands | None
    history: int = 1024
    margin: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError("QuantizationRecipe, name", "text", repr(self.name))
        if type(self.history) is not int or self.history < 1:
            raise ConfigError("QuantizationRecipe, history", "an integer from 1", repr(self.history))
        if type(self.margin) is not int or not -_MOST_MARGIN <= self.margin <= _MOST_MARGIN:
            needs = f"an integer from -{_MOST_MARGIN} to {_MOST_MARGIN}"
            raise ConfigError("QuantizationRecipe, margin", needs, repr(self.margin))
        for product in ("forward", "input_gradient", "weight_gradient"):
            operands, where = getattr(self, product), f"QuantizationRecipe, {product}"
            if operands is None:
                continue
            if not isinstance(operands, Operands) or not all(isinstance(how, Quantization) for how in operands):
                raise ConfigError(where, "Operands of two Quantizations, or None", repr(operands))
            first, second = operands
            if first.hadamard is not second.hadamard:
                raise ConfigError(where, "the Hadamard transform of both operands or none", "one")
            if (first.format == INT8) is not (second.format == INT8):
                raise ConfigError(where, "int8 for both operands or none", "one")
        for tensor, ways in self.by_tensor.items():
            if len({*ways}) > 1 and any(how.delayed for how in ways):
                cure = "give both products the same Quantization, or None to one"
                needs = f"one way to quantize the {tensor}, whose scale is delayed"
                raise ConfigError("QuantizationRecipe", needs, "two", cure)

    def in_words(self, *products: str) -> str:
        """The formats of the operands of some products: "forward e4m3 1 x 32 by e4m3 1 x 32"."""
        named = [(product, getattr(self, product)) for product in products]
        return ", ".join(
            f"{product.replace('_', ' ')} {'16 bits' if how is None else ' by '.join(each.in_words for each in how)}"
            for product, how in named
        )

    def _repr_html_(self) -> str:
        rows = []
        for product in ("forward", "input_gradient", "weight_gradient"):
            ways = getattr(self, product) or ()
            rows.append((product, *(f"{how.in_words}, scales {how.scale}" for how in ways)) if ways else (product, _16))
        return heading(f"QuantizationRecipe {self.name}") + table(("product", "first operand", "second operand"), rows)

    @property
    def by_tensor(self) -> dict[str, list[Quantization]]:
        """How the input, the weight and the gradient of the output are quantized, in each product that takes them."""
        forward, grads, weights = self.forward, self.input_gradient, self.weight_gradient
        ways = {
            "input": (forward and forward.first, weights and weights.second),
            "weight": (forward and forward.second, grads and grads.second),
            "gradient of the output": (grads and grads.first, weights and weights.first),
        }
        return {tensor: [how for how in both if how is not None] for tensor, both in ways.items()}

    @property
    def bits(self) -> int:
        """The fewest bits of a code in its products; 16 where it quantizes none."""
        products = (self.forward, self.input_gradient, self.weight_gradient)
        return min([16, *(CODE_BITS[how.format] for operands in products if operands is not None for how in operands)])

    @property
    def delayed(self) -> bool:
        """Whether some operand's scale follows from earlier steps, which are then part of the model's state."""
        return any(how.delayed for ways in self.by_tensor.values() for how in ways)


def _alike(
    name: str,
    input: Quantization,
    weight: Quantization,
    grad: Quantization,
    grad_for_weight: Quantization | None = None,
    input_for_weight: Quantization | None = None,
) -> QuantizationRecipe:
    forward, backward = Operands(input, weight), Operands(grad, weight)
    return QuantizationRecipe(name, forward, backward, Operands(grad_for_weight or grad, input_for_weight or input))


def _presets() -> dict[str, QuantizationRecipe]:
    row = Quantization(E4M3, (1, None), "power_of_2", epsilon=1e-12)
    whole = Quantization(E4M3, (None, None), "power_of_2", epsilon=1e-12)
    strip = Quantization(E4M3, (1, 128), "power_of_2")
    mx = Quantization(E4M3, (1, 32), "float8_e8m0fnu")
    nv = Quantization(E2M1, (1, 16), "float8_e4m3fn")
    nv_weight = Quantization(E2M1, (16, 16), "float8_e4m3fn")
    nv_grad = Quantization(E2M1, (1, 16), "float8_e4m3fn", stochastic=True)
    nv_grad_spread = Quantization(E2M1, (1, 16), "float8_e4m3fn", stochastic=True, hadamard=True)
    nv_spread = Quantization(E2M1, (1, 16), "float8_e4m3fn", hadamard=True)
    integers = Quantization(INT8, (1, None), epsilon=127e-12)
    found = [
        # Transformer Engine's DelayedScaling and Float8CurrentScaling, with their defaults: format HYBRID.
        _alike("delayed", *(Quantization(f, delayed=True) for f in (E4M3, E4M3, E5M2))),
        _alike("current", *(Quantization(f) for f in (E4M3, E4M3, E5M2))),
        # torchao's Float8LinearConfig: "rowwise" and "rowwise_with_gw_hp".
        _alike("rowwise", row, row, row),
        QuantizationRecipe("rowwise_with_gw_hp", Operands(row, row), Operands(row, whole), None),
        # Transformer Engine's Float8BlockScaling, after DeepSeek-V3 (arXiv:2412.19437, 3.3), with powers of two.
        _alike("blockwise", strip, Quantization(E4M3, (128, 128), "power_of_2"), strip),
        # OCP Microscaling Formats 1.0; Transformer Engine's MXFP8BlockScaling.
        _alike("mxfp8", mx, mx, mx),
        # Transformer Engine's NVFP4BlockScaling (arXiv:2509.25149).
        _alike("nvfp4", nv, nv_weight, nv_grad, nv_grad_spread, nv_spread),
        # torchao's Int8MixedPrecisionTrainingConfig.
        _alike("int8", integers, integers, integers),
    ]
    return {each.name: each for each in found}


RECIPES = _presets()
# By the word for the dtype in `Policy(word, recipe=...)`: the recipes of that format, the default first.
FAMILIES = {
    "float8": ("current", "delayed", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"),
    "float4": ("nvfp4",),
    "int8": ("int8",),
}


_PRODUCTS = ("forward", "input_gradient", "weight_gradient")


def recipe(name: str | QuantizationRecipe) -> QuantizationRecipe:
    """The preset of a name, "mxfp8"; a QuantizationRecipe as it is.

    "delayed", "current", "rowwise", "rowwise_with_gw_hp", "blockwise" and "mxfp8" have 8-bit floats, "nvfp4" has 4-bit
    ones, "int8" integers. Products that differ follow, each by the preset that it takes its operands from, or "low" for
    the policy's 16-bit dtype: "mxfp8 input_gradient=current weight_gradient=low".
    Raises ConfigError for another name, and for products that do not go together.
    """
    if isinstance(name, QuantizationRecipe):
        return name
    if isinstance(name, str) and is_by_product(name):
        return _by_product(name)
    if not isinstance(name, str) or name not in RECIPES:
        near = did_you_mean(name, RECIPES) if isinstance(name, str) else None
        raise ConfigError("recipe", f"one of {', '.join(RECIPES)}", repr(name), near)
    return RECIPES[name]


def is_by_product(name: str) -> bool:
    """Whether a name is that of a preset with words for products behind it."""
    base, space, _ = name.partition(" ")
    return bool(space) and base in RECIPES


def _by_product(name: str) -> QuantizationRecipe:
    first, *words = name.split()
    base, given = RECIPES[first], dict[str, str]()
    for word in words:
        product, equals, other = word.partition("=")
        if product not in _PRODUCTS or not equals or product in given:
            needs = f"each of {', '.join(_PRODUCTS)} at most once, as in weight_gradient=low"
            near = None if product in _PRODUCTS else did_you_mean(product, _PRODUCTS)
            raise ConfigError(f"recipe {first}", needs, repr(word), near)
        if other != "low" and other not in RECIPES:
            near = did_you_mean(other, ["low", *RECIPES])
            raise ConfigError(f"recipe {first}, {product}", f"low or one of {', '.join(RECIPES)}", repr(other), near)
        given[product] = other
    operands: dict[str, Any] = {each: getattr(RECIPES.get(other), each, None) for each, other in given.items()}
    different = [each for each in _PRODUCTS if each in given and operands[each] != getattr(base, each)]
    if not different:
        return base
    named = " ".join([first, *(f"{each}={given[each]}" for each in different)])
    return replace(base, name=named, **{each: operands[each] for each in different})


def has_name(found: QuantizationRecipe) -> bool:
    """Whether `recipe` makes it of its name."""
    try:
        return recipe(found.name) == found
    except ConfigError:
        return False


def of_family(word: str, given: Any) -> QuantizationRecipe:
    """The recipe that `Policy(word, recipe=given)` means; without one, the first of the family.

    Raises ConfigError for a recipe of another family.
    """
    found = recipe(FAMILIES[word][0] if given is None else given)
    if (family := family_of(found)) not in (word, None):
        needs = f"one of {', '.join(FAMILIES[word])} for {word}"
        raise ConfigError("Policy, recipe", needs, repr(found.name), f'Policy("{family}", recipe="{found.name}")')
    return found


def family_of(found: QuantizationRecipe) -> str | None:
    """The word in FAMILIES of a preset, also with other products; None for any other recipe."""
    return family_of_name(found.name) if has_name(found) else None


def family_of_name(name: str) -> str | None:
    """The word in FAMILIES of the preset that a recipe's name begins with; None for any other name."""
    base = name.partition(" ")[0]
    return next((word for word, names in FAMILIES.items() if base in names), None)
