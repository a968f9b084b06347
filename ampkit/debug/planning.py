"""`plan`: in which dtypes a model runs, op by op and module by module.

It is read off a real forward, and a backward where there is a loss, so it says what runs, not what a table promises.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from .. import backends
from ..base import public_dtypes
from ..base.dtypes import FLOATS, DType, float32
from ..base.errors import ConfigError, DTypeError
from ..base.observe import BACKWARD, FORWARD, Event, observing
from ..core.autograd.tape import grad
from ..core.dispatch.batching.call import watching_loops
from ..core.module_path import current, current_path, follow, matches, path_in_words
from ..core.op import Op
from ..core.parameter import Parameter
from ..core.policy import Cast, Policy, autocast, region
from ..core.policy.recipe import QuantizationRecipe, family_of_name, is_by_product
from ..core.tensor import Tensor
from ..ops.argument_checks import checked
from .plan_row import REASONS, PlanRow
from .plan_table import merge
from .precision_plan import PrecisionPlan
from .profiler import library_refusals
from .repeat.unchanged import need_loss, need_module, unchanged
from .saved_memory import SavedMemory


@checked
def plan(
    model: Any,
    batch: Any,
    policy: Policy | public_dtypes.dtype | DType | str | None = None,
    loss: Callable[..., Tensor] | None = None,
) -> PrecisionPlan:
    """In which dtypes `model` runs on `batch`, op by op, why, its casts, and what it keeps for backward.

    batch: a Tensor, or a tuple or list of the arguments of the model; with a loss, those of loss(model, *batch).
    policy: a Policy, its text or a dtype, float32 for no autocast, None for the autocast region around the call. loss:
    (model, *batch) -> a Tensor []; the plan then includes the backward. The model is afterwards as it was: gradients,
    buffers and random numbers. Notes say which units of a GPU multiply the operands of a recipe below 16 bits,
    which calls cublasLt or cuDNN has no algorithm for there, and where a model ran out of memory, which ends the
    plan. Raises what the model raises, ConfigError for a policy with an unknown op or a path that no module has,
    DTypeError for what is no policy, ArgumentError for a model that is no module, ShapeError for a loss that is not
    one floating-point number.
    """
    need_module("debug.plan", model)
    active = policy_of("debug.plan", policy)
    found = PrecisionPlan(in_force() if policy is None else active)
    recorder, arguments = _Recorder(found), tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    context: AbstractContextManager[Any] = nullcontext() if policy is None else autocast(enabled=False)
    try:
        region = context if active is None else autocast(policy=active)
        with unchanged(model), region, follow(), observing(recorder), watching_loops() as looped:
            out = model(*arguments) if loss is None else loss(model, *arguments)
            if loss is not None:
                recorder.last = "the backward"
                _differentiate(model, arguments, out)
            del out
        if looped:
            found.notes.append(f"under vmap once per sample, for want of a rule: {', '.join(looped)}")
        if found.policy is not None:
            recorder.rows = _beside_float32(found, recorder.rows, model, arguments, loss)
    except MemoryError:
        found.notes.append(f"out of memory in {recorder.last}, so the rest is missing: take a smaller batch")
    if loss is None:
        found.notes.append("no loss was given: the plan is of the forward alone")
    used = {backends.backend_of(parameter.array) for parameter in model.parameters()}
    found.notes += [*_units(recorder.recipes.values(), used), *library_refusals(used)]
    found.rows, found.backward = list(merge(recorder.rows)), list(merge(recorder.backward))
    return found


def _units(recipes: Iterable[QuantizationRecipe], used: Iterable[Any]) -> list[str]:
    """A line for each recipe on each GPU among `used`, or several where products differ: what multiplies its codes."""
    notes = []
    for gpu in (backend for backend in used if hasattr(backend, "product_units")):
        for recipe in recipes:
            lines: dict[str, list[str]] = {}
            for product in ("forward", *_BACKWARD):
                if (operands := getattr(recipe, product)) is not None:
                    lines.setdefault(gpu.product_units(*operands), []).append(product.replace("_", " "))
            for line, products in lines.items():
                which = f", {' and '.join(products)}" if len(lines) > 1 else ""
                notes.append(f"{recipe.name}{which} on {gpu.device}: {line}")
    return notes


def _beside_float32(found: PrecisionPlan, rows: list[PlanRow], model: Any, arguments: Any, loss: Any) -> list[PlanRow]:
    """`rows`, each with what it keeps without autocast, in a forward of its own, and the sum of that in `found`."""
    recorder = _Recorder(PrecisionPlan(None))
    try:
        with unchanged(model), autocast(enabled=False), follow(), observing(recorder):
            model(*arguments) if loss is None else loss(model, *arguments)
    except MemoryError:
        found.notes.append("out of memory in float32, so what that keeps for backward is not known")
        return rows
    found.saved_float32 = sum(row.saved for row in recorder.rows)
    kept: dict[tuple[str, str], list[int]] = {}
    for row in recorder.rows:
        kept.setdefault((row.path, row.op), []).append(row.saved)
    ahead = {key: iter(sizes) for key, sizes in kept.items()}
    return [replace(row, saved_float32=next(ahead.get((row.path, row.op), iter(())), 0)) for row in rows]


def _differentiate(model: Any, arguments: tuple[Any, ...], loss: Any) -> None:
    # By `grad`, which leaves alone the gradients that parameters hold: `backward` adds to them.
    need_loss("debug.plan", loss)
    leaves = [leaf for leaf in (*model.parameters(), *arguments) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if leaves:
        with autocast(enabled=False):
            grad(loss, leaves, allow_unused=True)


def policy_of(where: str, policy: Policy | public_dtypes.dtype | DType | str | None) -> Policy | None:
    """The policy of an argument: itself, that of its text or dtype, or None for float32. DTypeError names `where`."""
    if isinstance(policy, (np.dtype, public_dtypes.dtype)):
        policy = policy.name
    if isinstance(policy, str):
        return None if policy == "float32" else parse_policy(policy)
    if policy is not None and not isinstance(policy, Policy):
        raise DTypeError(where, "a Policy, its text, or a dtype", f"a {type(policy).__name__}")
    return policy


def in_force() -> Policy | None:
    """The policy of the autocast region around the call, or None."""
    entry = region()
    return None if entry is None else next(iter(entry.active), None)


class _Recorder:
    """An observer that writes rows."""

    def __init__(self, plan: PrecisionPlan):
        self.plan, self.rows, self.backward, self.last = plan, list[PlanRow](), list[PlanRow](), "the first op"
        self.recipes: dict[str, QuantizationRecipe] = {}  # those that ran, by name
        self._casts: list[Event] = []  # those of the operands of the op that runs next
        self._memory = SavedMemory()

    def __call__(self, event: Event) -> None:
        if event.name == "cast" and event.phase == FORWARD:
            self._casts.append(event)
        elif event.name == "cast" and event.phase == BACKWARD:
            self.plan.gradient_casts += 1
            self.plan.gradient_cast_bytes += event.output.nbytes
        elif event.phase == BACKWARD and event.op is not None:
            self._add_backward(event)
        elif event.phase == FORWARD and event.op is not None:
            self._add(event)

    def _add(self, event: Event) -> None:
        where = path_in_words(current())
        self.last = f"{event.name} in {where}"
        tensors = [operand for operand in event.operands if isinstance(operand, Tensor)]
        inputs = tuple(t.dtype.name for t in tensors if t.array.dtype in FLOATS)
        category, why = _reason(event, current_path())
        output = event.output[0] if isinstance(event.output, tuple) else event.output
        if not inputs and output.dtype not in FLOATS:  # of integers alone: labels, masks
            self._casts.clear()
            return
        if event.plan.quantized is not None and (recipe := _recipe_of(self.plan.policy, current_path())) is not None:
            self.recipes[recipe.name] = recipe
        saved = sum(array.nbytes for array in self._memory.add(event))
        row = PlanRow(where, event.name, inputs, output.dtype.name, category, why, saved=saved)
        for cast in self._casts:
            row = row.plus(self._cast(cast, event, row))
        self._casts.clear()
        self.rows.append(row)

    def _add_backward(self, event: Event) -> None:
        inputs, output = _dtypes(event.operands), _dtypes(event.output)
        if output:
            policy, name, where = self.plan.policy, event.op.name, path_in_words(current())
            weights = any(edge is not None and isinstance(edge[0], Parameter) for edge in event.node.edges)
            why = "weights f32" if weights and "float32" in output else "as its forward"
            if event.node.plan.quantized is not None:
                found = _recipe_of(policy, current_path())
                why = "as its forward" if found is None else f"{found.name}: {found.in_words(*_BACKWARD)}"
            why, category = ("autocast is off", None) if policy is None else (why, policy.category(name).value)
            self.backward.append(PlanRow(where, name, inputs, ", ".join(output), category, why, phase="backward"))

    def _cast(self, cast: Event, event: Event, row: PlanRow) -> PlanRow:
        (operand,), size = cast.operands, cast.output.nbytes
        nothing = replace(row, calls=0, casts=0, cast_bytes=0, weight_casts=0, weight_bytes=0, saved=0, saved_float32=0)
        if isinstance(operand, Parameter):
            return replace(nothing, weight_casts=1, weight_bytes=size)
        source = operand._tape_node.op.name if operand._tape_node is not None else "the input"
        count, before = self.plan.sources.get((source, event.name), (0, 0))
        self.plan.sources[source, event.name] = count + 1, before + size
        return replace(nothing, casts=1, cast_bytes=size)


def _dtypes(arrays: Any) -> tuple[str, ...]:
    """The names of the floating-point dtypes among some arrays, each once, in their order."""
    several = arrays if isinstance(arrays, tuple) else (arrays,)
    return tuple(dict.fromkeys(a.dtype.name for a in several if getattr(a, "dtype", None) in FLOATS))


def _reason(event: Event, path: str | None) -> tuple[str | None, str]:
    """(cast category under the policy, why the op ran in its dtypes)."""
    entry, op = region(), event.op
    active = None if entry is None else entry.policies[event.plan.backend]
    if active is None:
        return None, "autocast is off"
    category = active.category(op.name)
    return category.value, _why(op, category, active, path, event.plan.out, event.plan.quantized is not None)


_BACKWARD = "input_gradient", "weight_gradient"


def _recipe_of(policy: Policy | None, path: str | None) -> QuantizationRecipe | None:
    found = policy if policy is None or path is None else policy.in_module(path)
    return None if found is None else found.recipe


def _why(op: Op, category: Cast, active: Policy, path: str | None, out: DType, quantized: bool) -> str:
    pattern = next((p for p, _ in reversed(active.modules) if path is not None and matches(p, path)), None)
    if quantized:
        assert active.recipe is not None
        return f"{active.recipe.name}: {active.recipe.in_words('forward')}"
    if op.name in dict(active.overrides):
        return f'{op.name}="{category.value}" in the policy'
    if pattern is not None and op.cast is Cast.LOW:
        return f'module "{pattern}" is {active.dtype.name}'
    if category is Cast.LOW and op.cast is not Cast.LOW:
        return "low in Policy.fast"
    if category in (Cast.LOW, Cast.FP32) and out not in (active.low_dtype, float32):
        return f"{out.name} stays" if out in FLOATS else "not floating point"
    return REASONS[category.value]


_TEXT = (
    'float16, bfloat16, a recipe or an expression such as Policy("float16", softmax="low", modules={"head": "float32"})'
)


def parse_policy(text: str) -> Policy:
    """The policy that `text` says: float16, mxfp8, mxfp8 weight_gradient=low, Policy("float16", gelu="float32").

    Nothing is evaluated but literals. Raises ConfigError for another text, DTypeError or ConfigError for what the
    policy itself refuses.
    """
    if text.isidentifier() or is_by_product(text):
        family = family_of_name(text)
        return Policy(text) if family is None else Policy(family, recipe=text)
    try:
        call: Any = ast.parse(text, mode="eval").body
        make = {"Policy": Policy, "Policy.fast": Policy.fast}[ast.unparse(call.func)]
        arguments = [ast.literal_eval(argument) for argument in call.args]
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError, KeyError, AttributeError, TypeError, RecursionError, MemoryError):
        raise ConfigError("policy", _TEXT, repr(text[:200])) from None
    if len(arguments) > 1 or None in words or any(type(a) is not str for a in arguments):
        raise ConfigError("policy", _TEXT, repr(text[:200]))
    return make(*arguments, **words)
