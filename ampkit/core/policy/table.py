"""Policy: the table from ops and modules to dtypes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, ClassVar

from ...base import public_dtypes
from ...base.dtypes import LOW, DType, bfloat16, float16, float32, name_of, parse
from ...base.errors import ConfigError, DTypeError
from ...base.html import folded
from ...base.near_names import did_you_mean
from .. import module_path
from ..module_path import matches
from .category import Cast, categories, need_op
from .recipe import FAMILIES, RECIPES, QuantizationRecipe, family_of, has_name, is_by_product, of_family
from .recipe import recipe as named

_FAST = frozenset({"layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "softplus"})


class Policy:
    """The dtype table of mixed precision: `Policy("float16", softmax="low", gelu="float32")`.

    dtype: float16 or bfloat16, the dtype of LOW ops; or "float8", "float4" or "int8": bfloat16, and the products of
    `linear` are quantized as `recipe` says, a QuantizationRecipe or the name of one ("current", "mxfp8", "mxfp8
    weight_gradient=low"; see `recipe`).
    modules: by the path of a module in the model, as in `named_modules`, what its LOW ops and those below it run in:
    float16, bfloat16, or float32, in which they return float32, all without a recipe; or the name of a recipe. `*`
    stands for one part of a path and `**` for any number of them, `"blocks.*.attn"`; where several paths match, the
    last one written counts. Each further keyword argument is the name of an op and its category: low,
    float32, widest, keep or banned. Equal policies are the same object, so they compare by identity; the repr is an
    expression that makes the policy. `Policy.fast(dtype)` stores the outputs of norms and softmax in 16 bits and
    computes them in float32.
    Raises DTypeError for another dtype, ConfigError for an unknown op, category or recipe.
    """

    __slots__ = ("low_dtype", "modules", "overrides", "preset", "recipe")
    low_dtype: DType  # NumPy's; float32 in the modules that `modules` gives it
    overrides: tuple[tuple[str, Cast], ...]
    modules: tuple[tuple[str, DType | QuantizationRecipe], ...]
    preset: str
    recipe: QuantizationRecipe | None
    _known: ClassVar[dict[tuple[Any, ...], Policy]] = {}

    def __new__(
        cls, dtype: Any = "float16", /, *, recipe: str | QuantizationRecipe | None = None,
        modules: Mapping[str, Any] | None = None, **overrides: str,
    ) -> Policy:  # fmt: skip
        return cls._made("", dtype, recipe, modules, overrides)

    @classmethod
    def fast(
        cls, dtype: Any = "float16", /, *, recipe: str | QuantizationRecipe | None = None,
        modules: Mapping[str, Any] | None = None, **overrides: str,
    ) -> Policy:  # fmt: skip
        """The preset in which norms, softmax and softplus are LOW: 16-bit outputs, float32 arithmetic; see Policy.

        Compared with `Policy(dtype)` it saves memory and casts.
        """
        return cls._made(".fast", dtype, recipe, modules, overrides)

    @classmethod
    def _made(
        cls, preset: str, dtype: Any, recipe: Any, modules: Mapping[str, Any] | None, overrides: Mapping[str, str]
    ) -> Policy:
        categories = tuple(sorted((op, _category(op, category)) for op, category in overrides.items()))
        quantized = isinstance(dtype, str) and dtype in FAMILIES
        found = of_family(dtype, recipe) if quantized else None if recipe is None else named(recipe)
        dtype = bfloat16 if quantized else low(dtype, "Policy")
        return cls._intern(preset, dtype, categories, _module_dtypes(modules), found)

    @classmethod
    def _intern(cls, *key: Any) -> Policy:
        if key not in cls._known:
            self = object.__new__(cls)
            for name, value in zip(("preset", "low_dtype", "overrides", "modules", "recipe"), key, strict=True):
                object.__setattr__(self, name, value)
            cls._known[key] = self
            if self.modules and _FOLLOWS not in module_path.following:  # for good: a region may start inside the model
                module_path.following.append(_FOLLOWS)
        return cls._known[key]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Policy is frozen: make another one")

    @property
    def dtype(self) -> public_dtypes.dtype:
        """The dtype of LOW ops."""
        return public_dtypes.DTYPES[self.low_dtype]

    def category(self, op: str) -> Cast:
        """The category of the op named `op` under this policy. Raises ConfigError for an unknown name."""
        need_op("Policy.category", op)
        found = dict(self.overrides).get(op) or (Cast.LOW if self.preset and op in _FAST else categories[op])
        return Cast.FP32 if found is Cast.LOW and self.low_dtype == float32 else found

    def in_module(self, path: str) -> Policy:
        """The policy in the module `path` of the model: this one, or one with the dtype that `modules` has for it."""
        if not isinstance(path, str):
            raise DTypeError("Policy.in_module", "the path of a module", f"a {type(path).__name__}")
        for pattern, found in reversed(self.modules):
            if matches(pattern, path):
                quantized = isinstance(found, QuantizationRecipe)
                dtype = found if not quantized else self.low_dtype if self.low_dtype in LOW else bfloat16
                return Policy._intern(self.preset, dtype, self.overrides, self.modules, found if quantized else None)
        return self

    def __repr__(self) -> str:
        overrides = "".join(f', {name}="{category.value}"' for name, category in self.overrides)
        dtypes = ", ".join(f'"{pattern}": "{dtype.name}"' for pattern, dtype in self.modules)
        modules = f", modules={{{dtypes}}}" if dtypes else ""
        return f'Policy{self.preset}("{self._dtype_word()}"{self._recipe_word()}{overrides}{modules})'

    def _dtype_word(self) -> str:
        family = None if self.recipe is None or self.low_dtype != bfloat16 else family_of(self.recipe)
        return family or self.low_dtype.name

    def _recipe_word(self) -> str:
        if self.recipe is None:
            return ""
        return f', recipe="{self.recipe.name}"' if has_name(self.recipe) else f", recipe={self.recipe}"

    def _repr_html_(self) -> str:
        ops = {each: [op for op in sorted(categories) if self.category(op) is each] for each in Cast}
        return folded(repr(self), "\n\n".join(textwrap.fill(f"{each.value}: {', '.join(ops[each])}") for each in Cast))

    def __reduce__(self) -> tuple[Any, ...]:
        return Policy._intern, (self.preset, self.low_dtype, self.overrides, self.modules, self.recipe)


def low(dtype: Any, where: str) -> DType:
    """`dtype` as a 16-bit DType. Raises DTypeError for another dtype; its help line says what to write instead."""
    name = dtype
    if not isinstance(dtype, str) or dtype not in FAMILIES:
        try:
            found = parse(dtype)
        except DTypeError:
            if not isinstance(dtype, str):
                raise
            near = did_you_mean(dtype, [*(each.name for each in LOW), *FAMILIES])
            raise DTypeError(where, "float16 or bfloat16", repr(dtype), near) from None
        if found in LOW:
            return found
        name = name_of(found)
    family = name.partition("_")[0]  # of float8_e4m3fn
    cure = f'use autocast(policy=Policy("{family}"))' if family in FAMILIES else "use enabled=False"
    raise DTypeError(where, "float16 or bfloat16", name, f"for {name}, {cure}")


_FOLLOWS = "policies by module"  # why calls of modules are followed


def _module_dtypes(modules: Any) -> tuple[tuple[str, DType | QuantizationRecipe], ...]:
    if modules is not None and not isinstance(modules, Mapping):
        cure = 'modules={"head": "float32"}'
        raise ConfigError("Policy, modules", "a dict from module paths to dtypes", repr(modules), cure)
    found = []
    for pattern, word in (modules or {}).items():
        if not isinstance(pattern, str) or not all(pattern.split(".")):
            raise ConfigError("Policy, modules", "module paths such as 'blocks.*.attn'", repr(pattern))
        found.append((pattern, _module_dtype(pattern, word)))
    return tuple(found)


def _module_dtype(pattern: str, word: Any) -> DType | QuantizationRecipe:
    by_product = isinstance(word, str) and is_by_product(word)
    if isinstance(word, QuantizationRecipe) or by_product or word in RECIPES or word in FAMILIES:
        return of_family(word, None) if word in FAMILIES and word not in RECIPES else named(word)
    if isinstance(word, str) and (near := did_you_mean(word, RECIPES)) is not None:
        raise ConfigError(f"Policy, modules, {pattern}", _MODULE_DTYPES, repr(word), near)
    dtype = parse(word)
    if dtype not in (float16, bfloat16, float32):
        raise ConfigError(f"Policy, modules, {pattern}", _MODULE_DTYPES, name_of(dtype))
    return dtype


_MODULE_DTYPES = "float16, bfloat16, float32 or a recipe"


def _category(op: str, category: str) -> Cast:
    need_op("Policy", op)
    try:
        return Cast(category)
    except ValueError:
        needs, quantizes = f"one of {', '.join(c.value for c in Cast)}", category in RECIPES or category in FAMILIES
        cure = f'recipes quantize the products of a module: modules={{"blocks.*": "{category}"}}' if quantizes else None
        raise ConfigError(f"Policy, {op}", needs, repr(category), cure) from None
