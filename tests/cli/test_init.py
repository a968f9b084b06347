"""`ampkit init`: the recipe that it writes trains, explains every key and replaces no file."""

from __future__ import annotations

import io
import re

import pytest

from ampkit import cli, config

FAST = ["train.steps=2", "train.epochs=", "train.eval_every=", "train.eval_batches=1"]


@pytest.fixture
def init(tmp_path, monkeypatch, capsys):
    """Runs `ampkit init` with the lines that a user types -> (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, typed=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        status = cli.main(["init", *arguments])
        return (status, *capsys.readouterr())

    return run


@pytest.mark.cpu
@pytest.mark.parametrize("answers", [[], ["data.name=text", "data.path=notes.txt", "model.n_layer=1", "train.steps=2"]])
def test_what_it_proposes_trains(init, tmp_path, answers):
    (tmp_path / "notes.txt").write_text("a line of text\n" * 300)
    assert init("new", "--yes", *answers)[0] == 0
    assert cli.main(["train", "new.toml", *FAST, "--run-dir", "run"]) == 0


def test_it_asks_what_is_open_and_takes_what_is_typed(init):
    status, out, _ = init("new", "train.steps=30", typed="text\ngpt\n\nfloat16\n")
    assert status == 0 and "The bytes of a text file" in out and "ampkit train new.toml" in out
    recipe = config.load("new.toml")
    assert (recipe.model.name, recipe.model.vocab_size, recipe.amp.dtype) == ("gpt", 256, "float16")
    assert (recipe.train.steps, recipe.schedule.warmup) == (30, 3)


def test_every_key_stands_there_with_its_default_and_its_meaning(init, tmp_path):
    init("new", "--yes")
    text = (tmp_path / "new.toml").read_text()
    assert 'dtype = "bfloat16"  # what autocast runs products in; "float32" turns it off' in text
    assert "# seed = 0  # of the random numbers: first weights, the order of the data, dropout (integer" in text
    (tmp_path / "all.toml").write_text(re.sub(r"^# (\w+ = (?! ))", r"\1", text, flags=re.MULTILINE))
    assert config.load("all.toml") == config.load("new.toml")


def test_it_asks_for_what_the_data_need(init):
    status, _, err = init("new", "--yes", "data.name=table", "data.files=rows.csv")
    assert status == 2
    needs = "ampkit: init: needs data.target, the column to learn (text), got no answer\n"
    assert err == needs + "help: give it as data.target=...\n"


def test_it_replaces_no_file(init, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    status, _, err = init("mine", "--yes")
    assert status == 2 and "'mine.toml', which exists" in err
    assert (tmp_path / "mine.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "typed", "says"),
    [
        (["--yes", "data.name=digit"], "", "got 'digit'\nhelp: did you mean 'digits'?"),
        (["--yes", "model.name=gpt"], "", "model.name: needs one of"),
        (["--yes", "train.stps=3"], "", "train.stps: needs a known key"),
        (["--yes", "nonsense"], "", "key=value"),
        ([], "", "needs an answer, got the end of the input"),
        ([], "digits\nmlp\nfloat8\n", "amp.dtype: needs one of bfloat16, float16, float32, got 'float8'"),
    ],
)
def test_a_wrong_answer_is_one_line_and_writes_nothing(init, tmp_path, arguments, typed, says):
    status, _, err = init("new", *arguments, typed=typed)
    assert status == 2 and says in err
    assert not list(tmp_path.iterdir())
