"""Pruning: Parameters whose least important elements are masked, with the names of `torch.nn.utils.prune`.

A pruned Parameter `weight` becomes the Parameter `weight_orig`, the buffer `weight_mask` and, before each forward,
their product as `weight`. Pruning again removes elements among those that are left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ampkit import ops
from ampkit.base.errors import ArgumentError
from ampkit.core.arguments import is_number, is_whole
from ampkit.core.tensor import Tensor

from ..module import Module

__all__ = [
    "BasePruningMethod", "CustomFromMask", "Identity", "L1Unstructured", "LnStructured", "RandomStructured",
    "RandomUnstructured", "custom_from_mask", "global_unstructured", "identity", "is_pruned", "l1_unstructured",
    "ln_structured", "random_structured", "random_unstructured", "remove",
]  # fmt: skip


class BasePruningMethod:
    """A way to prune, and the hook that applies it; a subclass defines `compute_mask`.

    PRUNING_TYPE: "unstructured" methods are given the elements that are left, as a vector; "structured" and "global"
    ones everything.
    """

    PRUNING_TYPE = "unstructured"
    _tensor_name = ""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of 1 for what is kept, like `t`, the importance of each element; default_mask: what is left so far."""
        raise NotImplementedError(f"{type(self).__name__}.compute_mask")

    def prune(self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None) -> Tensor:
        """`t` times the mask of its elements."""
        mask = ops.ones_like(t) if default_mask is None else default_mask
        return t * self._narrowed(t if importance_scores is None else importance_scores, mask)

    def _narrowed(self, scores: Tensor, mask: Tensor) -> Tensor:
        scores, left = scores.detach(), mask == 1
        if self.PRUNING_TYPE != "unstructured" or bool(left.all()):
            return self.compute_mask(scores, mask).to(mask.dtype) * mask
        narrowed = mask.clone()
        narrowed[left] = self.compute_mask(scores[left], mask[left]).to(mask.dtype)
        return narrowed

    def apply_mask(self, module: Module) -> Tensor:
        """The product of the original Parameter and the mask."""
        original: Tensor = getattr(module, f"{self._tensor_name}_orig")
        return getattr(module, f"{self._tensor_name}_mask").to(original.dtype) * original

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prune the Parameter `name` of a module, by `cls(*args, **kwargs)`; returns the method.

        importance_scores: what to prune by, like the Parameter, instead of its values.
        """
        method = cls(*args, **kwargs)
        method._tensor_name = name
        if _methods(module, name):
            original, mask = getattr(module, f"{name}_orig"), getattr(module, f"{name}_mask")
        else:
            original = module.get_parameter(name)
            mask = ops.ones_like(original).detach()
        narrowed = method._narrowed(getattr(module, name) if importance_scores is None else importance_scores, mask)
        for key, _ in _methods(module, name):
            del module._forward_pre_hooks[key]
        if name in module._parameters:
            del module._parameters[name]
            module.register_parameter(f"{name}_orig", original)
        module.register_buffer(f"{name}_mask", narrowed)
        method(module, None)
        module.register_forward_pre_hook(method)
        return method

    def remove(self, module: Module) -> None:
        """Make the pruned values the Parameter; unlike the function `remove` it leaves the hook of the module."""
        name, values = self._tensor_name, self.apply_mask(module).detach()
        original: Any = module._parameters.pop(f"{name}_orig")
        del module._buffers[f"{name}_mask"]
        original._write(values)
        delattr(module, name)
        module.register_parameter(name, original)


def _methods(module: Module, name: str | None = None) -> list[tuple[int, BasePruningMethod]]:
    found = module._forward_pre_hooks.items()
    return [(k, h) for k, h in found if isinstance(h, BasePruningMethod) and name in (None, h._tensor_name)]


class Identity(BasePruningMethod):
    """Removes nothing, but makes the Parameter a pruned one."""

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class CustomFromMask(BasePruningMethod):
    """Keeps what a mask says."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor):
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * self.mask.to(default_mask.dtype)


class L1Unstructured(BasePruningMethod):
    """Removes the `amount` elements of least magnitude: an integer, or a fraction of those that are left."""

    def __init__(self, amount: float):
        self.amount = _checked(amount)

    def _scores(self, t: Tensor) -> Tensor:
        return t.abs()

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        mask = default_mask.clone().reshape(-1)
        if count := _count(self.amount, t.numel()):
            mask[ops.topk(self._scores(t).reshape(-1), count, largest=False).indices] = 0
        return mask.reshape(default_mask.shape)


class RandomUnstructured(L1Unstructured):
    """Removes `amount` random elements."""

    def _scores(self, t: Tensor) -> Tensor:
        return ops.rand_like(t, dtype="float32")


class LnStructured(BasePruningMethod):
    """Removes the `amount` slices along the axis `dim` whose n-norm is least, among those that are left."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, n: float, dim: int = -1):
        self.amount, self.n, self.dim = _checked(amount), n, dim

    def _scores(self, rows: Tensor) -> Tensor:
        return ops.linalg_vector_norm(rows, self.n, -1)

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        rows = ops.movedim(t, self.dim, 0).reshape(t.shape[self.dim], -1)
        left = ops.movedim(default_mask, self.dim, 0).reshape(len(rows), -1).sum(-1) > 0
        places = ops.nonzero(left).reshape(-1)
        keep = left.to(default_mask.dtype)
        if count := _count(self.amount, len(places)):
            keep[places[ops.topk(self._scores(rows[places]), count, largest=False).indices]] = 0
        axis = self.dim % t.ndim
        return keep.reshape([-1 if i == axis else 1 for i in range(t.ndim)]) * ops.ones_like(default_mask)


class RandomStructured(LnStructured):
    """Removes `amount` random slices along the axis `dim`."""

    def __init__(self, amount: float, dim: int = -1):
        super().__init__(amount, 1, dim)

    def _scores(self, rows: Tensor) -> Tensor:
        return ops.rand(len(rows))


def _checked(amount: Any) -> Any:
    if isinstance(amount, bool) or not is_number(amount) or amount < 0 or (not is_whole(amount) and amount > 1):
        raise ArgumentError("prune", "amount as a count, or a fraction from 0 to 1", repr(amount))
    return amount


def _count(amount: float, size: int) -> int:
    if isinstance(amount, int) and amount > size:
        raise ArgumentError("prune", f"an amount of at most the {size} that are left", repr(amount))
    return amount if isinstance(amount, int) else round(amount * size)


def identity(module: Module, name: str) -> Module:
    """Make the Parameter `name` a pruned one of which nothing is removed; returns the module."""
    Identity.apply(module, name)
    return module


def l1_unstructured(module: Module, name: str, amount: float, importance_scores: Tensor | None = None) -> Module:
    """Remove the elements of least magnitude from a Parameter; returns the module. See L1Unstructured."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Remove random elements from a Parameter; returns the module. See RandomUnstructured."""
    RandomUnstructured.apply(module, name, amount)
    return module


def ln_structured(
    module: Module, name: str, amount: float, n: float, dim: int, importance_scores: Tensor | None = None
) -> Module:
    """Remove the slices of least norm from a Parameter; returns the module. See LnStructured."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Remove random slices from a Parameter; returns the module. See RandomStructured."""
    RandomStructured.apply(module, name, amount, dim)
    return module


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Remove from a Parameter what `mask` has as 0; returns the module."""
    CustomFromMask.apply(module, name, mask)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune several Parameters, (module, name) pairs, as if they were one vector."""
    places, given = list(parameters), importance_scores or {}
    values = [getattr(module, name) for module, name in places]
    masks = [getattr(module, f"{name}_mask", None) for module, name in places]
    flat = [given.get(place, t).detach().reshape(-1) for place, t in zip(places, values, strict=True)]
    left = [ops.ones_like(f) if mask is None else mask.reshape(-1) for f, mask in zip(flat, masks, strict=True)]
    method = pruning_method(**kwargs)
    narrowed = method._narrowed(ops.cat(flat), ops.cat(left))
    for (module, name), mask, t in zip(places, ops.split(narrowed, [len(f) for f in flat]), values, strict=True):
        custom_from_mask(module, name, mask.reshape(t.shape))


def remove(module: Module, name: str) -> Module:
    """Make the pruned values of `name` a Parameter again; returns the module.

    Raises ArgumentError if it is not pruned.
    """
    found = _methods(module, name)
    if not found:
        raise ArgumentError("prune.remove", "the name of a pruned Parameter", repr(name))
    for key, method in found:  # at most one: pruning once more replaces it
        method.remove(module)
        del module._forward_pre_hooks[key]
    return module


def is_pruned(module: Module) -> bool:
    """Whether a Parameter of the module, or of one below it, is pruned."""
    return any(_methods(part) for part in module.modules())
