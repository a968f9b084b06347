"""The file formats that ampkit reads: for each, a generator of valid files, ampkit's reader, an independent reader."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ampkit import Tensor, config, load, save, tensor
from ampkit.core.nested import tensors_in
from ampkit.data import cifar10, imagefolder, mnist, text
from ampkit.run import metrics_log
from ampkit.run.checkpoint import Checkpoints

from . import reports
from .mutations import mutate, mutate_packed, mutate_png

RECORDS = 2  # of a file of CIFAR-10


class Format(NamedTuple):
    """A file format.

    make(folder, draw): writes valid files and returns those to mutate. read: ampkit's reader. truth: an independent
    reader, which raises for what it cannot read; None if there is none. mutate: mutates the bytes of a file.
    """

    make: Callable[[Path, Random], list[Path]]
    read: Callable[[Path], Any]
    truth: Callable[[Path], Any] | None = None
    mutate: Callable[[bytes, Random], bytes] = mutate


def _written(path: Path, content: bytes) -> list[Path]:
    path.write_bytes(content)
    return [path]


def _bytes(draw: Random, *shape: int) -> np.ndarray:
    return np.frombuffer(draw.randbytes(prod(shape)), np.uint8).reshape(shape)


# images


def _make_npy(folder: Path, draw: Random) -> list[Path]:
    np.save(folder / "a.npy", _bytes(draw, *draw.choice(((5, 4), (5, 4, 3), (1, 1, 1)))))
    return [folder / "a.npy"]


def _make_netpbm(folder: Path, draw: Random) -> list[Path]:
    color = draw.random() < 0.5
    head = b"P%d\n# made\n4 %d\n255\n" % (6 if color else 5, 3)
    return _written(folder / ("a.ppm" if color else "a.pgm"), head + draw.randbytes(36 if color else 12))


def _make_png(folder: Path, draw: Random) -> list[Path]:
    from PIL import Image

    made = Image.fromarray(_bytes(draw, 6, 5, 3)).convert(draw.choice(("RGB", "L", "P", "1", "RGBA")))
    made.save(folder / "a.png")
    return [folder / "a.png"]


def _read_image(path: Path) -> Any:
    return imagefolder.read(path)


def _true_npy(path: Path) -> Any:
    found = np.load(path, allow_pickle=False)
    return found[None] if found.ndim == 2 else np.moveaxis(found, 2, 0)


def _true_netpbm(path: Path) -> Any:
    from PIL import Image

    found = np.asarray(Image.open(path))
    return found[None] if found.ndim == 2 else np.moveaxis(found, 2, 0)


# idx and tar


def _make_idx(folder: Path, draw: Random) -> list[Path]:
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (3, 4, 5))
    return _written(folder / "a", head + draw.randbytes(60))


def _make_idx_gz(folder: Path, draw: Random) -> list[Path]:
    (plain,) = _make_idx(folder, draw)
    return _written(folder / "a.gz", gzip.compress(plain.read_bytes()))


def _read_idx(path: Path) -> Any:
    return mnist.read_idx(path, 3)


def _true_idx(path: Path) -> Any:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    sizes = [int.from_bytes(data[i : i + 4], "big") for i in (4, 8, 12)]
    if data[:4] != bytes([0, 0, 8, 3]) or len(data) != 16 + prod(sizes):
        raise ValueError("another form")
    return np.frombuffer(data[16:], np.uint8).reshape(sizes)


def _make_cifar10(folder: Path, draw: Random) -> list[Path]:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=draw.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))) as tar:
        for i in range(1, 6):
            content = b"".join(bytes([draw.randrange(10)]) + draw.randbytes(3072) for _ in range(RECORDS))
            head = tarfile.TarInfo("x" * draw.choice((3, 120)) + f"/data_batch_{i}.bin")
            head.size = len(content)
            tar.addfile(head, io.BytesIO(content))
    return _written(folder / cifar10.SOURCE.name, gzip.compress(file.getvalue(), 1))


def _read_cifar10(path: Path) -> Any:
    return list(cifar10.load("train", path.parent, records=RECORDS))


def _true_cifar10(path: Path) -> Any:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(path.read_bytes()))) as tar:
        for member in tar:
            if member.isfile():
                found[Path(member.name).name] = tar.extractfile(member).read()
    table = np.concatenate(
        [np.frombuffer(found[f"data_batch_{i}.bin"], np.uint8).reshape(RECORDS, 3073) for i in range(1, 6)]
    )
    return [table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].astype(np.int64)]


# text, tables


def _make_text(folder: Path, draw: Random) -> list[Path]:
    return _written(folder / "a.txt", b"a line of text\n" * draw.randrange(1, 40))


def _make_table(folder: Path, draw: Random, suffix: str) -> list[Path]:
    import pyarrow as arrow
    from pyarrow import parquet

    rows, numbers = draw.randrange(1, 40), np.random.default_rng(draw.randrange(2**32))
    lists = arrow.array(numbers.standard_normal((rows, 3)).tolist())
    table = arrow.table({"x": numbers.standard_normal(rows), "y": numbers.integers(0, 9, rows), "z": lists})
    path = folder / f"a{suffix}"
    if suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=16, compression=draw.choice(("none", "snappy", "gzip", "zstd")))
    else:
        with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=16)
    return [path]


def _read_table(path: Path) -> Any:
    from ampkit.data.parquet import Columns

    rows = Columns(path, ["x", "y", "z"])
    return rows.arrays(range(len(rows)))


def _true_table(path: Path) -> Any:
    import pyarrow as arrow
    from pyarrow import parquet

    if path.suffix == ".parquet":
        table = parquet.read_table(path)
    else:
        table = arrow.ipc.open_file(arrow.OSFile(str(path))).read_all()
    table.validate(full=True)
    return [np.array(table.column(name).to_pylist()) for name in "xyz"]


# what ampkit writes itself


def _make_safetensors(folder: Path, draw: Random) -> list[Path]:
    one = tensor(np.frombuffer(draw.randbytes(24), np.int16))
    nested = {"a": one, "b": [one, (Tensor(np.ones((2, 3), np.float32)), 3, "word", None)]}
    save(
        nested if draw.random() < 0.7 else {"w": Tensor(np.arange(6.0, dtype=ml_dtypes.bfloat16))},
        folder / "a.safetensors",
    )
    return [folder / "a.safetensors"]


def _make_pt(folder: Path, draw: Random) -> list[Path]:
    one = tensor(np.frombuffer(draw.randbytes(24), np.int16))
    save({"a": one, "b": [one, (Tensor(np.ones((2, 3), np.float32)), 3, "word", None)], "c": {1, 2}}, folder / "a")
    return [folder / "a"]


def _mutate_pt(data: bytes, draw: Random) -> bytes:
    """Mutate a zip file, or one of its records with a valid checksum."""
    if draw.random() < 0.3:
        return mutate(data, draw)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        changed = draw.choice(["archive/data.pkl", *old.namelist()])
        for name in old.namelist():
            new.writestr(name, mutate(old.read(name), draw) if name == changed else old.read(name))
    return out.getvalue()


def _read_safetensors(path: Path) -> Any:
    return [np.asarray(t.array) for t in tensors_in(load(path))]


def _true_safetensors(path: Path) -> Any:
    data = path.read_bytes()
    head = json.loads(data[8 : (start := 8 + int.from_bytes(data[:8], "little"))])
    kinds = {"I16": np.int16, "F32": np.float32, "BF16": ml_dtypes.bfloat16}
    said = head.pop("__metadata__", {}).get("ampkit")
    found = {}
    for name, entry in head.items():
        first, last = entry["data_offsets"]
        values = data[start + first : start + last]
        found[name] = np.frombuffer(values, kinds[entry["dtype"]]).reshape(entry["shape"])
    if said is None:
        raise ValueError("a plain dict, in an order of its own")
    return list(_tensors_of(json.loads(said), found))


def _tensors_of(described: Any, found: dict[str, Any]) -> Iterator[Any]:
    if isinstance(described, dict):
        ((kind, content),) = described.items()
        if kind == "tensor":
            yield found[content]
        else:
            for value in content:
                yield from _tensors_of(value[1] if kind == "dict" else value, found)


def _make_recipe(folder: Path, draw: Random) -> list[Path]:
    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    return _written(folder / "a.toml", config.dump(config.load(draw.choice(recipes))).encode())


def _true_recipe(path: Path) -> Any:
    return config.Recipe.model_validate(tomllib.loads(path.read_text("utf-8")))


_RECIPE = {"model": {"name": "mlp"}, "train": {"steps": 30}}


_OVERRIDES = (
    *("model.hidden=[16, 32]", "train.steps=10", "optimizer.betas=[0.9, 0.99]", "amp.dtype=float16", "train.epochs="),
    *(
        'schedule={name="cosine", warmup=3}',
        'data={name="images", folder="a", held_out="b", shape=[1, 8, 8], classes=2}',
    ),
)


def _make_override(folder: Path, draw: Random) -> list[Path]:
    return _written(folder / "a", draw.choice(_OVERRIDES).encode())


def _read_override(path: Path) -> Any:
    recipe = Path(__file__).parents[2] / "recipes" / "digits_mlp.toml"
    return config.load(recipe, [path.read_bytes().decode(errors="surrogateescape")])


def _state(step: int) -> dict[str, Any]:
    return {"w": Tensor(np.full((2, 3), step, np.float32)), "n": [step, {"lr": 0.5}]}


def _make_checkpoint(folder: Path, draw: Random) -> list[Path]:
    for step in (10, 20):
        Checkpoints(folder).save(step, _state(step), _RECIPE)
    return sorted(folder.glob("step-00000020*"))


def _read_checkpoint(path: Path) -> Any:
    found = Checkpoints(path.parent).last()
    return [found.step, found.recipe, found.state["w"].numpy(), found.state["n"]]


def _true_checkpoint(path: Path) -> Any:
    # The newest one or the one before, as they were written: one that was changed is never used.
    found = Checkpoints(path.parent).last()
    step = found.step if found.step in (10, 20) else 20
    return [
        step,
        {"model": {"name": "mlp"}, "train": {"steps": 30}},
        np.full((2, 3), step, np.float32),
        [step, {"lr": 0.5}],
    ]


_PLACE = metrics_log.ResumePoint(30, 20)


def _make_metrics(folder: Path, draw: Random) -> list[Path]:
    rows = [{"step": step, "loss": draw.random()} for step in range(1, 40)]
    return _written(folder / "metrics.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def _read_metrics(path: Path) -> Any:
    return metrics_log.examine(path.read_bytes(), _PLACE, None)[0].splitlines()  # type: ignore[attr-defined]  # bytes


def _true_metrics(path: Path) -> Any:
    *lines, _cut_off = path.read_bytes().split(b"\n")
    return [line for line in lines if _step(line) <= _PLACE.done]


def _step(line: bytes) -> float:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return float("inf")
    return step if type(step) is int else float("inf")


FORMATS: dict[str, Format] = {
    "npy": Format(_make_npy, _read_image, _true_npy),
    "netpbm": Format(_make_netpbm, _read_image, _true_netpbm),
    "idx": Format(_make_idx, _read_idx, _true_idx),
    "idx.gz": Format(_make_idx_gz, _read_idx, _true_idx, mutate_packed),
    "cifar10": Format(_make_cifar10, _read_cifar10, _true_cifar10, mutate_packed),
    "text": Format(_make_text, lambda path: bytes(text.corpus(path, 100)), lambda path: path.read_bytes()[:100]),
    "safetensors": Format(_make_safetensors, _read_safetensors, _true_safetensors),
    "pt": Format(_make_pt, load, None, _mutate_pt),
    "recipe": Format(_make_recipe, config.load, _true_recipe),
    "override": Format(_make_override, _read_override),
    "checkpoint": Format(_make_checkpoint, _read_checkpoint, _true_checkpoint),
    "metrics": Format(_make_metrics, _read_metrics, _true_metrics),
    "report": Format(reports.make, reports.read),
    "png": Format(_make_png, _read_image, None, mutate_png),
    "parquet": Format(lambda folder, draw: _make_table(folder, draw, ".parquet"), _read_table, _true_table),
    "arrow": Format(lambda folder, draw: _make_table(folder, draw, ".arrow"), _read_table, _true_table),
}
NEEDS = {"png": "PIL", "parquet": "pyarrow", "arrow": "pyarrow"}
if not hasattr(metrics_log, "examine"):
    del FORMATS["metrics"]
