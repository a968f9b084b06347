"""`ampkit evaluate`, `predict` and `generate`: what a finished run's last line names works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from ampkit.cli import main

RECIPES = Path(__file__).parents[2] / "recipes"
SHORT = ["train.epochs=", "train.steps=4", "train.eval_every=2"]
GPT = ["model.n_layer=1", "model.n_embd=16", "model.block_size=8", "train.eval_batches=2", "schedule.warmup=1"]


def printed(capsys, *words):
    """The output of a command that must end well."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_the_end_of_a_run_names_the_command_that_uses_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my text.txt").write_text("abcabc" * 200)
    setting = [*SHORT, *GPT, "data.path=my text.txt"]
    said = printed(capsys, "train", str(RECIPES / "text_gpt.toml"), *setting, "--run-dir", "my run")
    command, in_python = re.search(r"to use the model: (.*), or ampkit.load_run\((.*)\) in Python", said).groups()
    assert (shlex.split(command)[:3], in_python) == (["ampkit", "generate", "my run"], "'my run'")
    text = printed(capsys, *shlex.split(command)[1:], "--count", "20")
    assert text.startswith("...")
    assert len(text.encode()) >= 24  # the prompt, 20 bytes of which some may be no UTF-8, and a line feed
    assert text == printed(capsys, *shlex.split(command)[1:], "--count", "20")
    assert main(["predict", "my run", "my text.txt"]) == 2
    assert "help: ampkit generate RUN --prompt TEXT" in capsys.readouterr().err
    scores = printed(capsys, "evaluate", "my run")
    loss = re.search(r"validation loss +│ +([\d.]+) nats", said)[1]
    assert f"{loss} nats" in scores
    assert "of step 4" in scores
    assert "of step" in printed(capsys, "evaluate", "my run", "--weights", "best")


def test_images_are_classified(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = printed(capsys, "train", str(RECIPES / "digits_mlp.toml"), *SHORT, "--run-dir", "run")
    assert "to use the model: ampkit predict run IMAGE, or ampkit.load_run('run') in Python" in said
    for name in ("a", "b"):
        np.save(f"{name}.npy", np.zeros((8, 8), np.uint8))
    lines = printed(capsys, "predict", "run", "a.npy", "b.npy", "--top", "2").splitlines()
    assert [re.fullmatch(r"[ab].npy: \d [\d.]+%, \d [\d.]+%", line) is not None for line in lines] == [True, True]
    assert lines[0][2:] == lines[1][2:]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "none"], "load_run: needs the directory of a run, got 'none', which is none"),
        (["predict", "run", "a.png"], "a.png"),
        (["predict", "run", "a.npy", "--top", "0"], "--top: needs a number from 1, got 0"),
        (
            ["generate", "run"],
            "generate: needs a language model of text, got mlp, of images\nhelp: ampkit predict RUN IMAGE; in Python,",
        ),
        (["evaluate", "run", "--weights", "first"], "unknown --weights 'first'"),
        (["evaluate", "run", "--device", "tpu"], "tpu"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    printed(capsys, "train", str(RECIPES / "digits_mlp.toml"), *SHORT, "--run-dir", "run")
    np.save("a.npy", np.zeros((8, 8), np.uint8))
    assert main(words) != 0
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
