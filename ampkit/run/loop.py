"""A run of a recipe: the training loop, built from it, as an iterator over its rows. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import nn
from ..backends.cpu.malloc import keep_freed
from ..backends.cpu.threads import can_set_num_threads, get_num_threads, set_num_threads
from ..base.errors import ArgumentError, ConfigError
from ..config import Recipe, continued
from ..core import random
from ..core.autograd.grad_mode import is_grad_enabled
from ..core.saved_state import need_count
from ..core.tensor import Tensor
from ..debug.repeat.learning_rate import Training
from ..distributed.environment import launched
from ..distributed.pipelining.model_stage import ModelStage
from ..models import LoadedWeights
from . import build
from .checkpoint import Checkpoints
from .input_pipeline import input_pipeline
from .ranks import Ranks, code_checksum
from .retraining import training_of
from .step import Batch, evaluate, objective_of
from .trainer.loop import Settings, TrainingLoop
from .trainer.rows import EvalRow as EvalRow
from .trainer.rows import Row as Row
from .trainer.rows import StepRow as StepRow


class Run(TrainingLoop):
    """A training run of a recipe, built and checked. Iterating trains and yields the rows; a new iteration continues.

    Beside the attributes of TrainingLoop it has
    recipe: the recipe, with the number of threads, on which the last bits of sums depend. steps: the updates in total.
    per_step: samples or tokens (`unit`) in an update. notes: what the user should know of the data. ranges: with
    debug.ranges_every. pretrained: the LoadedWeights of model.weights, or None; a run from_checkpoint, whose weights
    the caller loads, does without their file.
    """

    steps: int
    lower_scale = "amp.init_scale=1024"

    def __init__(
        self,
        recipe: Recipe,
        checkpoints: Checkpoints | None = None,
        ranks: Ranks | None = None,
        from_checkpoint: bool = False,
    ):
        keep_freed()
        ranks = ranks or Ranks.present()
        recipe = _on_this_rank(recipe, ranks)
        ranks.group_by_layers(recipe.parallel.tensor, recipe.train.device)
        ranks.group_by_stages(recipe.parallel.pipeline, recipe.train.device)
        ranks.need_data_size(recipe.parallel.data)
        random.manual_seed(recipe.train.seed)
        self.recipe, self._pipeline = recipe, input_pipeline(recipe, ranks)
        self._objective, steps = objective_of(recipe, self._pipeline.about), build.steps(recipe, self._pipeline)
        self.per_step, self.unit = self._pipeline.samples_per_batch * recipe.train.accumulate, self._pipeline.unit
        model = build.model(recipe, self._pipeline.about, starts=not from_checkpoint)
        self.pretrained: LoadedWeights | None = getattr(model, "pretrained", None)
        region, self.wire_dtype = build.region(recipe, model), recipe.parallel.wire_dtype
        ranks.divide_layers(model, recipe.parallel.tensor_shards)
        tree_of = recipe.parallel.microbatches if recipe.parallel.deterministic else None
        stage = ranks.stage_of(model, recipe.parallel.bucket_mb, tree_of)
        build.shard(recipe, model, ranks)
        self.ranges = build.ranges(recipe, model)
        optimizer = build.optimizer(recipe, model, ranks)
        average = build.average(recipe, model)
        parts = model, optimizer, build.schedule(recipe, optimizer, steps), build.scaler(recipe), average
        settings = Settings(**recipe.train.model_dump(include={each.name for each in fields(Settings)}))
        super().__init__(*parts, region, settings, steps, ranks, build.callbacks(recipe), checkpoints)
        self._stage = stage
        self._draw_apart()
        self.notes = self._pipeline.notes
        self._batches = self._pipeline.train(0)

    def __repr__(self) -> str:
        recipe = self.recipe
        what = f"{recipe.model.name} on {recipe.data.name}, {recipe.amp.precision}"
        return f"Run({what}, {self.done} of {self.steps} steps)"

    def first_batch(self) -> Batch:
        """The first batch of the training data: inputs and targets. The run and its random numbers do not advance."""
        state = random.get_rng_state()
        try:
            return next(self._pipeline.train(0))
        finally:
            random.set_rng_state(state)

    def next_batches(self) -> list[Batch]:
        """The batches of the next step; with parallel.deterministic this rank's microbatches."""
        return [next(self._batches) for _ in range(self.batches_per_step)]

    @property
    def batches_per_step(self) -> int:
        """How many `next_batches` gives."""
        parallel = self.recipe.parallel
        return parallel.microbatches // self.ranks.data_size if parallel.deterministic else self.settings.accumulate

    def go_back(self, place: Any = None) -> None:
        """Draw the next batch from behind the last whole step."""
        done = self.done * self.settings.accumulate
        place = self._pipeline.places.get(done)
        self._batches = self._pipeline.train(done, *([] if place is None else [place]))

    def ended_a_pass(self) -> bool:
        """Whether a pass over a stream, whose length is not known, ended with the newest step or within it."""
        count = self.settings.accumulate
        place = self._pipeline.places.get(self.done * count)
        return place is not None and place["epoch"] > 0 and place["position"] < count

    def _draw_apart(self) -> None:
        if not self.recipe.parallel.deterministic:
            self.ranks.draw_apart()

    def held_out(self) -> Iterator[Batch]:
        """The batches of an evaluation."""
        return self._pipeline.held_out()

    def scores(self, model: nn.Module, batches: Iterator[Batch]) -> EvalRow:
        """The row of an evaluation of `model`, in the recipe's precision."""
        return EvalRow(self.done, *evaluate(model, batches, self.region, self._objective, self.ranks))

    def loss_of(self, model: nn.Module, inputs: Tensor, *targets: Tensor) -> Tensor:
        """The loss of a batch by `model`: the run's, or the average of its weights.

        On several ranks the last target of a training batch is the weight of this rank's part, unless all are equal.
        """
        if self.ranks.data_size == 1 or not is_grad_enabled() or self.recipe.parallel.deterministic:
            return self._objective.loss(model(inputs), *targets)
        return self._objective.loss(model(inputs), *targets[:-1]) * targets[-1]

    def stage_gradients(self, stage: ModelStage, batches: Sequence[Batch]) -> Tensor:
        """Write the gradients of this rank's stage of the model. -> the mean loss [] of the batches."""
        weights = None
        if self.ranks.data_size > 1 and stage.tree_of is None:  # see `loss_of`
            weights, batches = [batch[-1] for batch in batches], [batch[:-1] for batch in batches]
        how = self.recipe.parallel.microbatches, self.scaler, weights
        with self.region:
            return stage.forward_backward(self._objective.loss, batches, *how)

    def join(self) -> None:
        """Begin to train with the other ranks, which must have the same recipe, code, data and number of steps done."""
        if self.ranks.size > 1:
            data = str(self._pipeline.about.get("identity", ""))
            same = {"steps done": str(self.done), "code": code_checksum(), "data": data, **_values(self.recipe)}
            self.ranks.need_same(same)
        parallel = self.recipe.parallel
        if parallel.deterministic and self._stage is None:
            options = {"microbatches": parallel.microbatches, "bucket_cap_mb": parallel.bucket_mb}
            self._deterministic = self.ranks.deterministic(self.model, threads=self.recipe.train.threads, **options)
        elif self._stage is None:
            self._replica = self.ranks.replicate(self.model, **build.parallel(self.recipe))

    # what checkpoints hold of it

    @property
    def recipe_values(self) -> dict[str, Any]:
        """The recipe as a dict."""
        return self.recipe.model_dump(mode="json")

    def data_state(self) -> dict[str, Any]:
        """What later uses of the model need of the data."""
        place = self._pipeline.places.get(self.done * self.settings.accumulate)
        return self._pipeline.about if place is None else {**self._pipeline.about, "loader": place}

    def check_state(self, where: str, state: Mapping[str, Any], done: int) -> None:
        """Raise ArgumentError for a state of another number of batches in a step, ConfigError for one of other data."""
        need_count(where, "steps", state["steps"], 1)
        if state["batches"] != (batches := done * self.settings.accumulate):
            raise ArgumentError(where, f"{batches} batches after {done} steps", repr(state["batches"]))
        self._pipeline.need_same_data("resume", state.get("data", {}))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a run of the same recipe; another number of steps brings its own schedule.

        Raises ArgumentError, StateError or DTypeError, with nothing changed, for a state of another run.
        """
        super().load_state_dict(state)
        self._draw_apart()  # a checkpoint has the random state of rank 0
        place = state.get("data", {}).get("loader")
        self._batches = self._pipeline.train(state["batches"], *([] if place is None else [place]))

    # what explains a failure

    @property
    def dtype(self) -> str:
        """amp.dtype, and below 16 bits the recipe."""
        return str(self.recipe.amp.precision)

    @property
    def training(self) -> Training:
        """Trains the recipe from the beginning, for a few steps more than were done, with a factor for optimizer.lr."""
        return training_of(self, fit)

    def cures(self, lr: float) -> str:
        """The keys that can be changed where values have grown too large."""
        other = ", or see whether amp.dtype=float32 is finite" if self.dtype != "float32" else ""
        return f"lower optimizer.lr (it was {lr:g}), clip the gradients with train.grad_clip=1.0{other}"


def _on_this_rank(recipe: Recipe, ranks: Ranks) -> Recipe:
    """The recipe with this rank's device and number of threads, which is set; ranks of a machine share its cores."""
    train = recipe.train
    update: dict[str, Any] = {}
    if ranks.size > 1 and train.device == "cuda":
        if train.compile and not ranks.on_devices:
            raise ConfigError("train.compile", "false on several ranks of GPUs without NCCL", "true")
        update["device"] = f"cuda:{launched().local_rank}"
    if can_set_num_threads():
        update["threads"] = ranks.threads(train.threads or 0, get_num_threads())
        # What is outside of microbatches, which are computed side by side, must not depend on the number either.
        set_num_threads(1 if recipe.parallel.deterministic else update["threads"])
    return recipe.model_copy(update={"train": train.model_copy(update=update)})


def _values(recipe: Recipe) -> dict[str, str]:
    """The values of a recipe by key, but those that a rank may have for itself."""
    sections = recipe.model_dump(mode="json")
    found = {f"{section}.{key}": repr(value) for section, keys in sections.items() for key, value in keys.items()}
    return {key: value for key, value in found.items() if key not in ("train.device", "train.threads")}


def fit(recipe: Recipe, checkpoints: str | Path | None = None, resume: bool = False, ranks: Ranks | None = None) -> Run:
    """A run of `recipe`, built and checked; iterate over it to train: `for row in ampkit.run.loop.fit(recipe)`.

    The same recipe gives the same numbers on the same computer. amp.dtype float32 runs without autocast, bfloat16 with
    autocast, float16 with autocast and loss scaling. Evaluations run in the recipe's precision.
    checkpoints: the directory to save them in, as train.checkpoint_every and train.keep say; none by default. resume:
    continue bit for bit from the newest intact one there, or start if there is none; its recipe may differ in length,
    intervals and device (`config.continued`). ranks: those that train it together, by default all of
    ampkit.distributed; rank 0 writes the checkpoints, and all of them read them.
    Raises ConfigError, ArgumentError or DeviceError at once for a recipe that cannot run here, and ConfigError or
    FileError for checkpoints that it cannot resume from; while it trains, NonFiniteError if an evaluation is not
    finite, or a training loss in float32 or bfloat16 (in float16 the step is skipped); ScaleCollapseError if float16
    finds no usable scale.
    """
    if checkpoints is None:
        return Run(recipe, ranks=ranks)
    saved = Checkpoints(checkpoints, recipe.train.keep)
    last = saved.last() if resume else None
    if last is None:
        return Run(recipe, saved, ranks)
    run = Run(continued(recipe, last.recipe), saved, ranks, from_checkpoint=True)
    run.load_state_dict(last.state)
    run.resumed = last._replace(state=None)
    return run
