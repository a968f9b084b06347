"""Ranges of a run: a row per sampled step in ranges.jsonl, the same after a crash, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cuda_on_cpu import emulator

from ampkit import cli
from ampkit.config import load
from ampkit.run.loggers.ranges_log import RangesLog
from ampkit.run.loop import Run, StepRow, fit
from ampkit.run.metrics_log import ResumePoint

RECIPE = str(Path(__file__).parents[2] / "recipes/digits_mlp.toml")
SHORT = ["train.epochs=", "train.steps=10", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]"]
SHORT += ["train.threads=1", "train.checkpoint_every=4", "train.log_every=3", "amp.dtype=float16"]


@pytest.fixture
def train(capsys, monkeypatch, tmp_path):
    """Trains in a run directory -> its rows of ranges and of metrics, without the seconds."""
    monkeypatch.chdir(tmp_path)

    def run(name, *more):
        status = cli.main(["train", RECIPE, *SHORT, "--run-dir", name, *more])
        assert (status, capsys.readouterr().err) == (0, "")
        ranges, metrics = (rows(Path(name, f"{file}.jsonl")) for file in ("ranges", "metrics"))
        return ranges, [
            {key: value for key, value in row.items() if key not in ("seconds", "memory")} for row in metrics
        ]

    return run


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None


def test_a_run_writes_a_row_of_ranges_for_each_sampled_step_and_trains_as_without(train):
    ranges, metrics = train("on", "debug.ranges_every=4")
    assert [row["step"] for row in ranges] == [1, 4, 8]
    assert {"activation", "gradient", "parameter", "parameter gradient"} == {r["of"] for r in ranges[0]["ranges"]}
    assert {r["scale"] for row in ranges for r in row["ranges"] if "gradient" in r["of"]} == {65536.0}
    assert all(update["changed"] for row in ranges for update in row["updates"])
    assert train("off") == (None, metrics)


@pytest.mark.parametrize("at", [1, 3, 6, 9])
def test_a_run_that_is_killed_and_resumed_writes_the_rows_of_one_that_is_not(train, monkeypatch, at):
    want = train("whole", "debug.ranges_every=2")
    step = Run._step

    def killed(self, number):
        if number == at + 1:
            raise ZeroDivisionError
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_step", killed)
        with pytest.raises(ZeroDivisionError):
            train("killed", "debug.ranges_every=2")
    with Path("killed/ranges.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "ran')
    assert train("killed", "debug.ranges_every=2", "--resume") == want


def test_training_ends_with_what_the_ranges_recommend(train, capsys):
    assert cli.main(["train", RECIPE, *SHORT, "--run-dir", "run", "debug.ranges_every=4", "amp.init_scale=0.0625"]) == 0
    advice = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- ")]
    assert advice and advice[0].startswith("- gradients of ") and "in float16 at scale 0.0625" in advice[0]


def test_the_interval_may_change_when_a_run_is_resumed(train):
    train("run", "train.steps=5", "debug.ranges_every=2")
    ranges, _ = train("run", "debug.ranges_every=5", "--resume")
    assert [row["step"] for row in ranges] == [1, 2, 4, 10]


@pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))
def test_sampled_steps_run_eagerly_between_launches_of_a_recorded_one(gpu):
    words = [*SHORT, "train.device=cuda", "data.batch_size=16", "train.eval_batches=1"]
    found = []
    for more in (["train.compile=true"], ["debug.ranges_every=3"], ["debug.ranges_every=3", "train.compile=true"]):
        run = fit(load(RECIPE, [*words, *more]))
        found.append(([row.loss for row in run if isinstance(row, StepRow)], run.ranges))
    (losses, _), *sampled = found
    assert all(each == losses for each, _ in sampled)
    eager, recorded = (ranges.samples for _, ranges in sampled)
    assert [sample.step for sample in recorded] == [1, 3, 6, 9]
    assert [sample.row() for sample in recorded] == [sample.row() for sample in eager]


def test_a_negative_interval_is_refused(capsys):
    assert cli.main(["train", RECIPE, "debug.ranges_every=-1"]) == 2
    assert "debug.ranges_every: needs" in capsys.readouterr().err


def test_the_ranges_of_a_resumed_run_are_those_of_all_its_steps(tmp_path):
    def trained(name, *more, resume=False):
        run = fit(load(RECIPE, [*SHORT, "debug.ranges_every=2", *more]), tmp_path / name / "checkpoints", resume)
        after = ResumePoint(run.done, run.evaluated) if resume else None
        (tmp_path / name).mkdir(exist_ok=True)
        with RangesLog(tmp_path / name / "ranges.jsonl", run.ranges, after) as log:
            for _ in run:
                log.write()
        assert not log.notices
        return run

    whole = trained("whole")
    trained("parts", "train.steps=4")
    parts = trained("parts", resume=True)
    assert parts.resumed is not None
    assert parts.ranges.recommendations() == whole.ranges.recommendations()
    assert [r.count for r in parts.ranges.ranges()] == [r.count for r in whole.ranges.ranges()]


def test_rows_that_are_none_are_left_out_of_the_recommendations_and_said(tmp_path):
    path = tmp_path / "ranges.jsonl"
    path.write_text('{"step": 1, "ranges": [{"of": "gradient"}], "updates": []}\n{"step": 2, "ranges": 7}\n')
    run = fit(load(RECIPE, [*SHORT, "debug.ranges_every=2"]))
    with RangesLog(path, run.ranges, ResumePoint(2, 0)) as log:
        assert log.notices == [f"{path}: 2 rows cannot be read, so the recommendations leave them out"]
    assert run.ranges.ranges() == []
