"""`ampkit quantize`: a run in int8, which is used as a run is."""

import re
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import cli
from ampkit.base.errors import ArgumentError
from ampkit.run.quantize import quantize_run

pytestmark = pytest.mark.cpu  # int8 is not there yet on a GPU
SHORT = ["train.epochs=", "train.steps=120", "train.eval_every=60", "model.width=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    assert cli.main(["train", "digits_cnn", *SHORT, "--device", "cpu", "--run-dir", str(path)]) == 0
    return path


def printed(capsys, *words):
    """The output of a command that must end well."""
    assert cli.main([*map(str, words)]) == 0
    return capsys.readouterr().out


def test_a_run_in_int8_is_evaluated_and_predicts_as_the_run(run, tmp_path, capsys):
    said = printed(capsys, "quantize", run, "--to", tmp_path / "int8", "--batches", 4)
    assert re.search(r"features.0 +│ +[\d.e-]+ % +│ int8", said)
    before, after = map(float, re.search(r"accuracy +│ +([\d.]+)% +│ +([\d.]+)%", said).groups())
    assert abs(before - after) <= 0.5
    assert cli.main(["quantize", str(run), "--to", str(tmp_path / "int8")]) == 2
    assert "quantize: needs a new or empty directory" in capsys.readouterr().err
    assert f"{after:.2f}%" in printed(capsys, "evaluate", tmp_path / "int8")
    np.save(tmp_path / "a.npy", np.zeros((8, 8), np.uint8))
    assert "a.npy: " in printed(capsys, "predict", tmp_path / "int8", tmp_path / "a.npy")
    found = ampkit.load_run(tmp_path / "int8")
    assert found.precision == "bfloat16 and int8" or found.precision == "float32 and int8"
    assert "were converted to int8" in (tmp_path / "int8" / "README.md").read_text()
    with pytest.raises(ArgumentError, match="a run in floating point, got one in int8"):
        quantize_run(found)


def test_layers_over_the_budget_run_in_bfloat16_and_skipped_ones_as_before(run):
    made = quantize_run(ampkit.load_run(run), budget=1e-9, skip=["classifier"], batches=2)
    layout = made.found.model.quantization
    assert "classifier" not in {*layout.int8, *layout.bfloat16}
    assert len(layout.bfloat16) == sum(not layer.int8 for layer in made.layers) > 0


def test_mistakes_on_the_command_line_are_one_line(run, tmp_path, capsys):
    for words, text in (
        ([run, "--skip", "decoder"], "skip: the path of a module of the model"),
        ([run, "--observer", "max"], "unknown --observer 'max'"),
        ([tmp_path / "none"], "needs the directory of a run"),
        ([run, "--budget", "0"], "needs a number above 0"),
    ):
        assert cli.main(["quantize", *map(str, words)]) == 2
        assert text in capsys.readouterr().err
    assert not Path(run, "int8").exists()
