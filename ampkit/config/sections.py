"""The sections of a recipe as frozen pydantic models, those with a `name` derived from what is registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from .. import data, models
from ..base.errors import ConfigError
from ..base.limits import AboveOne, Count, Fraction, Positive, Seed, Whole
from ..base.registry import DATASETS as DATASET_ENTRIES
from ..base.registry import FROM_DATA, DatasetEntry, ModelEntry
from ..base.registry import MODELS as MODEL_ENTRIES
from ..core.policy.recipe import FAMILIES, is_by_product
from ..core.policy.recipe import recipe as named_recipe
from ..data.augment import AUGMENTATIONS, AugmentedImages
from ..models.weights.tables import LAYOUTS
from .derived import derive_section, key_meanings, signature_fields
from .field_types import Device, FilePath, Section, Threads, Workers
from .finetune_sections import Finetune, Lora
from .optimizer_sections import OPTIMIZERS as OPTIMIZERS
from .optimizer_sections import SCHEDULES as SCHEDULES


class Pretrained(Section):
    """Keys of every model.

    weights: to start from: a file, a folder or owner/model of the Hugging Face Hub; a run that is resumed has its own.
    """

    weights: FilePath | None = None


class Batches(Section):
    """Keys of every data set. batch_size: samples in a batch."""

    name: str
    batch_size: Count = 64


class LoadedBatches(Batches):
    """Keys of data sets that are read while training.

    workers: threads that prepare batches ahead; 0 prepares them when they are due.
    """

    workers: Workers = 0


class ImageBatches(LoadedBatches):
    """Keys of images.

    processes: workers are processes, faster where reading is slow in Python, slower where it is NumPy's work.
    """

    processes: bool = False


class GeneratedBatches(Batches):
    """Keys of generated data sets. validation: the fraction of the samples that is held out."""

    validation: Fraction = 0.1


_BASES: dict[str, type[Section]] = {
    "arrays": Batches,
    "generated": GeneratedBatches,
    "images": ImageBatches,
    "dataset": LoadedBatches,
    "text": Batches,
    "stream": Batches,
}


def _data_section(entry: DatasetEntry) -> type[Section]:
    extra = signature_fields(AugmentedImages, include=AUGMENTATIONS) if entry.loading == "images" else {}
    return derive_section(
        entry.name,
        entry.load,
        exclude=entry.from_model,
        defaults=entry.defaults,
        constants=entry.constants,
        base=_BASES[entry.loading],
        extra=extra,
        complete=entry.complete,
    )


def _import_all(package: ModuleType) -> None:
    """Import every module of a package, so that each registers what it has."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


_import_all(models)
_import_all(data)


def _model_section(entry: ModelEntry) -> type[Section]:
    return derive_section(
        entry.name,
        entry.signature,
        exclude={*FROM_DATA, *Pretrained.model_fields, *entry.exclude},
        defaults=entry.defaults,
        base=Pretrained,
        extra={"weights": (FilePath | None, Field(None, description=_weights_in_words(entry)))},
    )


def _weights_in_words(entry: ModelEntry) -> str:
    """What model.weights takes: of which layouts, as the docstring of the model or the table of layouts says."""
    if (own := key_meanings(inspect.getdoc(entry.signature)).get("weights")) is not None:
        return own
    build: Any = entry.build
    made = build if inspect.isclass(build) else inspect.signature(build).return_annotation
    kind = getattr(made, "__name__", str(made))
    known = " or ".join(dict.fromkeys(layout.name for layout in LAYOUTS if layout.model == kind))
    of = f"in the layout of {known}, or with the model's own names" if known else "with the model's own names"
    meaning = key_meanings(inspect.getdoc(Pretrained))["weights"]
    return f"{meaning.partition(';')[0]}, {of};{meaning.partition(';')[2]}"


MODELS = {name: _model_section(entry) for name, entry in MODEL_ENTRIES.items()}
DATASETS = {name: _data_section(entry) for name, entry in DATASET_ENTRIES.items()}


Low = Literal["bfloat16", "float16"]
RecipeName = Literal["delayed", "current", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "nvfp4", "int8"]


def _by_product(value: Any, one_of: ValidatorFunctionWrapHandler) -> Any:
    """The words of a Literal, and names of recipes with words for products: "mxfp8 weight_gradient=low"."""
    if not isinstance(value, str) or not is_by_product(value):
        return one_of(value)
    try:
        return named_recipe(value).name
    except ConfigError as error:
        needs = str(error).partition("\n")[0].partition(": needs ")[2].rpartition(", got ")[0]
        raise PydanticCustomError("recipe", "{needs}", {"needs": needs}) from None


class Amp(Section):
    """autocast, its policy and the loss scale.

    dtype: what autocast runs products in; "float32" turns it off; float8, float4 and int8 are bfloat16 whose linear
    layers are quantized. recipe: how linear layers are quantized, see docs/recipes-below-16-bits.md; by default
    "current" of float8, "nvfp4" of float4, "int8" of int8; "mxfp8 weight_gradient=low" gives a product another recipe,
    or 16 bits. output_layer: "low" keeps the model's last layer in 16 bits
    under a recipe, where modules has no entry for it; "recipe" quantizes it, too. parameters: "low" stores parameters
    in 16 bits, without a float32 copy where the optimizer rounds stochastically; buffers stay float32. policy: "fast"
    stores norms and softmax in 16 bits. overrides: a cast category for each op named. modules: the dtype of products
    in a module and below it, or their recipe, by its path; `*` stands for any one part of a path. init_scale: the
    first loss scale. growth_factor: what the loss scale is multiplied by after growth_interval steps without overflow.
    backoff_factor: what it is multiplied by after an overflow. growth_interval: steps in a row without overflow after
    which the scale grows. min_scale: the scale below which training fails. max_scale: the largest scale. hysteresis:
    overflows in a row before the scale falls.
    """

    dtype: Literal["float32", Low, "float8", "float4", "int8"] = "float32"
    recipe: Annotated[RecipeName, WrapValidator(_by_product)] | None = None
    output_layer: Literal["low", "recipe"] = "low"
    parameters: Literal["float32", "low"] = "float32"
    policy: Literal["default", "fast"] = "default"
    overrides: dict[str, Literal["low", "float32", "widest", "keep", "banned"]] = Field(default_factory=dict)
    modules: dict[str, Annotated[Literal["float32", Low, RecipeName], WrapValidator(_by_product)]] = Field(
        default_factory=dict
    )
    init_scale: Positive = 65536.0
    growth_factor: AboveOne = 2.0
    backoff_factor: Fraction = 0.5
    growth_interval: Count = 2000
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    hysteresis: Count = 1

    @property
    def precision(self) -> str:
        """The name of the recipe below 16 bits, or else the dtype."""
        named = self.recipe is None and self.dtype in FAMILIES
        return FAMILIES[self.dtype][0] if named else self.recipe or self.dtype


class Debug(Section):
    """What is looked at while training.

    ranges_every: steps between those in which the values of every layer are counted by exponent, for ranges.jsonl; 0
    counts none.
    """

    ranges_every: Whole = 0


class Parallel(Section):
    """How several ranks train together, see docs/distributed.md.

    wire_dtype: the dtype in which gradients travel to where they are added up in float32. bucket_mb: MiB of gradients
    in a message. sync_batchnorm: let batch normalization use the statistics of the whole batch, not of a rank's part.
    stage: what the ranks share out: 0 nothing; 1 the optimizer's state; 2 rows of parameters, gradients and that state,
    with whole parameters from forward to backward; 3 with whole ones only while their module computes. data: how many
    ranks, or groups of them, share the data out; unset, all that there are. tensor: how many ranks divide the layers of
    the model; the groups of so many share the data out. tensor_shards: with deterministic, the parts that these layers
    are computed in on any number of ranks, a power of 2; unset, as many as ranks divide them. pipeline: how many ranks
    have consecutive layers of the model, its stages; the groups of so many share the data out. deterministic: give the
    same bits on any number of ranks and threads, with any stage or pipeline, accumulated or not. microbatches: with
    deterministic, the parts of an update's samples whose gradients are computed one by one, a power of 2; with
    pipeline, the parts of a batch that go from stage to stage.
    """

    wire_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    bucket_mb: Positive = 25.0
    sync_batchnorm: bool = False
    stage: Literal[0, 1, 2, 3] = 0
    data: Count | None = None
    tensor: Count = 1
    tensor_shards: Count | None = None
    pipeline: Count = 1
    deterministic: bool = False
    microbatches: Count = 8

    @model_validator(mode="after")
    def _shards_are_said(self) -> Self:
        if self.deterministic and self.tensor_shards is None:  # a run may go on with another `tensor`
            object.__setattr__(self, "tensor_shards", self.tensor)
        return self


class Train(Section):
    """How long, from which seed, on which device.

    steps: updates of the weights. epochs: passes over the training data, in place of steps. bench_steps: updates of
    `ampkit bench` in each precision; unset, as many as of a training. seed: of the random numbers: first weights, the
    order of the data, dropout. device: where to train: cpu, cuda or cuda:<index>. grad_clip: the largest norm of the
    gradients. accumulate: batches whose gradients are averaged for an update. ema: the decay of an exponential moving
    average of the weights, which evaluations then use. log_every: steps between rows of metrics. eval_every: steps
    between evaluations; unset, one at the end, and of a stream, whose length is not known, one after each pass over it.
    monitor: the score of evaluations that says which is best. patience: evaluations in a row without a better one,
    after which training ends; unset, it goes on. eval_batches: held-out batches of an evaluation; unset, all.
    checkpoint_every: steps between checkpoints; unset, one after each evaluation; the end, Ctrl-C and the best
    evaluation so far always leave one. keep: how many of the newest checkpoints are kept. keep_best: how many
    checkpoints of the best evaluations are kept beside them. threads: threads of matrix products; unset, one per core,
    or OMP_NUM_THREADS; config.toml records it. compile: record a step once and replay it. compile_mode: with
    max-autotune a compiled step on a CPU chooses kernels of products by time; the choice is kept beside the
    checkpoints, in kernels.json, and a run that resumes goes on with it. loggers: where rows of metrics go beside
    metrics.jsonl: csv, tensorboard, wandb, mlflow, trackio.
    """

    steps: Count | None = None
    epochs: Count | None = None
    bench_steps: Count | None = None
    seed: Seed = 0
    device: Device = "cpu"
    grad_clip: Positive | None = None
    accumulate: Count = 1
    ema: Fraction | None = None
    log_every: Count = 10
    eval_every: Count | None = None
    monitor: Literal["val_loss", "accuracy", "mean_iou", "char_error_rate", "rmse", "r2"] = "val_loss"
    patience: Count | None = None
    eval_batches: Count | None = None
    checkpoint_every: Count | None = None
    keep: Count = 2
    keep_best: Count = 1
    threads: Threads | None = None
    compile: bool = False
    compile_mode: Literal["default", "max-autotune"] = "default"
    loggers: list[Literal["csv", "tensorboard", "wandb", "mlflow", "trackio"]] = Field(default=[])


def _one_of(sections: Mapping[str, type[Section]]) -> Any:
    return Annotated[reduce(or_, dict.fromkeys(sections.values())), Field(discriminator="name")]


if TYPE_CHECKING:
    Model = Any
    Data = Any
    Optimizer = Any
    Schedule = Any
else:
    Model, Data, Optimizer, Schedule = map(_one_of, (MODELS, DATASETS, OPTIMIZERS, SCHEDULES))

# The kinds of each section by name; of a section of a single kind, by "".
SECTIONS: dict[str, dict[str, type[Section]]] = {
    "model": MODELS,
    "data": DATASETS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "finetune": {"": Finetune},
    "lora": {"": Lora},
    "amp": {"": Amp},
    "debug": {"": Debug},
    "parallel": {"": Parallel},
    "train": {"": Train},
}
