"""Recipes that name data sets of Hugging Face, webdataset and Grain: their numbers, their place, what is refused."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import tarfile

import numpy as np
import pytest

from ampkit import config
from ampkit.base.errors import AmpkitError, ConfigError, FileError
from ampkit.base.registry import DATASETS
from ampkit.data.samples import as_batch
from ampkit.run.loop import fit

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]  # of the libraries
SHAPE = (1, 2, 3)
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((26, *SHAPE)).astype(np.float32), rng.integers(0, 3, 26)
SMALL = ["model={name='mlp', hidden=[4]}", "schedule={name='constant'}", "optimizer={name='adamw', lr=0.01}"]
SMALL += ["train={steps=9, eval_every=4, log_every=1, threads=1, checkpoint_every=1}"]


def needs(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}, of the extra sources")


LIBRARIES = [pytest.param(name, marks=needs(package)) for name, package in (
    ("huggingface", "datasets"), ("webdataset", "webdataset"), ("grain", "grain"),
)]  # fmt: skip


def huggingface(folder):
    import datasets

    columns = {"x": X.reshape(26, -1).tolist(), "y": Y.tolist()}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(columns)}).save_to_disk(str(folder / "saved"))
    return f"path='{folder}/saved', inputs=['x'], target='y'"


def webdataset(folder):
    for shard in range(2):
        with tarfile.open(folder / f"part-{shard}.tar", "w") as archive:
            for number in range(13 * shard, 13 * shard + 13):
                array = io.BytesIO()
                np.save(array, X[number])
                for end, data in (("npy", array.getvalue()), ("cls", str(Y[number]).encode())):
                    entry = tarfile.TarInfo(f"{number:04d}.{end}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    return f"shards='{folder}/part-{{0..1}}.tar', held_out='{folder}/part-1.tar', shuffle=5"


def grain(folder):
    np.savez(folder / "rows.npz", x=X, y=Y)
    (folder / "rows.py").write_text(f"""
import grain
import numpy as np
rows = np.load({str(folder / "rows.npz")!r})
x, y = rows["x"], rows["y"]

def train():
    return grain.MapDataset.range(26).seed(3).shuffle().map(lambda i: {{"image": x[i], "label": y[i]}})

def test():
    return grain.MapDataset.range(8).map(lambda i: (x[i], y[i])).to_iter_dataset()

def nothing():
    return [1]
""")
    return f"source='{folder}/rows.py:train', held_out='{folder}/rows.py:test'"


MAKE = {"huggingface": huggingface, "webdataset": webdataset, "grain": grain}


def recipe(name, keys, *overrides):
    data = f"data={{name='{name}', {keys}, shape=[1, 2, 3], classes=3, batch_size=4}}"
    return config.load("digits_mlp", [data, *SMALL, *overrides])


def bits(run):
    return [value.numpy().tobytes() for value in run.model.state_dict().values()]


def bits_after(run):
    for _ in run:
        pass
    return bits(run)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_run_takes_every_sample_of_an_epoch_with_its_label(name, tmp_path):
    run = fit(recipe(name, MAKE[name](tmp_path)))
    seen = []
    while len(seen) < (23 if name == "huggingface" else 26):
        (inputs, labels), *_ = run.next_batches()
        assert inputs.shape[1:] == SHAPE
        for row, label in zip(inputs.numpy(), labels.tolist(), strict=True):
            at = [number for number in range(26) if np.array_equal(X[number], row)]
            assert [Y[number] for number in at] == [label]
            seen += at
    assert len({*seen}) == len(seen)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_run_cut_anywhere_goes_on_bit_for_bit_through_several_epochs(name, tmp_path):
    wanted = recipe(name, MAKE[name](tmp_path), "train.accumulate=2", "train.steps=9")
    whole = fit(wanted)
    losses = [(row.step, getattr(row, "loss", None), getattr(row, "val_loss", None)) for row in whole]
    found = []
    for stop in (1, 4, 7, 9):
        run = fit(wanted, tmp_path / "run", resume=True)
        for row in run:
            found.append((row.step, getattr(row, "loss", None), getattr(row, "val_loss", None)))
            if run.done == stop < 9:
                run.stop()
    assert [*dict.fromkeys(found)] == losses
    assert bits(run) == bits(whole)


@pytest.mark.parametrize("name", LIBRARIES[1:])
def test_a_stream_is_evaluated_after_each_pass_also_where_it_resumes_within_one(name, tmp_path):
    wanted = recipe(name, MAKE[name](tmp_path), "train.accumulate=2", "train.eval_every=", "train.patience=9")
    losses = [(row.step, getattr(row, "val_loss", None)) for row in fit(wanted)]
    assert [step for step, value in losses if value is not None] == [4, 7, 9]  # of 7 batches; the last step is 9
    found = []
    for stop in range(1, 10):
        run = fit(wanted, tmp_path / "run", resume=True)
        for row in run:
            found.append((row.step, getattr(row, "val_loss", None)))
            if run.done == stop < 9:
                run.stop()
    assert [*dict.fromkeys(found)] == losses


@needs("datasets")
def test_rows_come_from_files_too_and_split_names_are_checked(tmp_path):
    lines = [json.dumps({"a": float(x[0, 0, 0]), "b": 1.5, "y": int(y)}) for x, y in zip(X, Y, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    keys = f"data={{name='huggingface', path='{tmp_path}/rows.jsonl', inputs=['a', 'b'], target='y', classes=3}}"
    inputs, _ = fit(config.load("digits_mlp", [keys, *SMALL])).first_batch()
    assert inputs.shape[1:] == (1, 1, 2)
    with pytest.raises(ConfigError, match="data.held_out: needs a split, 'train', got 'test'"):
        fit(config.load("digits_mlp", [keys, *SMALL, "data.held_out=test"]))
    with pytest.raises(FileError, match="needs a column 'z', got only a, b, y"):
        fit(config.load("digits_mlp", [keys, *SMALL, "data.target=z"]))
    with pytest.raises(FileError, match="data.path: needs a folder of save_to_disk, files of Parquet.*absent.csv"):
        fit(config.load("digits_mlp", [keys, *SMALL, f"data.path={tmp_path}/absent.csv"]))


def saved(folder, **columns):
    import datasets

    datasets.Dataset.from_dict(columns).save_to_disk(str(folder / "saved"))
    keys = f"data={{name='huggingface', path='{folder}/saved', inputs={[*columns][:-1]}, target='y', classes=2}}"
    return config.load("digits_mlp", [keys, *SMALL])


@needs("datasets")
def test_a_row_that_does_not_fit_is_named_by_its_number_and_column(tmp_path):
    gap = saved(tmp_path, a=[1.0, 2.0, float("nan"), 4.0], b=[1.0, None, 1.0, 1.0], y=[0, 1, 0, 2])
    source = (
        DATASETS["huggingface"].load(**gap.data.model_dump(exclude={"name", "batch_size", "workers"})).train.dataset
    )
    for row, said in ((2, "saved, row 2: needs finite values in 'a', got nan"), (1, "row 1: needs a value in 'b'")):
        with pytest.raises(FileError, match=f"{said}.*\nhelp: fill the gaps, or leave these rows out"):
            source.batch([0, row])
    with pytest.raises(FileError, match="row 3: needs a class from 0 to 1 in 'y', got 2\nhelp: data.classes"):
        source.batch([0, 3])


@needs("datasets")
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_without_a_shape_the_first_row_tells_it(kind, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rows = [[0.0] * 8] * 6 if kind == "vectors" else [image.new("RGB", (5, 4))] * 6
    found = saved(tmp_path, x=rows, y=[0, 1] * 3)
    assert found.data.shape == ((1, 1, 8) if kind == "vectors" else (3, 4, 5))
    inputs, _ = fit(found).first_batch()
    assert inputs.shape[1:] == found.data.shape


@needs("datasets")
def test_a_file_that_breaks_off_is_named_with_its_line_and_no_bar_is_left(tmp_path, capfd):
    (tmp_path / "cut.jsonl").write_text('{"a": 1.0, "y": 0}\n{"a": 2.0, "y": 1}\n{"a": 3.0, "y"')
    keys = f"data={{name='huggingface', path='{tmp_path}/cut.jsonl', inputs=['a'], target='y', classes=2}}"
    with pytest.raises(FileError, match="cut.jsonl, line 3: needs one JSON object in a line, got one that breaks"):
        fit(config.load("digits_mlp", [keys, *SMALL]))
    assert capfd.readouterr().err == ""


@needs("datasets")
def test_a_data_set_of_the_hub_without_network_is_asked_for_once(monkeypatch):
    import huggingface_hub

    def away(url, timeout):
        asked.append(url)
        raise ConnectionError("no route")

    asked = []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", away)
    keys = "data={name='huggingface', path='owner/name', inputs=['a'], target='y', classes=2, shape=[1, 1, 1]}"
    with pytest.raises(FileError, match=r"got 'owner/name', without network \(no route\)\nhelp: connect"):
        fit(config.load("digits_mlp", [keys, *SMALL]))
    assert len(asked) == 1 and "/datasets/owner/name/" in asked[0]


@needs("webdataset")
@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ("pipe:touch gone", "data.shards: needs paths or addresses of shards, got 'pipe"),
        ("no-{0..1}.tar", "'no-0.tar'"),
    ],
)
def test_shards_that_are_missing_or_commands_are_refused(shards, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AmpkitError, match=said):
        fit(recipe("webdataset", f"shards='{shards}', held_out='{shards}'"))
    assert not (tmp_path / "gone").exists()


@needs("grain")
def test_what_is_no_pipeline_of_grain_is_refused(tmp_path):
    grain(tmp_path)
    for source, said in (("nothing", "a list of .*nothing"), ("absent", "'absent'"), ("train", None)):
        keys = f"source='{tmp_path}/rows.py:{source}', held_out='{tmp_path}/rows.py:test'"
        if said is not None:
            with pytest.raises(ConfigError, match=said):
                fit(recipe("grain", keys))
    with pytest.raises(ConfigError, match="data.source: needs a function as"):
        fit(recipe("grain", "source='rows', held_out='rows'"))


def test_a_stream_has_no_epochs():
    keys = "data={name='webdataset', shards='a', held_out='a', shape=[1, 2, 3], classes=3}"
    with pytest.raises(ConfigError, match="train.epochs: needs steps instead: the length of a stream is not known"):
        config.load("digits_mlp", [keys, *SMALL, "train.steps=", "train.epochs=2"])


@pytest.mark.parametrize(("name", "package"), [("huggingface", "datasets"), ("webdataset",) * 2, ("grain",) * 2])
def test_the_extra_is_named_where_the_package_is_missing(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    keys = {"huggingface": "path='a', inputs=['x'], target='y'", "webdataset": "shards='a', held_out='a'"}
    with pytest.raises(ConfigError, match=rf"the package {package}, got none\nhelp: pip install 'ampkit\[sources\]'"):
        fit(recipe(name, keys.get(name, "source='a.py:b', held_out='a.py:b'")))


def test_images_are_scaled_and_turned_channels_first():
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    (inputs, labels) = as_batch([{"i": picture, "y": 1}], ["i"], "y", (3, 2, 4))
    assert np.array_equal(inputs.numpy()[0], (picture / np.float32(255)).astype(np.float32).transpose(2, 0, 1))
    assert labels.tolist() == [1]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"x": np.zeros(5), "y": 0}, r"1 x 2 x 3 values, as data.shape says, got 5 of x\nhelp: data.shape=\[1,1,5\]"),
        ({"x": np.zeros((3, 4, 4)), "y": 0}, r"got 3 x 4 x 4 of x\nhelp: data.shape=\[3,4,4\] where"),
        ({"x": np.zeros(6), "z": 0}, "'y' in every sample, got only x, z"),
        ({"x": np.zeros(6), "y": 0.5}, "an integer in 'y' of every sample, got 0.5"),
        (
            {"x": [0.0] * 4 + [np.nan, 0.0], "y": 0},
            "finite values in 'x', got nan at place 4 of 6\nhelp: fill the gaps",
        ),
        ({"x": [0.0] * 5 + [None], "y": 0}, "a value in every place of 'x', got null"),
        ({"x": None, "y": 0}, "a value in 'x', got null"),
        ({"x": np.zeros(6), "y": None}, "a value in 'y', got null"),
        ({"x": np.zeros(6), "y": 3}, "a class from 0 to 2 in 'y', got 3\nhelp: data.classes .* at least 4"),
        ({"x": np.zeros(6), "y": -1}, "a class from 0 to 2 in 'y', got -1\nhelp: number the classes from 0"),
        ({"x": np.zeros(6), "y": "cat"}, "an integer in 'y' of every sample, got 'cat'\nhelp: .*class_encode_column"),
        ({"x": ["a"] * 6, "y": 0}, "numbers or an image in 'x'"),
        (7, "'x' in every sample, got a int"),
    ],
    ids=str,
)
def test_samples_that_do_not_fit_are_named(item, said):
    with pytest.raises(FileError, match=said):
        as_batch([{"x": np.zeros(6), "y": -100}, item], ["x"], "y", SHAPE, classes=3)


def test_no_sample_is_unpickled():
    array = io.BytesIO()
    np.save(array, np.array([{}], object), allow_pickle=True)
    with pytest.raises(FileError, match="npy, json, cls or an image in 'a.npy'"):
        as_batch([{"a.npy": array.getvalue(), "y": 0}], ["a.npy"], "y", SHAPE)


@needs("webdataset")
def test_a_run_over_a_shard_that_breaks_off_is_saved_and_goes_on_once_it_is_whole(tmp_path):
    wanted = recipe("webdataset", webdataset(tmp_path).replace("shuffle=5", "shuffle=0"), "train.eval_every=")
    whole = bits_after(fit(wanted))
    shard = tmp_path / "part-0.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) * 5 // 8])
    run = fit(wanted, tmp_path / "run")
    with pytest.raises(FileError, match="shards that can be read to their end, got .*part-0.tar"):
        list(run)
    assert run.done > 0
    shard.write_bytes(content)
    assert bits_after(fit(wanted, tmp_path / "run", resume=True)) == whole
