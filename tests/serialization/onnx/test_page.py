"""docs/onnx.md: its commands and its Python code run one after the other, after a run of the recipe digits_mlp."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ampkit.cli import main
from ampkit.serialization.onnx.registry import MAPPINGS

pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra dev")

PAGE = (Path(__file__).parents[3] / "docs/onnx.md").read_text()


def test_the_commands_and_the_code_of_the_page_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MAPPINGS, "cosine_gate", None)  # takes the page's entry away at the end
    short = ["train.epochs=", "train.steps=2", "train.eval_every=2"]
    assert main(["train", "digits_mlp", *short, "--run-dir", "runs/my"]) == 0
    names = {"__name__": "docs"}
    for language, source in re.findall(r"```(python|bash)\n(.*?)```", PAGE, re.DOTALL):
        if language == "python":
            exec(compile(source, "docs/onnx.md", "exec"), names)
        else:
            assert [main(shlex.split(line, comments=True)[1:]) for line in source.splitlines()] == [0, 0]
    assert {path.name for path in tmp_path.glob("*.onnx")} == {"digits.onnx", "model.onnx", "gate.onnx"}
    said = capsys.readouterr().out
    assert re.search(r"runs/my/model.onnx  \d+ kB\nONNX Runtime's outputs on random inputs are ampkit's", said)
