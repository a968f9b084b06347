"""Build a run from a recipe: model, optimizer, schedule, gradient scaler, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

from .. import backends, nn
from ..amp.grad_scaler import GradScaler
from ..base import dtypes
from ..base.errors import ConfigError
from ..base.registry import MODELS, OPTIMIZERS, SCHEDULES
from ..config import Recipe, Section
from ..core.policy import Policy, autocast
from ..core.policy.recipe import FAMILIES
from ..debug import Ranges
from ..distributed.fsdp import MixedPrecisionPolicy, fully_shard
from ..distributed.optim import ZeroRedundancyOptimizer, updates_parts
from ..models.weights import started
from ..nn.lora.config import ALL_LINEAR
from ..optim import lr_scheduler
from ..optim.layerwise import by_factor, lr_factors_of
from ..optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from .input_pipeline import InputPipeline
from .policy_of_model import need_modules_of, output_layer_in_16_bits
from .ranks import ALONE, Ranks
from .trainer.callbacks import Callback, EarlyStopping, ModelCheckpoint


def model(recipe: Recipe, about: Mapping[str, Any] | None = None, starts: bool = False) -> nn.Module:
    """The recipe's model, on its device, its weights drawn from the default random stream.

    about: of the input pipeline, or of the checkpoint to load: what of the model follows from the data alone. starts:
    whether to load model.weights, see `pretrained` of the model. Raises what `load_weights` raises.
    """
    entry = MODELS[recipe.model.name]
    found = (about or {}).get("sizes")
    sizes = entry.from_data(SimpleNamespace(**found) if found else recipe.data)
    built: nn.Module = entry.build(**recipe.model.model_dump(exclude={"name", "weights"}), **sizes)
    started(built, recipe.model.weights if starts else None)
    if recipe.parallel.sync_batchnorm:
        built = nn.SyncBatchNorm.convert_sync_batchnorm(built)
    built = built.to(recipe.train.device)
    if recipe.amp.parameters == "low":
        dtype = dtypes.bfloat16 if recipe.amp.dtype in FAMILIES else dtypes.parse(recipe.amp.dtype)
        for parameter in built.parameters():  # buffers, running statistics among them, stay float32
            parameter.array = backends.backend_of(parameter.array).cast(parameter.array, dtype)
    return _to_finetune(recipe, built)


def _to_finetune(recipe: Recipe, model: nn.Module) -> nn.Module:
    nn.utils.freeze(model, *recipe.finetune.freeze)
    if recipe.lora.r is not None:
        keys = _arguments(recipe.lora)
        if keys["target_modules"] == [ALL_LINEAR]:
            keys["target_modules"] = ALL_LINEAR
        nn.lora.inject_adapter_in_model(nn.lora.LoraConfig(**keys), model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("finetune.freeze", "parameters that are left to train", "all of them frozen")
    return model


def from_scratch(recipe: Recipe) -> Recipe:
    """The recipe without model.weights: for what does not depend on the weights, and so can do without their file."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"weights": None})})


def _arguments(section: Section) -> dict[str, Any]:
    return section.model_dump(exclude={"name"})


def ranges(recipe: Recipe, model: nn.Module) -> Ranges | None:
    """What samples the ranges of the layers of `model`, or None."""
    every = recipe.debug.ranges_every
    return Ranges(model, every) if every else None


def parallel(recipe: Recipe) -> dict[str, Any]:
    """The options of DistributedDataParallel, from the section [parallel]."""
    section = recipe.parallel
    wire = None if section.wire_dtype == "float32" else section.wire_dtype
    return {"wire_dtype": wire, "bucket_cap_mb": section.bucket_mb}


def shard(recipe: Recipe, model: nn.Module, ranks: Ranks) -> None:
    """Share the parameters of `model` out over the ranks, at parallel.stage 2 and 3: entries of lists, then the rest.

    Raises ConfigError for what does not go with it.
    """
    stage = recipe.parallel.stage
    if stage < 2 or ranks.group is None:
        return
    if recipe.train.compile:
        raise ConfigError("parallel.stage", "train.compile=false", f"stage={stage} with train.compile=true")
    policy = MixedPrecisionPolicy(reduce_dtype=parallel(recipe)["wire_dtype"])
    options: dict[str, Any] = {"mesh": ranks.data_group, "mp_policy": policy, "reshard_after_forward": stage == 3}
    for part in _blocks(model):
        fully_shard(part, **options)
    fully_shard(model, **options)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    # What stands in the outermost lists: the layers of a deep model.
    for part in module.children():
        if isinstance(part, nn.ModuleList):
            yield from (each for each in part.children() if any(True for _ in each.parameters()))
        else:
            yield from _blocks(part)


def callbacks(recipe: Recipe) -> list[Callback]:
    """What keeps the best checkpoints and, with train.patience, ends the training early."""
    train = recipe.train
    patience = [] if train.patience is None else [EarlyStopping(train.monitor, patience=train.patience)]
    return [ModelCheckpoint(monitor=train.monitor, save_top_k=train.keep_best, keep=train.keep), *patience]


def steps(recipe: Recipe, pipeline: InputPipeline) -> int:
    """The number of updates of the recipe."""
    if recipe.train.steps is not None:
        return recipe.train.steps
    assert recipe.train.epochs is not None
    assert pipeline.batches_per_epoch is not None
    return max(1, recipe.train.epochs * pipeline.batches_per_epoch // recipe.train.accumulate)


def optimizer(recipe: Recipe, model: nn.Module, ranks: Ranks = ALONE) -> Any:
    """The recipe's optimizer over the parameters of `model` that are trained.

    At parallel.stage 1 the ranks share its state out. Raises ConfigError for one that needs all of it.
    """
    entry, section = OPTIMIZERS[recipe.optimizer.name], recipe.finetune
    factors = lr_factors_of(model, section.layer_decay, section.lr_factors)
    parts = [part for group in entry.groups(model) for part in by_factor(group, factors)]
    groups = [group for _, group in parts]
    make: Any = entry.build
    if recipe.parallel.stage == 1 and ranks.data_group is not None:
        if not updates_parts(make):
            needs = "an optimizer that updates parts of its state, with stage=1"
            raise ConfigError("parallel.stage", needs, recipe.optimizer.name)
        make = partial(ZeroRedundancyOptimizer, optimizer_class=make, process_group=ranks.data_group)
    built = make(groups, **_arguments(recipe.optimizer))
    for (factor, _), group in zip(parts, built.param_groups, strict=True):
        group["lr"] *= factor
    return built


def average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """The recipe's moving average of `model`'s weights, or None; built after the optimizer."""
    decay = recipe.train.ema
    return None if decay is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


def schedule(recipe: Recipe, optimizer: Any, steps: int) -> Any:
    """The recipe's learning rate schedule over `steps` updates, which include those of the warmup."""
    keys = _arguments(recipe.schedule)
    warmup = keys.pop("warmup", 0)
    if warmup >= steps:
        raise ConfigError("schedule.warmup", f"less than the {steps} steps of the run", str(warmup))
    after = SCHEDULES[recipe.schedule.name].build(optimizer, steps - warmup, **keys)
    if not warmup:
        return after
    rise = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, warmup)
    return lr_scheduler.SequentialLR(optimizer, [rise, after], [warmup])


def scaler(recipe: Recipe) -> GradScaler:
    """The recipe's GradScaler: enabled for float16, whose gradients would underflow unscaled; disabled otherwise."""
    settings = recipe.amp.model_dump(include={*signature(GradScaler).parameters})
    return GradScaler(enabled=recipe.amp.dtype == "float16", **settings)


def region(recipe: Recipe, model: nn.Module) -> AbstractContextManager[Any]:
    """The context of the recipe's forward: autocast with its policy, or nothing for float32.

    Raises ConfigError for an unknown op, for an entry of amp.modules that no module of `model` matches, or that
    quantizes modules without products, and for a recipe below 16 bits that amp.output_layer leaves nothing to quantize.
    """
    amp = recipe.amp
    off = amp.dtype == "float32"
    make = partial(Policy.fast if amp.policy == "fast" else Policy, "bfloat16" if off else amp.dtype, recipe=amp.recipe)
    # Made for float32 too, so that overrides are checked also where they have no effect.
    overrides: dict[str, Any] = amp.overrides
    policy = make(modules=amp.modules, **overrides)
    need_modules_of(policy, model)
    if amp.output_layer == "low" and (kept := output_layer_in_16_bits(policy, model)):
        policy = make(modules={**kept, **amp.modules}, **overrides)
    return nullcontext() if off else autocast(policy=policy)
