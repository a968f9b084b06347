"""Loggers: each holds the numbers of metrics.jsonl, and one that fails costs a line and not the training."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import ampkit
from ampkit import cli
from ampkit.run.loggers import LOGGERS, Loggers, Start
from ampkit.run.loop import EvalRow, StepRow

MLP = str(Path(__file__).parents[2] / "recipes" / "digits_mlp.toml")
SHORT = ["train.epochs=", "train.steps=4", "train.log_every=1", "train.eval_every=2", "model.hidden=[16]"]
SHORT += ['schedule={name="constant"}', "train.threads=1"]


def trained(path: Path, name: str, *more: str) -> dict[int, dict[str, float]]:
    """Train with a logger; the values of metrics.jsonl by step, those of an evaluation beside its step's."""
    assert cli.main(["train", MLP, *SHORT, f'train.loggers=["{name}"]', *more, "--run-dir", str(path)]) == 0
    found: dict[int, dict[str, float]] = {}
    for line in (path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("step"), {}).update(row)
    return found


def close(found: dict, wanted: dict) -> bool:
    """Whether both hold the same numbers, to the float32 that some formats keep."""
    assert found.keys() == wanted.keys()
    return all(
        found[step].keys() == wanted[step].keys()
        and all(math.isclose(found[step][name], wanted[step][name], rel_tol=1e-6) for name in wanted[step])
        for step in wanted
    )


def test_the_csv_file_holds_the_numbers_of_the_run(tmp_path):
    wanted = trained(tmp_path / "run", "csv")
    found: dict[int, dict[str, float]] = {}
    with (tmp_path / "run" / "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            step = int(row.pop("step"))
            found.setdefault(step, {}).update({name: float(value) for name, value in row.items() if value})
    assert close(found, wanted)


def test_a_resumed_run_continues_the_csv_file_without_a_line_twice(tmp_path):
    trained(tmp_path / "run", "csv", "train.steps=2")
    trained(tmp_path / "run", "csv", "--resume")
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "1", "2", "2", "3", "4", "4"]


_KILLED = """
import os, signal, sys
import ampkit
from ampkit import nn, ops, optim

class Kill(ampkit.Callback):
    def on_train_batch_end(self, trainer, outputs, batch, batch_idx):
        if batch_idx == 8 and sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

ampkit.manual_seed(0)
model = nn.Linear(3, 1)
data = [ampkit.randn(4, 3) for _ in range(5)]
saved = ampkit.ModelCheckpoint(every_n_train_steps=3)
options = {"logger": "csv", "callbacks": [saved, Kill()], "log_every_n_steps": 1, "enable_model_summary": False}
optimizer = optim.SGD(model.parameters(), lr=0.1)
trainer = ampkit.Trainer(
    model, optimizer, lambda model, x: model(x).square().mean(), max_steps=10, default_root_dir=sys.argv[1], **options
)
trainer.fit(data, data, ckpt_path="last")
"""


def test_a_killed_run_that_resumes_has_the_same_rows_in_the_csv_file_and_in_metrics_jsonl(tmp_path, monkeypatch):
    command = [sys.executable, "-c", _KILLED, str(tmp_path), "killed"]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    assert "\n6," not in (tmp_path / "metrics.csv").read_text()  # the thread that writes it had not come to these rows
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "resumed"])
    exec(_KILLED, {})
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        lines = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    assert lines == logged
    assert [row["step"] for row in lines] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]


def test_tensorboard_s_own_reader_reads_the_event_files(tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    wanted = trained(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found: dict[int, dict[str, float]] = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            found.setdefault(event.step, {})[name] = event.value
    assert close(found, wanted)
    assert b"digits" in events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0]


def test_tensorboard_drops_the_steps_that_a_resumed_run_writes_again(tmp_path):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for done, rows in ((0, [1, 2, 3]), (2, [3, 4])):
        with Loggers(["tensorboard"], Start(tmp_path, {}, done), pytest.fail) as loggers:
            for step in rows:
                loggers.write(StepRow(step, 10.0 * done + step, 0.1, 1.0, 0, 1.0, 1.0))
        time.sleep(1)  # files are read in the order of their names, which begin with the second
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1), (2, 2), (3, 23), (4, 24)]


def test_mlflow_holds_the_numbers_of_the_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wanted = trained(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "run" / "mlflow").as_uri())
    run = (tmp_path / "run" / "mlflow-run.txt").read_text().strip()
    found: dict[int, dict[str, float]] = {}
    for name in client.get_run(run).data.metrics:
        for metric in client.get_metric_history(run, name):
            found.setdefault(metric.step, {})[name] = metric.value
    assert close(found, wanted)
    assert client.get_run(run).data.params["data.name"] == "digits"


def test_weights_and_biases_offline_holds_the_numbers_of_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    wanted = trained(tmp_path / "run", "wandb")
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    found: dict[int, dict[str, float]] = {}
    for data in leveldb_records(path.read_bytes()[7:]):  # after a header
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        values = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
        if "step" in values:
            step = values.pop("step")
            found.setdefault(step, {}).update({name: v for name, v in values.items() if not name.startswith("_")})
    assert close(found, wanted)


def leveldb_records(data: bytes, block: int = 32768):
    """The records of LevelDB's log format: checksum (4 bytes), length (2), type (1; 4 ends a record in pieces)."""
    at, parts, shift = 0, b"", 7
    while at + 7 <= len(data):
        left = block - (at + shift) % block
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def test_trackio_holds_the_numbers_of_the_run(tmp_path, monkeypatch):
    pytest.importorskip("trackio", reason="pip install trackio")
    import subprocess

    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "kept")}
    arguments = ["train", MLP, *SHORT, 'train.loggers=["trackio"]', "--run-dir", str(tmp_path / "run")]
    subprocess.run([sys.executable, "-m", "ampkit", *arguments], env=environment, check=True, timeout=120)
    read = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        "print(json.dumps(S.get_logs('ampkit', 'run')))"
    )
    out = subprocess.run([sys.executable, "-c", read], env=environment, check=True, capture_output=True, text=True)
    wanted: dict[int, dict[str, float]] = {}
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        wanted.setdefault(row.pop("step"), {}).update(row)
    found: dict[int, dict[str, float]] = {}
    for row in json.loads(out.stdout.splitlines()[-1]):
        names = {name for values in wanted.values() for name in values}
        found.setdefault(row["step"], {}).update({name: row[name] for name in names & row.keys()})
    assert close(found, wanted)


# one that fails


class Failing:
    """A logger that fails at the given call of `write`."""

    def __init__(self, at: int):
        self.at, self.rows = at, []

    def write(self, rows):
        self.rows += rows
        if len(self.rows) >= self.at:
            raise OSError("no space left\non device")

    def close(self):
        self.rows.append("closed")


def test_a_logger_that_fails_is_left_out_with_one_line_and_the_others_go_on(tmp_path):
    made, notices = {"csv": Failing(1), "wandb": Failing(99)}, []
    with Loggers(["csv", "wandb"], Start(tmp_path, {}, 0), notices.append, lambda name, start: made[name]) as loggers:
        for step in (1, 2):
            loggers.write(StepRow(step, 1.0, 0.1, 1.0, 0, math.nan, 1.0))
        loggers.write(EvalRow(2, 0.5))
    assert notices == ["logger csv is left out from here on: OSError: no space left; metrics.jsonl has every row"]
    assert [row if row == "closed" else row.step for row in made["wandb"].rows] == [1, 2, 2, "closed"]
    assert "grad_norm" not in made["wandb"].rows[0].values  # JSON and others have no NaN
    assert "closed" not in made["csv"].rows


def test_a_logger_without_its_package_is_a_line_with_the_cure_and_training_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert len(trained(tmp_path / "run", "wandb")) == 4
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("logger")]
    assert line.startswith("logger wandb is left out from here on: ModuleNotFoundError: ")
    assert line.endswith("; pip install wandb; metrics.jsonl has every row")


def test_an_unknown_logger_is_refused_with_those_there_are(tmp_path, capsys):
    assert cli.main(["train", MLP, 'train.loggers=["tensorbord"]', "--run-dir", str(tmp_path / "run")]) == 2
    assert "tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_every_logger_has_a_module_and_a_recipe_key():
    from ampkit.config.sections import Train

    assert str(Train.model_fields["loggers"].annotation).count("'") == 2 * len(LOGGERS)


class Row(NamedTuple):
    step: int
    accuracy: float


@pytest.mark.parametrize(
    ("row", "value"),
    [({"step": 1, "accuracy": 0.5}, "0.5"), (Row(1, 0.25), "0.25"),
     ({"step": np.int64(1), "accuracy": np.float32(2)}, "2.0"),
     ({"step": 1, "accuracy": ampkit.tensor(3.0)}, "3.0"), (SimpleNamespace(step=1, accuracy=4), "4.0")],
)  # fmt: skip
def test_the_row_of_an_own_loop_is_written(tmp_path, row, value):
    with Loggers(["csv"], Start(tmp_path, {}, 0), pytest.fail) as loggers:
        loggers.write(row)
    (written,) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert (written["step"], written["accuracy"]) == ("1", value)


def test_a_metric_of_one_s_own_gets_a_column_also_of_a_resumed_run(tmp_path):
    for done in (0, 2):
        with Loggers(["csv"], Start(tmp_path, {}, done), pytest.fail) as loggers:
            for step in (done + 1, done + 2):
                loggers.write({"step": step, "loss": 1.0} | ({"perplexity": 2.5} if step % 2 == 0 else {}))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"], row["perplexity"]) for row in rows] == [
        ("1", "1.0", ""), ("2", "1.0", "2.5"), ("3", "1.0", ""), ("4", "1.0", "2.5")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [{"loss": 1.0}, {"step": "one"}, {"step": 1.5}, {"step": math.nan}, {"step": 1, "loss": "low"}, {"step": 1, 2: 3.0},
     {"step": 1, "loss": {"a": 1.0}}, {"step": 1, "loss": ampkit.ones(2)}, {"step": 1, "loss": 1j}, 3, None, [1, 2]],
)  # fmt: skip
def test_a_bad_row_raises_at_the_call(tmp_path, row):
    with Loggers(["csv"], Start(tmp_path, {}, 0), pytest.fail) as loggers:
        with pytest.raises(ampkit.ArgumentError, match=r"loggers.write: needs (a row of )?numbers by name"):
            loggers.write(row)
        loggers.write({"step": 1, "loss": 1.0})
    assert "\n1,1.0," in (tmp_path / "metrics.csv").read_text().replace("\r", "")
