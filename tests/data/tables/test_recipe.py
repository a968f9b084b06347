"""Recipes that learn a column of a table from the others: features, splits, scores, resuming and predicting."""

from __future__ import annotations

import csv
import io
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import config
from ampkit.base.errors import AmpkitError, ConfigError, FileError
from ampkit.cli import main
from ampkit.data.tables.features import TableFeatures
from ampkit.data.tables.read import read
from ampkit.data.tables.recipe import load_splits
from ampkit.run.loop import EvalRow, fit
from ampkit.run.metrics import SquaredError
from ampkit.run.trained import load_run

CITIES = ("Bern", "Oslo", "Rom")
RECIPE = '[model]\nname = "mlp"\nhidden = [16]\n[data]\nname = "table"\nbatch_size = 16\n[optimizer]\nname = "adamw"\n'
RECIPE += "lr = 0.02\n[train]\nsteps = 6\nlog_every = 1\neval_every = 3\nthreads = 1\n"


def flats(count=90):
    """Rows of flats: the price follows from area and city, the kind from the area."""
    draw = np.random.RandomState(0)
    for _ in range(count):
        area, city = round(draw.uniform(20, 120), 1), CITIES[draw.randint(3)]
        price = round(area * 3000 * (1 + CITIES.index(city)))
        yield {"area": area, "city": city, "garden": bool(draw.randint(2)), "price": price, "kind": kind_of(area)}


def kind_of(area):
    return "small" if area < 50 else "large" if area > 90 else "medium"


def write(path, rows):
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        made = csv.DictWriter(file, rows[0])
        made.writeheader()
        made.writerows(rows)
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "flats.csv", flats())


def recipe(path, *overrides):
    (path.parent / "recipe.toml").write_text(RECIPE, "utf-8")
    return config.load(path.parent / "recipe.toml", [f"data.files={path}", *overrides])


PRICE = ["data.target=price", "data.task=regression", 'data.exclude=["kind"]']
KIND = ["data.target=kind", 'data.exclude=["price"]']


def column(path, name):
    with path.open(encoding="utf-8") as file:
        return [row[name] for row in csv.DictReader(file)]


@pytest.mark.cpu
def test_numbers_are_standardized_and_text_is_one_hot_by_the_rows_trained_on(path):
    splits = load_splits(path, "kind", exclude=["price"])
    features = TableFeatures.from_state(splits.table)
    area, city, garden = features.inputs
    train = splits.train[0].astype(np.float64)
    np.testing.assert_allclose(train[:, 0].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(train[:, 0].std(), 1, rtol=1e-6)
    assert (city.categories, area.kind, garden.kind) == (CITIES, "number", "boolean")
    encoded = features.encode(read(path))
    areas = np.array(column(path, "area"), np.float64)
    np.testing.assert_allclose(encoded[:, 0], (areas - area.mean) / area.std, rtol=1e-6, atol=1e-7)
    assert [CITIES[n] for n in encoded[:, 1:4].argmax(1)] == column(path, "city")
    assert (encoded[:, 1:4].sum(1) == 1).all()
    assert splits.notes == (
        "table: 81 rows to train on, 9 held out; columns: 1 of numbers, 1 of categories, 1 of booleans, 5 features; "
        "kind: 3 classes",
    )


@pytest.mark.cpu
def test_the_mean_is_of_the_rows_trained_on_alone(tmp_path):
    write(tmp_path / "a.csv", [{"x": x, "y": "ab"[x % 2]} for x in range(10)])
    write(tmp_path / "b.csv", [{"x": 1000, "y": "a"}])
    splits = load_splits(tmp_path / "a.csv", "y", held_out=tmp_path / "b.csv")
    assert splits.table["inputs"][0]["mean"] == 4.5
    np.testing.assert_allclose(splits.held_out[0], (1000 - 4.5) / np.std(np.arange(10)), rtol=1e-6)
    assert splits.held_out[1].tolist() == [0]


@pytest.mark.cpu
@pytest.mark.parametrize("seed", [0, 1])
def test_the_split_holds_out_the_same_share_of_every_class_and_all_classes_are_trained_on(tmp_path, seed):
    names = ["a"] * 60 + ["b"] * 30 + ["c"] * 9 + ["d"]
    path = write(tmp_path / "t.csv", [{"n": n, "y": name} for n, name in enumerate(names)])
    first, again = (load_splits(path, "y", validation=0.2, seed=seed) for _ in range(2))
    train, held_out = (np.bincount(labels, minlength=4) for _, labels in (first.train, first.held_out))
    assert (train + held_out).tolist() == [60, 30, 9, 1]
    assert (np.abs(held_out - [12, 6, 2, 0]) <= 1).all() and held_out.sum() == 20 and train[3] == 1
    assert first.held_out[0].tobytes() == again.held_out[0].tobytes()
    assert first.held_out[0].tobytes() != load_splits(path, "y", validation=0.2, seed=seed + 2).held_out[0].tobytes()


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["x", "a", "x", "a"], ("a", "x")),
        ([10, 9, -1, 9, 10, -1], ("-1", "9", "10")),
        (["true", "False", "true", "false"], ("false", "true")),
        (["1", "2", "3+", "1", "2", "3+"], ("1", "2", "3+")),
    ],
)
def test_classes_are_found_and_in_order(labels, classes, tmp_path):
    path = write(tmp_path / "t.csv", [{"n": n, "y": label} for n, label in enumerate(labels)])
    splits = load_splits(path, "y", categories=["y"] if "3+" in labels else [])
    assert splits.classes == classes
    assert splits.sizes == {"shape": [1], "classes": len(classes)}


@pytest.mark.cpu
def test_nulls_are_refused_or_filled_with_the_mean_and_a_category_of_their_own(tmp_path):
    rows = [{"x": "", "c": "a"}, {"x": 1, "c": ""}, {"x": 5, "c": "b"}, {"x": 3, "c": "a"}]
    path = write(tmp_path / "t.csv", [{**row, "y": "uv"[n % 2]} for n, row in enumerate(rows)])
    with pytest.raises(FileError) as caught:
        load_splits(path, "y", held_out=path)
    assert f"{path}, line 2: needs a value in column 'x', got none\nhelp: data.nulls=\"fill\"" in str(caught.value)
    features, _ = load_splits(path, "y", held_out=path, nulls="fill").train
    assert features[:, 0].tolist()[0] == 0
    assert features[:, 1:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]


@pytest.mark.cpu
def test_a_category_that_the_training_did_not_have_is_all_zeros(tmp_path):
    train = write(tmp_path / "a.csv", [{"c": "pq"[n % 2], "y": n % 2} for n in range(6)])
    other = write(tmp_path / "b.csv", [{"c": "r", "y": 1}, {"c": "q", "y": 0}])
    assert load_splits(train, "y", held_out=other).held_out[0].tolist() == [[0, 0], [0, 1]]


@pytest.mark.cpu
def test_numbers_may_be_categories(tmp_path):
    path = write(tmp_path / "t.csv", [{"zip": f"0{n % 2}", "y": "ab"[n % 2]} for n in range(6)])
    assert load_splits(path, "y", categories=["zip"]).table["inputs"][0]["categories"] == ("00", "01")


ROWS = [{"x": n, "c": f"k{n}", "one": 1, "half": n / 2, "y": "ab"[n % 2], "": n} for n in range(8)]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"target": "z"}, "needs a column 'z', got only x, c, one, half, y, "),
        ({"target": "y", "inputs": ["X"]}, "needs a column 'X', got only x, c, one, half, y, \nhelp: did you mean 'x'"),
        ({"target": "y", "exclude": ["ones"]}, "needs a column 'ones'"),
        ({"target": "y", "inputs": ["y"]}, "data.inputs: needs columns other than the target 'y'"),
        ({"target": "y", "inputs": ["x"], "exclude": ["x"]}, "data.inputs: needs a column to learn from, got none"),
        ({"target": "y"}, 'needs a name for every column, got none for number 6\nhelp: data.exclude=[""]'),
        ({"target": "one", "inputs": ["x"]}, "data.target: needs two classes or more in 'one', got '1' alone"),
        ({"target": "x", "inputs": ["y"]}, 'got 8 different integers in 8 rows\nhelp: data.task="regression"'),
        (
            {"target": "half", "inputs": ["x"]},
            "line 3: needs text, integers or booleans in the target 'half', got '0.5'",
        ),
        (
            {"target": "c", "inputs": ["x"]},
            "needs two rows of a class or more, one of them to hold out, got 8 rows, one",
        ),
        ({"target": "y", "inputs": ["x"], "task": "regression"}, "needs numbers in the target 'y', got 'a'"),
        ({"target": "y", "inputs": ["c"], "max_categories": 3}, "needs at most 3 categories in column 'c', got 7"),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_one_line(words, message, tmp_path):
    path = write(tmp_path / "t.csv", ROWS)
    with pytest.raises((ConfigError, FileError)) as caught:
        load_splits(path, **words)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.cpu
def test_a_held_out_class_that_is_not_trained_on_is_named(tmp_path):
    train = write(tmp_path / "a.csv", [{"x": n, "y": "ab"[n % 2]} for n in range(6)])
    other = write(tmp_path / "b.csv", [{"x": 1, "y": "a"}, {"x": 1, "y": "c"}])
    with pytest.raises(FileError, match=r"b.csv, line 3: needs a class that the training has in 'y', got 'c'"):
        load_splits(train, "y", held_out=other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("words", [KIND, PRICE])
def test_a_run_resumes_bit_for_bit_and_is_loaded_with_its_columns(words, dtype, path, tmp_path):
    made = recipe(path, *words, f"amp.dtype={dtype}")
    whole = fit(made)
    rows = list(whole)
    first = fit(made, tmp_path / "run" / "checkpoints")
    for row in islice(first, 20):
        if row.step == 4:
            first.stop()
    resumed = fit(made, tmp_path / "run" / "checkpoints", resume=True)
    assert resumed.done == 4
    assert list(resumed)[-1] == rows[-1]
    weights = [
        {name: each.numpy(force=True).tobytes() for name, each in run.model.state_dict().items()}
        for run in (whole, resumed)
    ]
    assert weights[0] == weights[1]
    found = load_run(tmp_path / "run")
    assert found.evaluate() == tuple(getattr(rows[-1], name) for name in found.evaluate()._fields)
    assert found.table == TableFeatures.from_state(load_splits(**_arguments(made)).table)


def _arguments(made):
    return made.data.model_dump(exclude={"name", "batch_size"})


def test_a_class_of_text_and_a_price_are_learned(path):
    last = [row for row in fit(recipe(path, *KIND, "train.steps=150", "train.eval_every=")) if isinstance(row, EvalRow)]
    assert last[-1].accuracy == 1
    last = [
        row for row in fit(recipe(path, *PRICE, "train.steps=150", "train.eval_every=")) if isinstance(row, EvalRow)
    ]
    assert last[-1].r2 > 0.98
    assert last[-1].rmse < 0.2 * np.std(np.array(column(path, "price"), float))
    assert last[-1].accuracy is None


@pytest.mark.cpu
def test_rmse_and_r2_are_those_of_the_whole_whatever_the_batches():
    draw = np.random.RandomState(0)
    target, output = draw.standard_normal(50), draw.standard_normal(50)
    metric = SquaredError(7.0)
    for part in np.split(np.arange(50), [8, 20, 21]):
        given = ampkit.tensor(output[part]), ampkit.tensor(target[part])
        metric.update(((given[0] - given[1]) ** 2).mean(), *given)
    scores = metric.compute()
    error = ((output - target) ** 2).mean()
    np.testing.assert_allclose([scores.val_loss, scores.rmse], [error, 7 * error**0.5], rtol=1e-12)
    np.testing.assert_allclose(scores.r2, 1 - error / target.var(), rtol=1e-12)


@pytest.mark.cpu
def test_a_run_whose_table_has_changed_is_not_resumed_nor_evaluated(path, tmp_path):
    made = recipe(path, *KIND)
    list(fit(made, tmp_path / "run" / "checkpoints"))
    write(path, [{**row, "city": "Graz" if row["city"] == "Rom" else row["city"]} for row in flats()])
    with pytest.raises(ConfigError, match="needs the table that the run began with, got another one, in city\nhelp"):
        fit(made, tmp_path / "run" / "checkpoints", resume=True)
    with pytest.raises(ConfigError, match="evaluate: needs the table"):
        load_run(tmp_path / "run").evaluate()


def printed(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.cpu
def test_predictions_are_csv_and_those_of_the_model(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe(path, *KIND)
    said = printed(capsys, "train", "recipe.toml", "--run-dir", "run", "data.files=flats.csv", *KIND)
    assert said.startswith("table: 81 rows to train on, 9 held out; columns: ")
    assert "to use the model: ampkit predict run ROWS.csv" in said
    rows = [{"city": "Paris", "garden": "true", "area": 3}, {"city": "Oslo", "garden": "true", "area": 200}]
    write(tmp_path / "new.csv", rows)
    found = list(csv.DictReader(io.StringIO(printed(capsys, "predict", "run", "new.csv", "--top", "2"))))
    assert list(found[0]) == ["kind", "probability", "kind_2", "probability_2"]
    loaded = load_run("run")
    shares = loaded.predict(loaded.rows("new.csv")).numpy()
    assert [row["kind"] for row in found] == [loaded.classes[n] for n in shares.argmax(1)]
    np.testing.assert_allclose([float(row["probability"]) for row in found], shares.max(1), rtol=1e-5)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({**row, "garden": True}) + "\n" for row in rows))
    assert loaded.rows("new.jsonl").numpy().tobytes() == loaded.rows("new.csv").numpy().tobytes()
    with pytest.raises(FileError, match="new.csv: needs a column 'area'"):
        loaded.rows(write(tmp_path / "new.csv", [{"city": "Oslo", "garden": "true", "areas": 1}]))


@pytest.mark.cpu
def test_a_predicted_number_has_the_unit_of_the_target(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    list(fit(recipe(path, *PRICE, "train.steps=150", "train.eval_every="), tmp_path / "run" / "checkpoints"))
    found = list(csv.DictReader(io.StringIO(printed(capsys, "predict", "run", "flats.csv"))))
    predicted, given = np.array([float(row["price"]) for row in found]), np.array(column(path, "price"), float)
    assert np.abs(predicted - given).mean() < 0.1 * given.mean()
    assert "R2" in printed(capsys, "evaluate", "run")


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("words", "says"),
    [(KIND, ["tabular-classification", "# probabilities"]), (PRICE, ["tabular-regression", "# values of 'price'"])],
)
def test_an_export_says_what_its_columns_are_and_predicts_as_the_run_does(
    words, says, path, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    recipe(path, *words)
    printed(capsys, "train", "recipe.toml", "--run-dir", "run", "data.files=flats.csv", *words)
    printed(capsys, "export", "run")
    card = Path("run/export/README.md").read_text()
    for part in [*says, "found.predict(found.rows('rows.csv'))", "`area` (number)"]:
        assert part in card
    assert printed(capsys, "predict", "run/export", "flats.csv") == printed(capsys, "predict", "run", "flats.csv")


@pytest.mark.cpu
def test_the_likeliest_of_a_number_are_refused(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    list(fit(recipe(path, *PRICE), tmp_path / "run" / "checkpoints"))
    assert main(["predict", "run", "flats.csv", "--top", "2"]) == 2
    assert "--top: needs a model of classes, got one that predicts 'price', a number" in capsys.readouterr().err


@pytest.mark.cpu
def test_other_models_do_not_take_tables(path):
    with pytest.raises(AmpkitError, match="data.name: needs .* for cnn, got 'table'"):
        recipe(path, *KIND, "model={name='cnn'}")
