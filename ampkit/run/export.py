"""A trained model as files for others: safetensors, the recipe, and a model card in Hugging Face's form; or ONNX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..base.atomic_file import write
from ..base.dtypes import int8
from ..base.errors import FileError
from ..base.registry import DATASETS
from ..config import dump
from ..core.policy.delayed import without_states
from ..core.tensor import Tensor
from ..nn.quantization import Layout
from ..serialization import onnx, save
from .report import read_run
from .run_dir import version
from .trained import EXPORTED, TOKENIZER, Trained, generates_text

CARD = "README.md"
_TASKS = {"images": "image-classification", "pixel labels": "image-segmentation", "tokens": "text-generation"}
_TASKS |= {"masked tokens": "fill-mask", "speech": "automatic-speech-recognition", "rows": "tabular-classification"}


def export(found: Trained, folder: str | Path, run: str | Path | None = None) -> list[Path]:
    """Write a model into `folder`, which must be new or empty; returns the files.

    `model.safetensors`: the state_dict, by PyTorch's names. `config.toml`: the recipe. `model.json`: what else
    `load_run(folder)` reads: step, classes, mean, std, and of a table how its rows become numbers. `tokenizer.json`: of
    a language model that has one. `README.md`: a model card. run: the directory whose metrics the card quotes. Raises
    FileError for a folder that holds files, or that cannot be written.
    """
    folder = _empty(Path(folder))
    state = {name: value.detach() for name, value in without_states(found.model.state_dict()).items()}
    about: dict[str, Any] = {"step": found.step, "averaged": found.averaged}
    about |= {"classes": found.classes, "mean": found.mean, "std": found.std}
    about |= {name: found.about[name] for name in ("sizes", "table") if name in found.about}
    if (layout := _layout(found)) is not None:
        about["quantization"] = asdict(layout)
    texts = {
        "config.toml": dump(found.recipe),
        "model.json": json.dumps(about, indent=1) + "\n",
        CARD: card(found, _scores(found, run)),
    }
    if found.tokenizer is not None:
        texts[TOKENIZER] = found.tokenizer.state
    save(state, folder / EXPORTED)
    for name, text in texts.items():
        write("export", folder / name, text.encode())
    return [folder / name for name in (EXPORTED, *texts)]


def export_onnx(found: Trained, file: str | Path) -> bool:
    """Write a model as the ONNX file `file`, in float32; returns whether ONNX Runtime, where it is installed, ran it.

    The input is a batch as the model was trained on (images normalized), of any number of samples, and of tokens of any
    length. Beside the graph the file holds text: the recipe, the step, and as JSON the classes, mean and std, and of a
    table how its rows become numbers. Raises what `onnx.export` raises.
    """
    about: dict[str, Any] = {"classes": found.classes, "mean": found.mean, "std": found.std, "step": found.step}
    about |= {"table": found.about["table"]} if "table" in found.about else {}
    metadata = {"recipe": dump(found.recipe)} | {name: json.dumps(value) for name, value in about.items()}
    batch, verify = _batch(found), find_spec("onnxruntime") is not None
    dynamic = {0: "batch", 1: "length"} if batch.ndim == 2 and not batch.is_floating_point() else {0: "batch"}
    names: dict[str, Any] = {"input_names": ["input"], "dynamic_shapes": {"input": dynamic}}
    onnx.export(found.model, (batch,), file, **names, verify=verify, metadata=metadata)
    return verify


def _batch(found: Trained) -> Tensor:
    """Two samples as the model takes them, with values drawn at random."""
    recipe, draw = found.recipe, np.random.default_rng(0)
    samples, sizes = DATASETS[recipe.data.name].samples, found.about.get("sizes", {})
    if samples in ("tokens", "masked tokens"):
        length = recipe.model.block_size if samples == "tokens" else recipe.data.length
        values: Any = draw.integers(0, recipe.model.vocab_size, (2, length))
    elif samples == "speech":
        values = draw.normal(size=(2, found.model.num_features, recipe.data.length)).astype(np.float32)
    else:
        values = draw.random((2, *(sizes.get("shape") or recipe.data.shape)), np.float32)
    return Tensor(values).to(recipe.train.device)


def _layout(found: Trained) -> Layout | None:
    return vars(found.model).get("quantization")


def need_empty(where: str, folder: Path) -> None:
    """Raise FileError for a folder that holds files."""
    if folder.is_dir() and any(folder.iterdir()):
        raise FileError(where, "a new or empty directory", f"{str(folder)!r}, which holds files", "--to another")


def _empty(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        need_empty("export", folder)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError("export", "a directory that can be written", f"{str(folder)!r}: {error.strerror}") from None
    return folder


def _scores(found: Trained, run: str | Path | None) -> dict[str, float]:
    """The scores of the evaluation after the step of the weights, as the run logged them; {} if there was none."""
    rows: Mapping[str, list[Any]] = {} if run is None else read_run(Path(run)).evaluations
    at = [i for i, step in enumerate(rows.get("step", ())) if step == found.step]
    return {name: row[at[-1]] for name, row in rows.items() if name != "step" and row[at[-1]] is not None} if at else {}


def card(found: Trained, scores: Mapping[str, float]) -> str:
    """The model card, Markdown with Hugging Face's metadata: what was trained, on what, its scores, how to load it."""
    recipe = found.recipe
    parts = [
        _metadata(found),
        f"# {recipe.model.name} on {recipe.data.name}",
        _training(found),
        "## Scores\n\n" + _score_table(found, scores),
        "## Use it\n\n" + _usage(found),
        f"## The model\n\n```\n{found.model!r}\n```",
        f"## The recipe\n\n```toml\n{dump(recipe)}```",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(found: Trained) -> str:
    task = "tabular-regression" if _regresses(found) else _TASKS[DATASETS[found.recipe.data.name].samples]
    return f"---\nlibrary_name: ampkit\npipeline_tag: {task}\ntags:\n- ampkit\n- mixed-precision\n---"


def _regresses(found: Trained) -> bool:
    return "table" in found.about and not found.classes


def _weights(model: Any) -> list[Any]:
    # Parameters, and the codes that some became.
    return [*model.parameters(), *(tensor for tensor in model.buffers() if tensor.array.dtype == int8)]


def _training(found: Trained) -> str:
    recipe, count = found.recipe, sum(tensor.numel() for tensor in _weights(found.model))
    dtype = recipe.amp.precision
    data = (DATASETS[recipe.data.name].load.__doc__ or "").strip().partition("\n")[0]
    precision = "in float32" if dtype == "float32" else f"with products in {dtype} (autocast) and float32 weights"
    if recipe.amp.parameters == "low":
        precision = f"with weights and products in {dtype}"
    if (layout := _layout(found)) is not None:
        low = f", {len(layout.bfloat16)} in bfloat16" if layout.bfloat16 else ""
        precision += f"; {len(layout.int8)} layers were converted to int8 after training{low}"
    average = ", and are the moving average of the weights" if found.averaged else ""
    return (
        f"{count:,} parameters, trained by ampkit {version()} {precision}. Data: {data} The weights have had "
        f"{found.step} updates{average}."
    )


def _score_table(found: Trained, scores: Mapping[str, float]) -> str:
    if not scores:
        return f"The run was not evaluated after step {found.step}; `ampkit evaluate` does."
    rows = [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    unit = "rmse has the unit of the target" if _regresses(found) else "The loss is in nats; the others are fractions"
    note = f"On the held-out data of the recipe. {unit}."
    return "\n".join(["| score | value |", "|---|---|", *rows, "", note])


def _usage(found: Trained) -> str:
    images = DATASETS[found.recipe.data.name].samples == "images"
    use = "found.predict(found.images(['one.png']))  # probabilities" if images else "found(inputs)"
    if "table" in found.about:
        what = f"values of {found.table.target.name!r}" if _regresses(found) else "probabilities"
        use = f"found.predict(found.rows('rows.csv'))  # {what}"
    if generates_text(found.recipe):
        use = '"".join(found.text("def ", 100))'
    return f"""In ampkit:

```python
found = ampkit.load_run("FOLDER")  # this folder: the model in eval mode, with its classes and normalization
{use}
```
{"" if _layout(found) else _IN_PYTORCH}
{_normalization(found)}"""


_IN_PYTORCH = """
In PyTorch, by a module of the same structure, whose names the weights have:

```python
from safetensors.torch import load_file

model.load_state_dict(load_file("model.safetensors"))
```
"""


def _normalization(found: Trained) -> str:
    if "table" in found.about:
        columns = ", ".join(f"`{column.name}` ({column.kind})" for column in found.table.inputs)
        return f"The columns of a row: {columns}."
    if DATASETS[found.recipe.data.name].samples != "images":
        return "The inputs are as the recipe's data give them."
    classes = f" Classes, by number: {', '.join(found.classes)}." if found.classes else ""
    shape = " x ".join(map(str, found.recipe.data.shape))
    spread = f"mean {_numbers(found.mean)} and divided by std {_numbers(found.std)}"
    return f"Images of {shape}, values in [0, 1], less {spread}, by channel.{classes}"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
