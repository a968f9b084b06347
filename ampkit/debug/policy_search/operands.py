"""What recipes do to the operands and products of each linear layer, in one step that runs in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.dtypes import LOW, Array, float32
from ...base.observe import BACKWARD, Event, observing
from ...core import module_path
from ...core.casts import cast
from ...core.policy.recipe import Operands, QuantizationRecipe
from ...ops.linalg.quantization import Quantized, dequantize, hadamard, largest_values, quantize, scaled_mm
from ..repeat.unchanged import unchanged
from .sensitivity import Evaluation

PRODUCTS = ("forward", "input_gradient", "weight_gradient")


class ProductLoss(NamedTuple):
    """What quantization does to one product of a layer.

    error: the L2 norm of the difference from the product of the operands as they were, relative to that product's.
    flushed, saturated: of each operand, the share of its values other than 0 that become 0, and that exceed what the
    format holds by the scale of their block, which was rounded down (nvfp4) or follows from other values. kept: bytes
    of the second operand, which a product of the backward keeps from the forward.
    """

    error: float
    flushed: tuple[float, float]
    saturated: tuple[float, float]
    kept: int = 0


class LayerLosses(NamedTuple):
    """What recipes do to a layer's products, by product and recipe name.

    work: the multiply-adds of each product in a step. kept: by product, the bytes of the second operand in 16 bits,
    which a product of the backward keeps from the forward.
    """

    products: dict[tuple[str, str], ProductLoss]
    work: dict[str, int]
    kept: dict[str, int]


def operand_losses(
    evaluation: Evaluation, batch: Sequence[Any], policy: Any, recipes: Sequence[QuantizationRecipe]
) -> dict[str, LayerLosses]:
    """By the path of each module that runs `linear`, what each recipe does to its products on `batch`.

    The model runs one step under `policy`, in 16 bits. Of a module that runs several times the first call is judged,
    whose backward comes last, and the sizes are those of all calls.
    """
    found: dict[str, LayerLosses] = {}
    paths = {path for path, _ in evaluation.model.named_modules() if path}  # those that a policy can name

    def seen(event: Event) -> None:
        call = event.node.module_call if event.phase == BACKWARD and event.op is not None else None
        if call is None or event.op.name != "linear" or call.path not in paths:
            return
        if event.operands[0].dtype not in LOW:  # outside of the policy's region
            return
        path, layer = call.path, _of_layer(event, recipes)
        found[path] = layer if path not in found else _both(found[path], layer)

    with unchanged(evaluation.model), module_path.follow(), observing(seen):
        evaluation.backward(evaluation.forward(batch, policy))
    return found


def _both(earlier: LayerLosses, layer: LayerLosses) -> LayerLosses:
    # The losses of the second, which runs before the first, and the sizes of both.
    products = {key: loss._replace(kept=loss.kept + _kept(earlier, key)) for key, loss in layer.products.items()}
    work = {name: size + earlier.work.get(name, 0) for name, size in layer.work.items()}
    return LayerLosses(products, work, {name: size + earlier.kept.get(name, 0) for name, size in layer.kept.items()})


def _kept(losses: LayerLosses, key: tuple[str, str]) -> int:
    return losses.products[key].kept if key in losses.products else 0


def _of_layer(event: Event, recipes: Sequence[QuantizationRecipe]) -> LayerLosses:
    saved, (grad,), edge = vars(event.node.saved), event.operands, event.node.edges[1]
    input, weight = saved.get("input"), saved.get("weight")
    rows, pairs = grad.reshape(-1, grad.shape[-1]), dict[str, tuple[Array, Array]]()
    if weight is not None:
        pairs["input_gradient"] = rows, weight.T
    elif edge is not None:  # where the input needs no gradient, the weight was not saved
        weight = getattr(edge[0], "array", None)
    if input is not None:
        values = input.reshape(-1, input.shape[-1])
        pairs["weight_gradient"] = rows.T, values.T
        if weight is not None:
            pairs["forward"] = values, weight
    losses: dict[tuple[str, str], ProductLoss] = {}
    for product, (first, second) in pairs.items():
        wide = cast(first, float32), cast(second, float32)
        exact = wide[0] @ wide[1].T
        for recipe in recipes:
            operands: Operands | None = getattr(recipe, product)
            if operands is not None:
                losses[product, recipe.name] = _of_product(wide, exact, operands, product != "forward")
    work = {product: int(first.size * second.shape[0]) for product, (first, second) in pairs.items()}
    kept = {product: 2 * int(second.size) for product, (_, second) in pairs.items() if product != "forward"}
    return LayerLosses(losses, work, kept)


def _of_product(wide: tuple[Array, Array], exact: Array, operands: Operands, keeps: bool) -> ProductLoss:
    one = np.float32(1)
    scales = [np.full_like(wide[0][:1, :1], one) if how.delayed else None for how in operands]
    quantized = [quantize(array, how, scale)[0] for array, how, scale in zip(wide, operands, scales, strict=True)]
    error = _norm(scaled_mm(quantized[0], quantized[1], exact.dtype) - exact) / (_norm(exact) or 1.0)
    flushed = [_flushed(array, each) for array, each in zip(wide, quantized, strict=True)]
    saturated = [_saturated(array, each) for array, each in zip(wide, quantized, strict=True)]
    kept = quantized[1].nbytes if keeps else 0
    return ProductLoss(error, (flushed[0], flushed[1]), (saturated[0], saturated[1]), kept)


def _norm(array: Array) -> float:
    return float(np.sqrt((array.astype(np.float64) ** 2).sum()))


def _flushed(array: Array, quantized: Quantized) -> float:
    nonzero = (hadamard(array) if quantized.how.hadamard else array) != 0
    return _share((dequantize(quantized) == 0) & nonzero, nonzero)


def _saturated(array: Array, quantized: Quantized) -> float:
    values = np.abs(hadamard(array) if quantized.how.hadamard else array)
    with np.errstate(over="ignore"):
        limits = largest_values(quantized) * np.float32(1 + 2**-16)  # more than the rounding of a scale
    return _share(values > limits, values != 0)


def _share(part: Array, whole: Array) -> float:
    return int(part.sum()) / max(1, int(whole.sum()))
