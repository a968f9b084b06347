"""Cures that are tried out before they are named: the step is repeated with each, and what works is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...base.dtypes import FLOATS, LOW, bfloat16, float16, float32
from ...base.observe import FORWARD, STEP
from ...core.fp_errors import ignore_fp_errors
from ...core.module_path import starred
from ...core.policy import Cast, categories
from ..finding import Finding
from ..finite import share
from ..origin import Origin, is_arithmetic
from . import constants, edges, learning_rate, norms, rewrites
from .constants import Changed
from .learning_rate import Training
from .trial import Cure, Trials, Watch, chosen

_ROUNDS = 4  # modules and ops that are given float32 one after the other, as each lets the next one overflow


def cured(finding: Finding, origin: Origin, trials: Trials, watch: Watch, training: Training | None) -> Finding:
    """The finding with a cure that has worked in a repetition of the step; as it is if none has, or none can be tried.

    training: how to train from the beginning; by default the step is repeated from new weights.
    """
    with trials.leaving_no_trace(), ignore_fp_errors():
        if not trials.repeats(origin):
            return finding
        for cures in _groups(finding, origin, trials, watch, training):
            working = list(cures)
            if working:
                known = "the constant" in finding.cause
                more = "".join(f"; {cure.cause}" for cure in working if cure.cause and not known)
                return replace(finding, cause=finding.cause + more, cure=chosen(working), tried=True)
    return finding


def _groups(
    finding: Finding, origin: Origin, trials: Trials, watch: Watch, training: Training | None
) -> Iterator[Iterable[Cure]]:
    """Cures of each kind that have worked, the likeliest kind first."""
    phase, name = origin.event.phase, edges.name_of(origin.event.name)
    overflows = origin.overflows
    if origin.outside.startswith(("parameter", "buffer", "argument", "`target`")) or name in ("hook", "BackwardHook"):
        return
    if phase == STEP:
        yield _first([Cure("give the optimizer an eps of 1e-8", lambda: _with_eps(trials))], trials)
    if overflows or phase == STEP or origin.event.op is None:
        yield _lower(trials, training)
    yield _constants(trials, watch)
    if origin.parent is not None:
        text = "leave one finite value in each row of the mask, or replace such rows' result"
        yield _first([Cure(text, edges.without_infinite_rows(name))] if name in _SOFTMAX else [], trials)
    if is_arithmetic(origin.event.op) and origin.constant is not None:
        text = "mask by scores.masked_fill(mask, float('-inf')), which needs no product: 0 times infinity is NaN"
        yield _first([Cure(text, edges.without_infinite_factor(name))], trials)
    if overflows and phase == FORWARD:
        yield _bounded(name, trials)
        yield _wider(origin, trials)
        if "has grown" not in finding.cause:  # else a norm hides that the training diverges
            yield _first(norms.before_same_type(origin), trials)
    if not overflows:
        yield _away(origin, trials)
    if overflows and phase != FORWARD:
        mean = Cure("take the mean of the loss, not its sum", rewrites.calls("sum", _mean))
        yield [*_first([mean], trials), *_wider(origin, trials)]
    if not overflows:
        yield _lower(trials, training)
        yield _wider(origin, trials)


_SOFTMAX = ("softmax", "log_softmax")


def _first(cures: Iterable[Cure], trials: Trials) -> list[Cure]:
    """The first of `cures` that works, in a list; an empty one if none does."""
    found = next((cure for cure in cures if trials.works(cure)), None)
    return [] if found is None else [found]


def _lower(trials: Trials, training: Training | None) -> list[Cure]:
    again = training if training is not None else learning_rate.from_new_weights(trials)
    found = None if again is None else learning_rate.lower(again)
    return [] if found is None else [found]


def _constants(trials: Trials, watch: Watch) -> list[Cure]:
    """Another constant instead of one that its dtype cannot hold, or others instead of all of a call."""
    found = list(reversed(watch.constants.found.values()))
    calls = {(changed.op.name, changed.where): changed for changed in found}
    together = [[c for c in found if (c.op.name, c.where) == call] for call in calls]
    for several in ([changed] for changed in found), (group for group in together if len(group) > 1):
        for group in several:
            cure = _first(
                (_replaced(group, values) for values in zip(*[c.values() for c in group], strict=False)), trials
            )
            if cure:
                changed = group[0]
                wide = Cure("compute it in float32: x.float()", rewrites.in_float32(changed.op, changed.where))
                return [*cure, *_first([wide] if changed.dtype in LOW else [], trials)]
    return []


def _replaced(group: Sequence[Changed], values: Sequence[float]) -> Cure:
    pairs = list(zip(group, values, strict=True))
    now = " and ".join(changed.spelled(value) for changed, value in pairs)
    before = " and ".join(constants.shown(changed.number) for changed in group)
    apply = rewrites.together(*[rewrites.constant(changed, value) for changed, value in pairs])
    return Cure(f"use {now} instead of {before}", apply, "; ".join(map(str, group)))


def _away(origin: Origin, trials: Trials) -> list[Cure]:
    """Arguments away from the edge of the op's domain, or of that of the op that fails next, as in 1 / sqrt(0)."""
    next_: Any = None
    for cure in _edges(origin):
        failed = trials.failure(cure)
        if failed is None:
            return [cure]
        if isinstance(failed, Origin) and edges.name_of(failed.event.name) != edges.name_of(origin.event.name):
            next_ = failed
    if next_ is None:
        return []
    alone = list(_edges(next_, False))
    both = [Cure(f"{a.text}, and {b.text}", rewrites.together(a.apply, b.apply)) for b in alone for a in _edges(origin)]
    return _first([*alone, *both], trials)


def _edges(origin: Origin, masked: bool = True) -> Iterator[Cure]:
    event, name = origin.event, edges.name_of(origin.event.name)
    read = [array.dtype for array in event.inputs if getattr(array, "dtype", None) in FLOATS]
    dtype = next((each for each in read if each in LOW), read[-1] if read else float32)
    known = [array for array in event.operands if getattr(array, "dtype", None) in FLOATS]
    masked = masked and event.phase != FORWARD and bool(known) and share(origin.output, "isnan") > 0
    yield from edges.away(name, dtype, masked and bool((known[0] == 0).any()))


def _bounded(name: str, trials: Trials) -> list[Cure]:
    """A cure of an exponential that overflows: an input that is not too large."""
    if name not in ("exp", "expm1", "exp2", "sinh", "cosh"):
        return []
    text = f"bound what goes in: {name}(x.clamp(max="
    return _first(
        (Cure(f"{text}{top}))", rewrites.inputs(name, lambda x, top=top: x.clamp(max=top))) for top in (80, 10)), trials
    )


def _to_bfloat16(call: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    out = call(x, *args, **kwargs)
    return call(x, dtype=bfloat16) if out.dtype == float16 else out


def _mean(call: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    out = call(x, *args, **kwargs)
    return out / x.numel() if out.numel() == 1 else out


def _wider(origin: Origin, trials: Trials) -> list[Cure]:
    """float32 where it overflows, and bfloat16; where one module is not enough, all of its kind, or the whole part."""
    if origin.output is None or origin.output.dtype not in LOW:
        return []
    if origin.policy is None:
        return _by_casts(origin, trials)
    narrow = origin.output.dtype == float16
    found, rounds = _in_float32(origin, trials)
    others = _first([Cure("train in bfloat16", rewrites.policies("bfloat16"))] if narrow else [], trials)
    if not found and not others and narrow:  # the program casts to float16 itself
        both = rewrites.together(rewrites.policies("bfloat16"), rewrites.calls("to", _to_bfloat16))
        others = _first([Cure("train in bfloat16, with x.bfloat16() instead of x.half()", both)], trials)
    if not found and not others:
        return _wider_and_away(origin, trials)
    return [*found, *others] if rounds <= 1 else [*others, *found]


def _wider_and_away(origin: Origin, trials: Trials) -> list[Cure]:
    """float32, and an argument away from the edge of the op that fails then, as of a root of x * x - mean * mean."""
    modules: dict[str, str] = {}
    overrides: dict[str, str] = {}
    if not _add(origin, modules, overrides):
        return []
    wide = _policy(origin, modules, overrides)
    failed = trials.failure(wide)
    found = _edges(failed) if isinstance(failed, Origin) else ()
    return _first(
        [Cure(f"{wide.text}, and {each.text}", rewrites.together(wide.apply, each.apply)) for each in found], trials
    )


def _by_casts(origin: Origin, trials: Trials) -> list[Cure]:
    op: Any = origin.event.op or (None if origin.event.node is None else origin.event.node.op)
    if not hasattr(op, "forward"):
        return []
    text = f"compute {op.name} in float32, x.float()"
    return _first([Cure(text, rewrites.in_float32(op, origin.where))], trials)


def _in_float32(origin: Origin, trials: Trials) -> tuple[list[Cure], int]:
    """The smallest change of the policy that works, and how many modules and ops it took; nothing if there is none."""
    modules: dict[str, str] = {}
    overrides: dict[str, str] = {}
    failed: Any = origin
    for rounds in range(1, _ROUNDS + 1):
        if not _add(failed, modules, overrides):
            break
        failed = trials.failure(_policy(origin, modules, overrides))
        if failed is None:
            return [_policy(origin, modules, overrides)], rounds
        if not isinstance(failed, Origin) or failed.policy is None:
            break
    for part in _parts(origin.path):
        found = _policy(origin, {part: "float32"}, {})
        if trials.works(found):
            return [found], _ROUNDS
    return [], _ROUNDS


def _add(failed: Origin, modules: dict[str, str], overrides: dict[str, str]) -> bool:
    """Give what failed float32; whether that is possible, and new."""
    assert failed.policy is not None
    event = failed.event
    name = event.name if event.op is not None or event.node is None else event.node.op.name
    name = failed.caster or edges.name_of(name)
    if name not in categories or name == "to":
        return False
    if failed.policy.category(name) is Cast.LOW and "(" not in failed.path:
        path = failed.path if not modules else starred(failed.path)
        if modules and any(starred(known) == path for known in modules):
            for known in [known for known in modules if starred(known) == path]:
                del modules[known]
        elif path in modules:
            return False
        modules[path] = "float32"
        return True
    if name in overrides:
        return False
    overrides[name] = "float32"
    return True


def _policy(origin: Origin, modules: dict[str, str], overrides: dict[str, str]) -> Cure:
    assert origin.policy is not None
    apply = rewrites.policies(modules=dict(modules), overrides=dict(overrides))
    it = "it" if len(modules) + len(overrides) == 1 and not any("*" in path for path in modules) else "these"
    base = origin.policy if origin.policy.low_dtype in LOW else None
    shown = "" if base is None else f", {rewrites.with_changes(base, '', modules, overrides)!r}"
    return Cure(f"run {it} in float32{shown}", apply)


def _parts(path: str) -> list[str]:
    """What `path` is a part of: the stack of blocks that it is in first, then what that is in."""
    names = path.split(".")
    return [] if "(" in path else [".".join(names[:n]) for n in range(len(names) - 1, 0, -1)]


@contextmanager
def _with_eps(trials: Trials) -> Iterator[None]:
    groups = [group for each in trials.state.optimizers for group in each.param_groups if group.get("eps") == 0]
    for group in groups:
        group["eps"] = 1e-8
    try:
        yield
    finally:
        for group in groups:
            group["eps"] = 0.0
