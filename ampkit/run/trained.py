"""A model that a run has trained, ready to use: `load_run`."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import nn, ops
from ..base import html
from ..base.errors import ArgumentError, ConfigError, DTypeError, FileError, check_choice, one_of
from ..base.registry import DATASETS
from ..config import Recipe, saved_recipe
from ..config.read import parse_toml
from ..core import random
from ..core.autograd.grad_mode import no_grad
from ..core.tensor import Tensor
from ..data import imagefolder, text
from ..data.augment import AugmentedImages, normalize
from ..data.collate import prefetch
from ..data.images.folders import images_of
from ..data.loader import DataLoader, TensorDataset
from ..data.tables.features import TableFeatures
from ..data.tables.read import Format, read
from ..data.text import Tokenizer
from ..nn import quantization
from ..serialization import load
from . import build
from .checkpoint import Checkpoint, Checkpoints
from .input_pipeline import input_pipeline
from .metrics import Scores
from .step import Batch, evaluate, objective_of

EXPORTED = "model.safetensors"  # by which a folder of `ampkit export` is known
TOKENIZER = "tokenizer.json"  # in it

_CLASSIFIED = ("images", "rows", "pixel labels")


def generates_text(recipe: Recipe) -> bool:
    """Whether the model of a recipe learns the next byte or token of text."""
    entry = DATASETS[recipe.data.name]
    return entry.samples == "tokens" and entry.loading == "text"


@dataclass(repr=False)
class Trained:
    """A trained model with what it takes to use it; see `load_run`.

    model: in eval mode, on its device. recipe: of the run. step: the updates that its weights have had. averaged:
    whether they are the moving average of train.ema, which the run evaluates. classes: names by number, of image
    folders and data sets that have names, else (). mean, std: by channel, what images in [0, 1] were normalized with.
    path: of the checkpoint. about: all that the checkpoint says of the data.
    """

    model: nn.Module
    recipe: Recipe
    step: int
    averaged: bool
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    path: Path
    about: Mapping[str, Any]

    @property
    def precision(self) -> str:
        """The dtype of the run's products, and int8 where layers were converted to it (see `ampkit quantize`)."""
        return self.recipe.amp.precision + (" and int8" if "quantization" in vars(self.model) else "")

    def __repr__(self) -> str:
        recipe, average = self.recipe, ", moving average" if self.averaged else ""
        what = f"{recipe.model.name} on {recipe.data.name}, {self.precision}, step {self.step}{average}"
        return f"Trained({what}, {str(self.path)!r})"

    def _repr_html_(self) -> str:
        recipe, count = self.recipe, sum(parameter.numel() for parameter in self.model.parameters())
        facts = {"model": f"{recipe.model.name}, {count:,} parameters", "data": recipe.data.name}
        facts |= {"precision": self.precision, "updates": self.step, "from": self.path}
        if self.averaged:
            facts["weights"] = "their moving average"
        if self.classes:
            facts["classes"] = ", ".join(self.classes[:20]) + (", ..." if len(self.classes) > 20 else "")
        return html.facts("Trained", facts)

    def __call__(self, inputs: Any) -> Any:
        """The model's output for a batch as it was trained on (images normalized), in the precision of the run.

        inputs: a tensor or an array. No tape is recorded. The result is in float32 where it is one tensor.
        """
        device = self.recipe.train.device
        if isinstance(_first(inputs), str | Path):
            raise DTypeError("predict", "a tensor or an array", f"the path {_first(inputs)!r}", self._what_it_takes())
        batch = inputs if isinstance(inputs, Tensor) else ops.from_numpy(np.ascontiguousarray(inputs))
        with no_grad(), build.region(self.recipe, self.model):
            found = self.model(batch.to(device))
        found = found["out"] if isinstance(found, dict) else found
        return found.float() if isinstance(found, Tensor) and found.is_floating_point() else found

    def images(self, paths: str | Path | Sequence[str | Path]) -> Tensor:
        """Image files of any size as a batch for the model, as evaluations see them. -> [n, c, h, w] float32.

        paths: of files, or of folders, each of which stands for the images under it, by path. They are resized, by the
        recipe's data.resize or to the smallest size that covers the shape it trained on, cropped in the middle and
        normalized. Raises ConfigError if the model was not trained on images, FileError for a file that cannot be read.
        """
        self._need("images", "a model of images", self._samples in ("images", "pixel labels"))
        shape = tuple(self.recipe.data.shape)
        transform = imagefolder.for_evaluation(shape, getattr(self.recipe.data, "resize", None))
        draw = np.random.default_rng(0)  # nothing is drawn
        files = images_of([paths] if isinstance(paths, str | Path) else paths)
        read = [imagefolder.transformed(path, shape[0], transform, draw) for path in files]
        return Tensor(normalize(np.stack(read), self.mean, self.std))

    def rows(self, files: str | Path | Sequence[str | Path]) -> Tensor:
        """The rows of tables as a batch for the model: as `data.files` of the recipe, but without the target's column.

        Means, standard deviations and categories are those of the training. -> [n, features] float32.
        Raises ConfigError if the model was not trained on a table, FileError for a table that does not fit.
        """
        data = self.recipe.data
        return Tensor(self.table.encode(read(files, Format(data.delimiter, data.encoding, data.null_values))))

    @property
    def table(self) -> TableFeatures:
        """How the rows of a table become inputs and the target. Raises ConfigError for a model of other data."""
        self._need("rows", "a model of a table", "table" in self.about)
        return TableFeatures.from_state(self.about["table"])

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a language model; None where a token is a byte."""
        state = self.about.get("tokenizer")
        return None if state is None else Tokenizer.from_state(state)

    @property
    def _samples(self) -> str:
        return DATASETS[self.recipe.data.name].samples

    def _need(self, where: str, needs: str, found: bool) -> None:
        if not found:
            raise ConfigError(where, needs, f"{self.recipe.model.name}, of {self._samples}", self._what_it_takes())

    def _what_it_takes(self) -> str | None:
        if generates_text(self.recipe):
            return "ampkit generate RUN --prompt TEXT continues a text; in Python, generate"
        if "table" in self.about:
            return "ampkit predict RUN ROWS.csv; in Python, predict(found.rows(FILES))"
        images = self._samples == "images"
        return "ampkit predict RUN IMAGE; in Python, predict(found.images(PATHS))" if images else None

    def predict(self, inputs: Any) -> Tensor:
        """The probabilities of the classes for a batch as `__call__` takes it. -> [n, classes] float32.

        Of pixel labels [n, classes, h, w]; of a regression its numbers, in the unit of the target [n]. Raises
        ConfigError for a model whose output is neither.
        """
        self._need("predict", "a model of classes or numbers", self._samples in _CLASSIFIED)
        if "table" in self.about and not self.classes:
            target = self.table.target
            return self(inputs).reshape(-1) * target.std + target.mean
        found: Tensor = ops.softmax(self(inputs), 1)
        return found

    def name_of(self, number: int) -> str:
        """The name of a class, or its number where classes have no names."""
        return self.classes[number] if number < len(self.classes) else str(number)

    def generate(
        self, prompt: bytes | str, count: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> Iterator[int]:
        """Yield `count` tokens that continue `prompt`, each drawn from the model's distribution of the next one.

        A token is a byte, or a number of the `tokenizer` that the model learned with; `text` gives characters.
        temperature: divides the logits; 0 takes the likeliest token. top_k: draw among the k likeliest. The model sees
        the last block_size tokens. The same seed gives the same tokens. An empty prompt begins with a line feed, or
        with a tokenizer's <|endoftext|>.
        Raises ConfigError for a model that is no language model of text, ArgumentError for numbers out of range.
        """
        self._need("generate", "a language model of text", generates_text(self.recipe))
        if not (count >= 0 and temperature >= 0 and (top_k is None or top_k >= 1)):
            got = f"{count}, {temperature} and {top_k}"
            raise ArgumentError("generate", "a count and a temperature from 0, top_k from 1", got)
        return self._drawn(self._encoded(prompt), count, temperature, top_k, random.Stream(seed))

    def text(
        self, prompt: str, count: int, temperature: float = 1.0, top_k: int | None = None, seed: int = 0
    ) -> Iterator[str]:
        """Yield what continues `prompt`, in pieces of whole characters; see `generate`."""
        drawn = self.generate(prompt, count, temperature, top_k, seed)
        if self.tokenizer is None:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            yield from (decoder.decode(bytes([byte])) for byte in drawn)
            yield decoder.decode(b"", True)
            return
        tokens, text, shown = list[int](), "", 0
        for token in drawn:
            tokens.append(token)
            text = self.tokenizer.decode(tokens)
            if not text.endswith("\ufffd"):  # the first bytes of a character
                yield text[shown:]
                shown = len(text)
        yield text[shown:]

    def _encoded(self, prompt: bytes | str) -> list[int]:
        if self.tokenizer is None:
            return list((prompt.encode() if isinstance(prompt, str) else prompt) or b"\n")
        text = prompt if isinstance(prompt, str) else prompt.decode(errors="replace")
        if not text and self.tokenizer.end is not None:
            return [self.tokenizer.end]
        found: list[int] = self.tokenizer.encode(text or "\n").tolist()
        return found

    def _drawn(
        self, prompt: list[int], count: int, temperature: float, top_k: int | None, stream: random.Stream
    ) -> Iterator[int]:
        tokens = list(prompt)
        for _ in range(count):
            window = np.array([tokens[-self.recipe.model.block_size :]], np.int64)
            logits = self(window)[0, -1].numpy(force=True).astype(np.float64)
            if temperature == 0:
                tokens.append(int(logits.argmax()))
            else:
                if top_k is not None and top_k < len(logits):
                    logits[logits < np.partition(logits, -top_k)[-top_k]] = -np.inf
                weights = np.exp((logits - logits.max()) / temperature)
                bounds = np.cumsum(weights / weights.sum())
                drawn = random.next_draw(stream).random()
                tokens.append(min(int(np.searchsorted(bounds, drawn, "right")), len(logits) - 1))
            yield tokens[-1]

    def evaluate(self, *inputs: str | Path) -> Scores:
        """The scores over the held-out data of the recipe, which must be where it was, or over all of other data.

        inputs: paths of data like that of the recipe: a folder of images with a folder per class, tables with the
        target's column, text. The classes, mean, std, categories and tokenizer are those of the training. Raises
        ConfigError for other inputs of a recipe whose data has no files, FileError for data that does not fit.
        """
        objective = objective_of(self.recipe, self.about)
        region = build.region(self.recipe, self.model)
        scores = evaluate(self.model, self._elsewhere(inputs) if inputs else self._held_out(), region, objective)
        self.model.eval()
        return scores

    def _held_out(self) -> Iterator[Batch]:
        pipeline = kept_random(lambda: input_pipeline(self.recipe))
        pipeline.need_same_data("evaluate", self.about)
        return pipeline.held_out()

    def _elsewhere(self, inputs: Sequence[str | Path]) -> Iterator[Batch]:
        return _batches_of(self.recipe, inputs, {**_WITHOUT, **self.about})


def load_run(
    run: str | Path, weights: Literal["last", "best"] = "last", *, average: bool = True, device: str | None = None
) -> Trained:
    """The model of a run directory, ready to use: see `ampkit.load_run`, which this is."""
    check_choice("load_run", "weights", weights, "last", "best")
    directory = Path(run)
    exported = (directory / EXPORTED).is_file()
    if exported and weights != "last":
        got = f"{str(directory)!r}, an export, which has one set of weights"
        raise ArgumentError("load_run", f"a run for its {weights} weights", got, "leave weights out")
    found = _export(directory) if exported else _checkpoint(directory, weights)
    _need_recipe(directory, found)
    recipe = saved_recipe("load_run", found.recipe)
    if device is not None:
        recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"device": device})})
    about: Mapping[str, Any] = found.state.get("data", {})
    model, averaged = kept_random(lambda: _model(recipe, found.state, average))
    classes, mean, std = (tuple(about.get(name, other)) for name, other in _WITHOUT.items())
    averaged = about.get("averaged", averaged)  # noted where the average is all there is
    return Trained(model.eval(), recipe, found.step, averaged, classes, mean, std, found.path, about)


def _first(inputs: Any) -> Any:
    return inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs


_WITHOUT: dict[str, tuple[Any, ...]] = {"classes": (), "mean": (0.0,), "std": (1.0,)}  # of older checkpoints


def _export(folder: Path) -> Checkpoint:
    """What `ampkit export` wrote, as the checkpoint of a run."""
    try:
        about = json.loads((folder / "model.json").read_text())
        if (folder / TOKENIZER).is_file():
            about["tokenizer"] = (folder / TOKENIZER).read_text()
        state = {"model": load(folder / EXPORTED), "data": about}
        recipe = parse_toml((folder / "config.toml").read_text())
        return Checkpoint(about["step"], recipe, state, folder / EXPORTED)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError("load_run", "the files of `ampkit export`", f"{str(folder)!r}: {error}") from None


def _checkpoint(directory: Path, weights: str) -> Checkpoint:
    if not directory.is_dir():
        cure = "`ampkit train` names it at its end"
        raise FileError("load_run", "the directory of a run", f"{str(directory)!r}, which is none", cure)
    folder = directory / "checkpoints" if (directory / "checkpoints").is_dir() else directory
    checkpoints = Checkpoints(folder)
    found = checkpoints.last()
    if found is None:
        cure = "`ampkit train` writes one after each evaluation"
        raise FileError("load_run", "a run with a checkpoint", f"{str(directory)!r}, which has none", cure)
    if weights == "last":
        return found
    best = found.state.get("best")
    if best is None:
        needs = "a run that was evaluated, and noted its best step"
        raise FileError("load_run", needs, f"{str(directory)!r}, which did not", 'take weights="last"')
    return found if best[0] == found.step else checkpoints.at(best[0])


def _need_recipe(directory: Path, found: Checkpoint) -> None:
    if found.recipe:
        return
    weights = next(found.path.parent.glob(f"{found.path.stem}-*.safetensors"))
    cure = f"build the model as its program does: model.load_state_dict(ampkit.load({str(weights)!r})['model']); "
    cure += f"Trainer.validate(data) evaluates it, and `ampkit report {directory}` shows its metrics"
    needs = "the run of a recipe, which says how to build the model and which data it had"
    raise ConfigError("load_run", needs, f"{str(directory)!r}, of a Trainer", cure)


def _model(recipe: Recipe, state: Mapping[str, Any], average: bool) -> tuple[nn.Module, bool]:
    """The model with the weights of a state, and whether they are the average."""
    about = state.get("data") or {}
    model = build.model(recipe, about)
    if "quantization" in about:
        model = quantization.restore(model, quantization.Layout(**about["quantization"]))
    averages = build.average(recipe, model) if average and "average" in state else None
    if averages is None:
        model.load_state_dict(state["model"])
        return model, False
    averages.load_state_dict(state["average"])
    return averages.module, True


def kept_random(make: Any) -> Any:
    """What `make` returns, without a change of the default random stream."""
    state = random.get_rng_state()
    try:
        return make()
    finally:
        random.set_rng_state(state)


def _batches_of(recipe: Recipe, inputs: Sequence[str | Path], about: Mapping[str, Any]) -> Iterator[Batch]:
    """All samples of `inputs`, files or folders like those of the recipe's data, in order and on the recipe's device.

    about: of the run's checkpoint: the classes, mean and std, categories and tokenizer that it was trained with. Raises
    ConfigError for a recipe whose data has no files of its own, FileError for files that do not fit.
    """
    entry = DATASETS[recipe.data.name]
    if entry.elsewhere is None:
        names = sorted(name for name, each in DATASETS.items() if each.elsewhere is not None)
        cure = "`ampkit evaluate RUN` takes the data of the run; in Python, found(batch) gives the model's output"
        raise ConfigError("evaluate", f"a run on {one_of(names)} to take other data", repr(recipe.data.name), cure)
    found = entry.elsewhere(recipe.data, list(inputs), about)
    size, workers = recipe.data.batch_size, getattr(recipe.data, "workers", 0)
    if entry.loading == "text":
        return prefetch(_windows(found, recipe.model.block_size, size), recipe.train.device)
    if entry.loading == "images":
        images, labels = found
        dataset: Any = AugmentedImages(images, labels, about["mean"], about["std"])
    else:
        dataset = TensorDataset(*map(Tensor, found)) if entry.loading == "arrays" else found
    return prefetch(map(tuple, DataLoader(dataset, size, num_workers=workers)), recipe.train.device)


def _windows(data: Any, context: int, size: int) -> Iterator[Batch]:
    starts = text.even_starts(data, context)
    for first in range(0, len(starts), size):
        inputs, targets = text.windows(data, starts[first : first + size], context)
        yield Tensor(inputs), Tensor(targets)
