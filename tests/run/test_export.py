"""Exports: the weights by PyTorch's names, the recipe, a model card, and `load_run` reads them as it reads a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import ampkit
from ampkit import cli, config
from ampkit.run.export import export

SHORT = ["train.epochs=", "train.steps=4", "train.eval_every=2", "train.ema=0.5", "amp.dtype=bfloat16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    assert cli.main(["train", "digits_mlp", *SHORT, "--device", "cpu", "--run-dir", str(path)]) == 0
    return path


@pytest.mark.cpu
@pytest.mark.parametrize("average", [True, False])
def test_an_export_is_loaded_as_the_run_it_came_from(run, tmp_path, average):
    before = ampkit.load_run(run, average=average)
    export(before, tmp_path / "out", run)
    after = ampkit.load_run(tmp_path / "out")
    x = np.random.default_rng(0).random((3, 1, 8, 8), dtype=np.float32)
    assert after(x).tolist() == before(x).tolist()
    assert (after.recipe, after.step, after.averaged) == (before.recipe, 4, average)
    assert (after.classes, after.mean, after.std) == (before.classes, before.mean, before.std)


@pytest.mark.cpu
def test_the_weights_are_the_state_dict_in_safetensors(run, tmp_path):
    found = ampkit.load_run(run)
    export(found, tmp_path / "out")
    state = load_file(tmp_path / "out/model.safetensors")
    assert {name: value.tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in found.model.state_dict().items()
    }
    assert config.load(tmp_path / "out/config.toml") == found.recipe


@pytest.mark.cpu
def test_the_card_says_what_was_trained_on_what_how_well_and_how_to_load_it(run, tmp_path):
    found = ampkit.load_run(run)
    export(found, tmp_path / "out", run)
    text = (tmp_path / "out/README.md").read_text()
    assert text.startswith("---\nlibrary_name: ampkit\npipeline_tag: image-classification\n")
    loss = found.evaluate().val_loss
    for words in (
        "# mlp on digits",
        "85,002 parameters",
        "with products in bfloat16 (autocast) and float32 weights",
        "4 updates, and are the moving average of the weights.",
        f"| val_loss | {loss:.4f} |",
        'load_file("model.safetensors")',
        "Images of 1 x 8 x 8, values in [0, 1], less mean 0 and divided by std 1, by channel.",
        "(1): Linear(in_features=64, out_features=256, bias=True)",
    ):
        assert words in text


@pytest.mark.cpu
def test_the_command_writes_beside_the_run_and_replaces_nothing(run, capsys, tmp_path):
    assert cli.main(["export", str(run)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        str(run / "export" / name) for name in ("model.safetensors", "config.toml", "model.json", "README.md")
    ]
    assert cli.main(["evaluate", str(run / "export")]) == 0
    assert cli.main(["export", str(run)]) == 2
    assert "needs a new or empty directory" in capsys.readouterr().err
    assert cli.main(["export", str(run), "--weights", "best", "--to", str(tmp_path / "w.safetensors")]) == 0
    assert len(load_file(tmp_path / "w.safetensors")) == 6


@pytest.mark.cpu
def test_a_damaged_export_and_its_best_weights_are_refused(run, tmp_path):
    export(ampkit.load_run(run), tmp_path / "out")
    with pytest.raises(ampkit.ArgumentError, match="one set of weights"):
        ampkit.load_run(tmp_path / "out", "best")
    (tmp_path / "out/model.json").write_text("{}")
    with pytest.raises(ampkit.FileError, match="needs the files of `ampkit export`"):
        ampkit.load_run(tmp_path / "out")


@pytest.mark.cpu
def test_an_onnx_file_says_what_its_input_and_output_mean(run, tmp_path, capsys):
    onnx = pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
    assert cli.main(["export", str(run), "--format", "onnx"]) == 0
    assert str(run / "model.onnx") in capsys.readouterr().out
    model = onnx.load(run / "model.onnx")
    about = {each.key: each.value for each in model.metadata_props}
    assert about.pop("recipe") == config.dump(ampkit.load_run(run).recipe)
    assert {name: json.loads(text) for name, text in about.items()} == {
        "classes": [], "mean": [0.0], "std": [1.0], "step": 4
    }  # fmt: skip
    (given,) = model.graph.input
    assert [d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] == ["batch", 1, 8, 8]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "onnx", "--to", "m.safetensors"], "--to: needs a file *.onnx, for --format onnx"),
        (["--format", "safetensors", "--to", "m.onnx"], "--to: needs a directory, or a file *.safetensors"),
        (["--format", "pickle"], "unknown --format 'pickle'"),
    ],
)
def test_a_file_whose_name_says_another_format_is_refused(run, words, said, capsys):
    assert cli.main(["export", str(run), *words]) == 2
    assert said in capsys.readouterr().err
