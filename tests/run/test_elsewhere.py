"""A run evaluated on other data than its own: with the classes, statistics and categories of its training."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from ampkit import config
from ampkit.base.errors import ConfigError, DTypeError, FileError
from ampkit.cli import main
from ampkit.cli.use import hint
from ampkit.data import text
from ampkit.run.loop import fit
from ampkit.run.trained import load_run

pytestmark = pytest.mark.cpu
SHORT = ["train.epochs=", "train.steps=3", "train.eval_every=3", "train.checkpoint_every="]
draw = np.random.default_rng(0)


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")


def images(folder):
    pytest.importorskip("PIL.Image", reason="images of other sizes are resized by Pillow")
    for part in ("train", "other"):
        for number, name in enumerate(("circle", "square")):
            (folder / part / name).mkdir(parents=True)
            for each in range(9):
                values = draw.integers(100 * number, 100 * number + 150, (9, 12, 3), dtype=np.uint8)
                np.save(folder / part / name / f"{each}.npy", values)
    data = {"name": "images", "folder": folder / "train", "held_out": folder / "other", "shape": [3, 8, 8]}
    return {**data, "normalize": "measured"}, folder / "other"


def table(folder, target="kind", **more):
    for part in ("train", "other"):
        lines = [f"{draw.normal():.3f},{draw.choice(['a', 'b'])},{draw.choice(['x', 'y'])}" for _ in range(20)]
        (folder / f"{part}.csv").write_text("\n".join(["size,place,kind", "0.5,b,x", "1.5,a,y", *lines]))
    files = {"files": folder / "train.csv", "held_out": folder / "other.csv", "target": target}
    return {"name": "table", **files, **more}, folder / "other.csv"


def regression(folder):
    return table(folder, "size", task="regression")


def rows(folder):
    from datasets import Dataset, DatasetDict

    def part():
        return Dataset.from_dict({"x": draw.normal(size=(12, 4)).tolist(), "y": [0, 1] * 6})

    DatasetDict({"train": part(), "test": part()}).save_to_disk(str(folder / "saved"))
    keys = {"path": folder / "saved", "inputs": ["x"], "target": "y", "classes": 2, "held_out": "test"}
    return {"name": "huggingface", **keys}, folder / "saved"


def trained(folder, data, model="{name='mlp', hidden=[4]}"):
    written = ", ".join(
        f"{key}={value if isinstance(value, int | list) else repr(str(value))}" for key, value in data.items()
    )
    keys = [f"model={model}", f"data={{{written}, batch_size=4}}", "optimizer={name='adamw', lr=0.01}"]
    run = fit(config.load("digits_mlp", [*keys, "schedule={name='constant'}", *SHORT]), folder / "run" / "checkpoints")
    for _ in run:
        pass
    return load_run(folder / "run")


@pytest.mark.parametrize("make", [images, table, regression, pytest.param(rows, marks=needs("datasets"))])
def test_the_data_that_a_run_held_out_have_their_scores_by_their_path(make, tmp_path):
    data, other = make(tmp_path)
    found = trained(tmp_path, data)
    scores = found.evaluate(other)
    assert scores == found.evaluate()
    assert not found.model.training


def test_all_rows_of_other_columns_count(tmp_path):
    arrow, parquet = (pytest.importorskip(name, reason="needs pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    for name in ("train", "other"):
        made = arrow.table({"v": draw.normal(size=(30, 3)).tolist(), "y": draw.integers(0, 2, 30)})
        parquet.write_table(made, tmp_path / f"{name}.parquet")
    found = trained(
        tmp_path, {"name": "parquet", "files": tmp_path / "train.parquet", "inputs": ["v"], "target": "y", "classes": 2}
    )
    values, labels = np.array(made.column("v").to_pylist(), np.float32), made.column("y").to_numpy()
    right = found.predict(values.reshape(-1, 1, 1, 3)).argmax(1).numpy() == labels
    assert found.evaluate(tmp_path / "other.parquet").accuracy == right.mean()


def test_all_windows_of_another_text_count(tmp_path):
    for name, words in (("train", "abcabd" * 60), ("other", "dcba" * 30)):
        (tmp_path / f"{name}.txt").write_text(words)
    model = "{name='gpt', n_layer=1, n_head=1, n_embd=8, block_size=8}"
    found = trained(tmp_path, {"name": "text", "path": tmp_path / "train.txt"}, model)
    inputs, targets = text.windows(data := text.corpus(tmp_path / "other.txt"), text.even_starts(data, 8), 8)
    logits = found(inputs).double().numpy()
    logits -= logits.max(-1, keepdims=True)
    of_targets = np.take_along_axis(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), targets[..., None], -1)
    assert found.evaluate(tmp_path / "other.txt").val_loss == pytest.approx(-of_targets.mean(), rel=1e-5)


def test_the_command_takes_paths_and_refuses_what_does_not_fit_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data, other = table(tmp_path)
    trained(tmp_path, data)
    assert main(["evaluate", "run", "other.csv"]) == 0
    assert re.search(r"mlp on other.csv, float32(.|\n)*accuracy", capsys.readouterr().out)
    other.write_text("size,place,kind\n0.5,new,z")
    for words, said in (
        (["other.csv"], "other.csv, line 2: needs a class that the training has in 'kind', got 'z'"),
        (
            ["data.files=other.csv"],
            "needs a file or a folder like that of the run, got 'data.files=other.csv'\nhelp: `ampkit evaluate`",
        ),
        (["absent.csv"], "'absent.csv', which does not exist"),
    ):
        assert main(["evaluate", "run", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_run_whose_data_has_no_files_says_what_it_takes(tmp_path):
    found = trained(tmp_path, {"name": "digits"})
    with pytest.raises(ConfigError, match="needs a run on .*'images', .* or 'text' to take other data, got 'digits'"):
        found.evaluate(tmp_path)
    assert "ampkit evaluate runs" in hint(
        config.load("digits_mlp", ["data={name='parquet', files='a', inputs=['x'], target='y', classes=2}"]), "runs"
    )
    data, _ = images(tmp_path / "photos")
    found = trained(tmp_path / "photos", data)
    (tmp_path / "photos" / "other" / "triangle").mkdir()
    with pytest.raises(FileError, match="needs classes among circle, square, got triangle"):
        found.evaluate(tmp_path / "photos" / "other")


def test_a_folder_stands_for_the_images_in_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data, other = images(tmp_path)
    trained(tmp_path, data)
    (other / "empty").mkdir()
    assert main(["predict", "run", "other", "train/circle/0.npy", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    paths = [f"other/{name}/{number}.npy" for name in ("circle", "square") for number in range(9)]
    assert [line.partition(":")[0] for line in lines] == [*paths, "train/circle/0.npy"]
    (other / "empty" / "a.npy").write_bytes(b"")
    for paths in (["other"], ["other/empty/a.npy", "other"]):
        assert main(["predict", "run", *paths, "--top", "1"]) == 2
        out, error = capsys.readouterr()
        assert out.splitlines() == lines[:-1]  # one that cannot be read loses none of the others
        assert "other/empty/a.npy" in error
    (other / "empty" / "a.npy").unlink()
    assert main(["predict", "run", "other/empty"]) == 2
    assert "images: needs a folder with .npy" in capsys.readouterr().err
    found = load_run("run")
    assert found.images("other").shape == (18, 3, 8, 8)
    assert found.images(Path("train/circle/0.npy")).shape == (1, 3, 8, 8)
    for path in ("train/circle/0.npy", [Path("train/circle/0.npy")]):
        with pytest.raises(DTypeError, match=r"got the path .*\nhelp: .* predict\(found.images\(PATHS\)\)"):
            found.predict(path)
