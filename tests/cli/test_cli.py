"""The command line: what it prints, where it writes, how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from ampkit import Tensor, cli
from ampkit.backends.cpu import threads
from ampkit.base import atomic_file
from ampkit.base.errors import FileError, NonFiniteError
from ampkit.cli.display import comparison, findings
from ampkit.cli.train import Signals
from ampkit.config.keys import keys
from ampkit.config.sections import SECTIONS
from ampkit.core.op import ops
from ampkit.run.bench import Result
from ampkit.run.checkpoint import Checkpoints
from ampkit.run.doctor import Finding
from ampkit.run.metrics_log import MetricsLog
from ampkit.run.run_dir import RunDirectory

RECIPES = Path(__file__).parents[2] / "recipes"
MLP = str(RECIPES / "digits_mlp.toml")
SHORT = ["train.epochs=", "train.steps=4", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]"]
if threads.blas_kernels():  # one thread is the faster one where other processes want the other CPUs
    SHORT.append("train.threads=1")


@pytest.fixture
def ampkit(capsys, monkeypatch, tmp_path):
    """Runs a command in an empty directory -> (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        status = cli.main(arguments)
        return status, *capsys.readouterr()

    return run


# train


def test_train_leaves_a_run_directory_and_a_summary(ampkit, tmp_path):
    status, out, err = ampkit("train", MLP, *SHORT, "amp.dtype=float16")
    assert (status, err) == (0, "")
    assert out.startswith("weights     float32\nmasters     the weights themselves\nmoments     ")
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.name.startswith("digits_mlp-float16-")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 4, 4]
    assert "accuracy" in rows[-1]
    assert "mlp on digits, float16" in out
    assert "loss scale" in out


def test_piped_there_is_one_plain_line_per_row(ampkit):
    _, out, _ = ampkit("train", MLP, *SHORT, "train.log_every=2")
    lines = [line for line in out.splitlines() if line.startswith("float32  step")]
    assert [line.split()[2] for line in lines] == ["1/4", "2/4", "4/4", "4/4"]
    assert "\x1b" not in out


def test_the_config_of_a_run_runs_again_with_the_same_numbers(ampkit, tmp_path):
    ampkit("train", MLP, *SHORT, "--run-dir", "first")
    ampkit("train", "first/config.toml", "--run-dir", "second")
    first, second = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("first", "second"))
    assert [json.loads(row)["loss"] for row in first[:-1]] == [json.loads(row)["loss"] for row in second[:-1]]
    assert first[-1] == second[-1]


def test_overrides_may_stand_behind_options(ampkit, tmp_path):
    status, _, _ = ampkit("train", MLP, *SHORT, "--run-dir", "here", "train.steps=2")
    assert status == 0
    assert "steps = 2" in (tmp_path / "here" / "config.toml").read_text()


@pytest.mark.no_gpu
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "nowhere.toml"], "nowhere.toml"),
        (["train", MLP, "amp.dtipe=float16"], "did you mean"),
        (["train", MLP, "amp.dtype=float9"], "one of float32, bfloat16, float16"),
        (["train", MLP, "--device", "cuda"], "cuda: needs"),
        (["train", MLP, "--device", "tpu"], "train.device"),
        (["train", MLP, "--devise", "cpu"], "unknown argument '--devise'"),
        (["train", MLP, "--run-dri", "x"], "did you mean '--run-dir'?"),
        (["train", MLP, "--run-dir", "a\0b"], "argument --run-dir: needs a path of UTF-8 without a zero byte, got 'a"),
        (["train", MLP, "--run-dir", "\udcff"], "argument --run-dir: needs a path of UTF-8"),
        (["train", MLP, "--run-dir", "x" * 5000], "argument --run-dir: needs a path of UTF-8"),
        (["train", MLP, "--run-dir", "x" * 500], "run directory: needs one that can be written"),
        (["train", "a\0b"], "argument RECIPE: needs a path"),
        (["train", "/dev/zero"], "recipe: needs a regular file, got '/dev/zero', which is a device"),
        (["bench", MLP, "--json", "a\0b"], "argument --json: needs a path"),
        (["train", MLP, "x=" + "[" * 100_000], "nested too deeply"),
        (["train", MLP, "train.steps=" + "9" * 30], "train.steps: needs at most"),
        (["train", MLP, "data.batch_size=" + "9" * 30], "data.batch_size: needs at most"),
        (
            ["train", str(RECIPES / "text_gpt.toml"), "data.path=/dev/zero"],
            "text: needs a regular file, got '/dev/zero'",
        ),
        (["train", MLP, "data={name='parquet', files='a**b', inputs=['x'], target='y', classes=10}"], "a**b"),
        (["train", MLP, "nonsense"], "key=value"),
        (["train", str(RECIPES / "text_gpt.toml"), "data.path=nowhere"], "'nowhere'"),
        (["train"], "RECIPE"),
        (["fly"], "unknown command 'fly'"),
        (["tarin", MLP], "unknown command 'tarin'\nhelp: did you mean 'train'?"),
        (["ops", "--device", "gpu"], "unknown --device 'gpu'"),
        (["keys", "mdoel"], "unknown section or key 'mdoel'\nhelp: did you mean 'model'?"),
        (["keys", "lrr"], "unknown section or key 'lrr'\nhelp: did you mean 'lr'?"),
        (["--verison"], "unknown argument '--verison'\nhelp: did you mean '--version'?"),
        (["--nonsense"], "unknown argument '--nonsense'\nhelp: `ampkit --help` lists what there is"),
        (["train", "nowhere"], "help: recipes that come with ampkit: cifar10_resnet18, digits_cnn"),
        (["train", MLP, "digits_cnn"], "got 'digits_cnn'\nhelp: one recipe at a time"),
        (["train", MLP, "train.steps"], "got 'train.steps'\nhelp: write train.steps=VALUE"),
        (["train", MLP, "lr"], "help: write optimizer.lr=VALUE"),
        (["evaluate", "nowhere"], "got 'nowhere', which is none\nhelp: `ampkit train` names it at its end"),
        (["evaluate", "nowhere", "--weights", "worst"], "unknown --weights 'worst'\nhelp: one of last, best"),
        (["completion", "tcsh"], "unknown shell 'tcsh'\nhelp: one of bash, zsh, fish"),
        (["generate", "nowhere", "--count", "many"], "argument --count: needs a whole number, got 'many'"),
        (["plan", MLP, "--policy", "float15"], "Policy: needs float16 or bfloat16, got 'float15'\nhelp: did you mean"),
        (["launch", "-n", "2", "nowhere.py"], "launch: needs a script that is there, got 'nowhere.py'"),
        (["train", "--resum"], "are required: RECIPE\nhelp: did you mean '--resume'?"),
        (["train", "--digits"], "are required: RECIPE\nhelp: `ampkit train --help` lists"),
        (["train", MLP, "optimizer=sgd"], "needs a table, got 'sgd'\nhelp: write optimizer.name=sgd"),
        (["train", MLP, "amp=float16"], "needs a table, got 'float16'\nhelp: write amp.<key>=..."),
        (["train", MLP, "train.device=gpu"], "got 'gpu'\nhelp: train.device=cuda is a GPU"),
        (["bench", MLP, "--device", "tpu"], "train.device: needs cpu, cuda or cuda:<index>, got 'tpu'"),
        ([], "command"),
        (["doctor", "x=1"], "unknown argument 'x=1'"),
        (["ops", "--policy", "float9"], "float9"),
        (["bench", MLP, "--json", "no/such/place.json"], "--json: needs a file that can be written"),
        (["bench", MLP, "--report", "no/such/place.html"], "--report: needs a file that can be written"),
        (["bench", MLP, "--against", "no such run"], "report: needs the directory of a run, got 'no such run'"),
    ],
)
def test_a_mistake_of_the_user_is_one_clear_line_and_status_2(ampkit, tmp_path, arguments, says):
    status, out, err = ampkit(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    first, *more = err.splitlines()
    assert first.startswith("ampkit: ")
    assert len(more) <= 1
    assert all(line.startswith("help: ") for line in more)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["full", "file/run"])
def test_a_run_directory_that_cannot_be_used_stops_the_run_before_it_starts(ampkit, tmp_path, name):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    (tmp_path / "file").touch()
    status, out, err = ampkit("train", MLP, *SHORT, "--run-dir", name)
    assert (status, out) == (2, "")
    assert err.startswith("ampkit: run directory: needs")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (['optimizer={name="sgd", lr=1e30}'], "needs a finite loss"),
        (["amp.dtype=float16", f"amp.init_scale={2.0**97}", f"amp.min_scale={2.0**96}"], "scale"),
    ],
)
def test_a_run_that_fails_ends_with_status_1_and_its_metrics_on_disk(ampkit, tmp_path, overrides, says):
    status, _, err = ampkit("train", MLP, *SHORT, "train.steps=20", *overrides, "--run-dir", "run")
    assert status == 1
    assert err.startswith("ampkit: failed: ")
    assert says in err
    assert "metrics are in run/metrics.jsonl" in err
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert "Traceback" not in err


def started(*arguments: str, command: str = "train") -> subprocess.Popen[str]:
    """A command in a process, and a group of processes, of its own."""
    line = [sys.executable, "-m", "ampkit", command, MLP, *SHORT, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    deaf = signal.signal(signal.SIGINT, signal.default_int_handler)  # as what a shell puts in the background is
    try:
        return subprocess.Popen(line, cwd=RECIPES.parent, start_new_session=True, **pipes)
    finally:
        signal.signal(signal.SIGINT, deaf)


def test_ctrl_c_ends_a_bench_and_the_process_it_started():
    process = started("train.steps=1000000", command="bench")
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "ampkit: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path):
    process = started("train.steps=100", "--run-dir", str(tmp_path / "run"))
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == 0
    assert lines(tmp_path / "run")[-1]["step"] == 100


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    flush = write


def test_streams_that_cannot_be_written_change_nothing(tmp_path, monkeypatch):
    for name, stream in (("gone", Gone()), ("closed", None)):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        assert cli.main(["train", MLP, *SHORT, "--run-dir", str(tmp_path / name)]) == 0
        assert [row["step"] for row in lines(tmp_path / name)] == [1, 4, 4]
        assert cli.main(["train", "nowhere.toml"]) == 2


@pytest.fixture
def default_signals():
    """Python's own handlers of signals, also where the tests were started to ignore some, as by nohup."""
    defaults = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in defaults.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_with_a_checkpoint_and_its_own_status(ampkit, monkeypatch, number):
    write = MetricsLog.write

    def signalled(log, row):
        write(log, row)
        if row.step == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(MetricsLog, "write", signalled)
    before = signal.getsignal(number)
    status, _, err = ampkit("train", MLP, *SHORT, "train.log_every=1", "train.eval_every=", "--run-dir", "run")
    assert (status, signal.getsignal(number)) == (128 + number, before)
    assert err.startswith("ampkit: interrupted after step 2 of 4; metrics are in run/metrics.jsonl\nhelp: to resume: ")
    assert Checkpoints("run/checkpoints").last().step == 2
    assert not Path("run/ampkit.lock").exists()


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_at_once(ampkit, monkeypatch, number):
    def signalled(log, row):
        for _ in range(2):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(MetricsLog, "write", signalled)
    status, _, err = ampkit("train", MLP, *SHORT, "--run-dir", "run")
    assert (status, err.count("\n") <= 2) == (128 + number, True)
    assert not Path("run").exists()


def test_a_signal_before_the_first_step_ends_the_start_and_leaves_nothing(ampkit, monkeypatch):
    monkeypatch.setattr("ampkit.cli.train.fit", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    status, _, err = ampkit("train", MLP, *SHORT, "--run-dir", "run")
    assert (status, err) == (143, "ampkit: interrupted\n")
    assert not Path("run").exists()


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_that_fails_before_its_first_row_can_be_tried_again(ampkit, monkeypatch):
    def diverged(*_):
        raise NonFiniteError("step 1", "a finite loss", "nan")

    assert ampkit("train", MLP, *SHORT, "schedule.warmup=9", "--run-dir", "run")[0] == 2
    with monkeypatch.context() as patched:
        patched.setattr("ampkit.run.trainer.loop.step", diverged)
        status, _, err = ampkit("train", MLP, *SHORT, "--run-dir", "run")
    assert (status, err) == (1, "ampkit: failed: step 1: needs a finite loss, got nan\n")
    assert not Path("run").exists()
    assert ampkit("train", MLP, *SHORT, "--run-dir", "run")[0] == 0


def full_after(rows):
    """A disk that takes so many rows."""
    taken, write = [], os.write

    def limited(handle, data):
        if data.startswith(b'{"step"'):
            taken.append(data)
            if len(taken) > rows:
                raise OSError(28, "No space left on device")
        return write(handle, data)

    return limited


def test_a_disk_that_is_full_is_one_line_and_the_run_goes_on_without_loss(ampkit, monkeypatch, tmp_path):
    command = ["train", MLP, *SHORT, "train.log_every=1", "train.steps=9", "train.checkpoint_every=2"]
    ampkit(*command, "--run-dir", "whole")
    for at in (0, 1, 5):
        with monkeypatch.context() as patched:
            patched.setattr("ampkit.run.metrics_log.os.write", full_after(at))
            status, _, err = ampkit(*command, "--run-dir", f"run{at}")
        assert (status, err.count("\n") <= 2) == (1, True)
        assert "metrics: needs a file that can be written, got" in err
        assert Path(f"run{at}").exists() == (at > 0)
        assert ("to resume: ampkit train" in err) == (at > 0)
        assert ("help: no checkpoint was saved before it; " in err) == (at == 1)
        assert ampkit(*command, "--resume", "--run-dir", f"run{at}")[0] == 0
        assert lines(tmp_path / f"run{at}") == lines(tmp_path / "whole")
        assert equal(ending(tmp_path / f"run{at}"), ending(tmp_path / "whole"))


def test_a_disk_that_is_too_full_for_a_checkpoint_leaves_the_one_before(ampkit, monkeypatch, tmp_path):
    command = ["train", MLP, *SHORT, "train.log_every=1", "train.steps=6", "train.checkpoint_every=2"]
    write = atomic_file.write

    def full(where, path, data):
        if "step-00000004" in str(path):
            raise FileError(where, "a file that can be written", "No space left on device")
        write(where, path, data)

    with monkeypatch.context() as patched:
        patched.setattr("ampkit.run.checkpoint.write", full)
        status, _, err = ampkit(*command, "--run-dir", "run")
    assert (status, err.count("\n")) == (1, 2)
    assert err.startswith("ampkit: failed: checkpoint: needs a file that can be written, got No space left")
    status, out, _ = ampkit(*command, "--resume", "--run-dir", "run")
    assert status == 0
    assert "resuming after step 2 of 6, from run/checkpoints/step-00000002.json" in out
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2, 3, 4, 5, 6, 6]


# going on

PIECES = ["train.checkpoint_every=1", "train.log_every=1", "data.batch_size=500", "amp.dtype=float16"]


def lines(directory):
    """The rows of a run, less the clock."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in ("seconds", "memory")} for row in rows]


def ending(directory):
    """The weights, moments and all else that the last checkpoint holds, less the clock."""
    state = Checkpoints(directory / "checkpoints").last().state
    return {**state, "counts": {**state["counts"], "seconds": 0}}


def equal(a, b):
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, (list, tuple)) else a == b


def test_a_run_killed_again_and_again_ends_like_one_that_never_was(ampkit, tmp_path):
    options = [*PIECES, "model.dropout=0.2", "train.accumulate=2", "train.steps=100", "train.eval_every=40"]
    run, metrics, kills = tmp_path / "run", tmp_path / "run" / "metrics.jsonl", 0
    for rows in (10, 60):
        process = started(*options, "--resume", "--run-dir", str(run))
        while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > rows):
            time.sleep(0.005)
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills
    assert ampkit("train", MLP, *SHORT, *options, "--resume", "--run-dir", "run")[0] == 0
    assert ampkit("train", MLP, *SHORT, *options, "--run-dir", "whole")[0] == 0
    assert lines(run) == lines(tmp_path / "whole")
    assert equal(ending(run), ending(tmp_path / "whole"))


def test_resume_without_a_checkpoint_begins_and_on_a_finished_run_says_so(ampkit, tmp_path):
    resume = ["train", MLP, *SHORT, "--resume", "--run-dir", "run"]
    status, out, err = ampkit(*resume)
    assert (status, err) == (0, "")
    assert "going on" not in out
    assert "run holds no checkpoint to resume from: starting at step 1\n" in out
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    status, out, err = ampkit(*resume)
    assert (status, out, err) == (0, "run: all 4 steps are done; train.steps=8 would continue\n", "")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    status, out, err = ampkit(*resume, "train.steps=6")
    assert (status, err) == (0, "")
    assert "resuming after step 4 of 6" in out
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 4, 4, 6, 6]
    assert "steps = 6" in (tmp_path / "run" / "config.toml").read_text()


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(ampkit, tmp_path):
    ampkit("train", MLP, *SHORT, "--run-dir", "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = lines(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    status, out, err = ampkit("train", MLP, *SHORT, "--resume", "--run-dir", "run")
    assert (status, err) == (0, "")
    assert "the rows of an earlier start are kept in metrics.jsonl.old-1" in out
    assert lines(tmp_path / "run") == before


@pytest.mark.parametrize("steps", [4, 8])
def test_one_bad_byte_in_the_metrics_of_a_run_is_said_and_loses_no_other_row(ampkit, tmp_path, steps):
    ampkit("train", MLP, *SHORT, "train.log_every=1", "--run-dir", "run")
    path = Path("run/metrics.jsonl")
    good = path.read_bytes()
    path.write_bytes(good.replace(b'{"step": 2', b'{"step" 2 ', 1))
    more = [f"train.steps={steps}", "train.log_every=1"]
    status, out, _ = ampkit("train", MLP, *SHORT, *more, "--resume", "--run-dir", "run")
    assert status == 0
    assert "run/metrics.jsonl: damaged: 1 of 5 lines cannot be read; 4 rows are kept" in out
    if steps > 4:
        assert [row["step"] for row in lines(tmp_path / "run")] == [1, 3, 4, 4, 5, 6, 7, 8, 8]
        assert b'{"step" 2' in Path("run/metrics.jsonl.damaged-1").read_bytes()


def test_two_runs_in_one_directory_at_once_are_refused(ampkit):
    with RunDirectory("run"):
        for more in ([], ["--resume"]):
            status, out, err = ampkit("train", MLP, *SHORT, *more, "--run-dir", "run")
            assert (status, out) == (2, "")
            assert err.startswith("ampkit: run directory: needs 'run' for itself, got process ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--resume"], "--resume: needs the run directory to resume, got none"),
        (["--resume", "--run-dir", "run", "model.hidden=[8]"], "got model.hidden=[8]"),
        (["--resume", "--run-dir", "begun", "model.hidden=[8]"], "got model.hidden=[8]"),
        (["--resume", "--run-dir", "other"], "needs one that holds a run, or a new one"),
        (["--resume", "--run-dir", "broken"], "none of 1 checkpoints can be used"),
    ],
)
def test_what_cannot_go_on_is_one_clear_line_and_nothing_is_touched(ampkit, tmp_path, arguments, says):
    ampkit("train", MLP, *SHORT, "train.steps=1", "--run-dir", "run")
    shutil.copytree("run", "begun")
    shutil.rmtree("begun/checkpoints")
    shutil.copytree("run", "broken")
    for path in Path("broken/checkpoints").glob("*.json"):
        path.write_text("")
    Path("other").mkdir()
    Path("other/notes").write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, out, err = ampkit("train", MLP, *SHORT, *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert err.count("\n") <= 2
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_damaged_checkpoint_is_passed_over_and_said_so(ampkit, tmp_path):
    command = ["train", MLP, *SHORT, "train.eval_every=2", "--run-dir", "run"]
    ampkit(*command)
    before = lines(tmp_path / "run")
    next((tmp_path / "run" / "checkpoints").glob("step-00000004-*")).write_text("")
    status, out, _ = ampkit(*command, "--resume")
    assert status == 0
    assert "skipped a damaged checkpoint: " in out
    assert "of 0 bytes instead of" in out
    assert "resuming after step 2 of 4" in out
    assert lines(tmp_path / "run") == before


def test_ctrl_c_ends_a_run_with_its_metrics_on_disk_and_one_line_whose_command_goes_on(ampkit, tmp_path):
    long = [
        "train.steps=1000000",
        "train.log_every=1",
        "train.eval_every=1000000",
        "--run-dir",
        str(tmp_path / "a run"),
    ]
    process, metrics = started(*long), tmp_path / "a run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 1):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (130, 2)
    assert err.startswith("ampkit: interrupted after step ")
    assert str(metrics) in err
    step = int(err.split("after step ")[1].split()[0])
    assert [row["step"] for row in lines(tmp_path / "a run")] == list(range(1, step + 1))
    program, *words = shlex.split(err.split("help: to resume: ")[1])
    assert program == "ampkit"
    status, out, _ = ampkit(*words, f"train.steps={step + 2}")
    assert status == 0
    assert f"resuming after step {step} of {step + 2}" in out
    assert [row["step"] for row in lines(tmp_path / "a run")] == [*range(1, step + 3), step + 2]


# bench, ops, doctor


def test_bench_sets_the_three_precisions_side_by_side(ampkit, tmp_path):
    ampkit("train", MLP, *SHORT, "model.hidden=[8]", "--run-dir", "earlier")
    status, out, err = ampkit(
        "bench", MLP, *SHORT, "--json", "results.json", "--report", "page.html", "--against", "earlier"
    )
    assert (status, err) == (0, "")
    assert "earlier: its model.hidden is [8], here " in out
    assert [line for line in out.splitlines() if line.startswith("float16 is ") and "earlier" in line]
    assert "the steps of earlier have no ledger; `ampkit report --measure earlier` makes it" in out
    shown = (tmp_path / "page.html").read_text()
    assert '"name":"earlier"' in shown
    assert '"name":"float16"' in shown
    assert '"mean_iou":' not in shown  # an empty chart
    header = next(line for line in out.splitlines() if "bfloat16" in line and "float32" in line)
    assert header.index("float32") < header.index("bfloat16") < header.rindex("float16")
    for word in ("time per step", "peak memory", "accuracy", "validation loss", "loss scale", "skipped", "whole time"):
        assert word in out
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["dtype"] for result in results] == ["float32", "bfloat16", "float16"]
    assert {result["error"] for result in results} == {None}


def test_bench_says_in_words_what_is_faster_and_what_needs_less():
    results = [Result("float32", 1.0, run_bytes=100), Result("bfloat16", 1.5, run_bytes=50), Result("float16", 0.5)]
    with Console(record=True, width=200, file=io.StringIO()) as console:
        console.print(comparison("title", results))
    text = console.export_text()
    assert "1.50 x slower" in text
    assert "2.00 x faster" in text
    assert "2.00 x less" in text
    assert "on the GPU" not in text and "peak memory of the process" not in text  # which none of them has


def test_keys_lists_type_default_and_meaning(ampkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    status, out, err = ampkit("keys", "mlp")
    assert (status, err) == (0, "")
    row = next(line for line in out.splitlines() if "model.dropout" in line)
    assert [cell.strip() for cell in row.split("│")[2:5]] == [
        "number, at least 0, below 1",
        "0.0",
        "the probability of a zero behind each activation",
    ]
    assert "optimizer.lr" not in out


def test_keys_lists_every_section_and_every_key_has_a_meaning(ampkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    _, out, _ = ampkit("keys", "--all")
    for name in ("train.steps", "amp.dtype", "schedule.warmup", "optimizer.betas", "data.folder", "model.n_embd"):
        assert name in out
    for kinds in SECTIONS.values():
        assert not [(name, key.name) for name, kind in kinds.items() for key in keys(kind) if not key.meaning]
    weights = {
        name: key.meaning for name, kind in SECTIONS["model"].items() for key in keys(kind) if key.name == "weights"
    }
    assert "Hugging Face's GPT-2" in weights["gpt"] and "torchvision's VGG" in weights["vgg16"]
    assert all("layout" in meaning or "own names" in meaning for meaning in weights.values())


def test_keys_of_a_section_says_how_a_key_is_set(ampkit):
    for word, key in (("schedule", "schedule.warmup"), ("muon", "optimizer.lr")):
        _, out, _ = ampkit("keys", word)
        assert out.splitlines()[-1].startswith(f"to set a key: `ampkit train RECIPE {key}=VALUE`, or `")


def test_keys_alone_is_an_overview_of_a_screen(ampkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = ampkit("keys")
    assert len(out.splitlines()) < 24
    assert all(f"[{section}]" in out for section in SECTIONS)


@pytest.mark.parametrize("word", ["lr", "learning_rate", "optimizer.lr"])
def test_keys_of_a_key_lists_its_defaults_by_kind(ampkit, monkeypatch, word):
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = ampkit("keys", word)
    row = next(line for line in out.splitlines() if "adamw" in line)
    assert "0.001" in row and "learning rate" in row and "sgd" in row


def test_a_reader_that_has_seen_enough_ends_a_command_quietly():
    writes = "import ampkit.cli as c, os; c._console = lambda: [os.write(1, b'x') for _ in iter(int, 1)]"
    command = [sys.executable, "-c", f"{writes}; raise SystemExit(c.main(['doctor']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as found:
        assert found.stdout.read(1) == b"x"
        found.stdout.close()
        assert (found.wait(), found.stderr.read()) == (141, b"")


def test_a_finished_run_says_how_much_it_takes_on_disk(ampkit, tmp_path):
    _, out, _ = ampkit("train", MLP, *SHORT, "--run-dir", "run")
    number, unit = re.search(r"run directory +│ run, ([\d.]+) ([kM]B)", out).groups()
    stored = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert float(number) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(stored, rel=0.1)


def test_bench_goes_on_when_one_precision_fails_and_ends_with_status_1(ampkit):
    floor = [f"amp.init_scale={2.0**97}", f"amp.min_scale={2.0**96}"]
    status, out, err = ampkit("bench", MLP, *SHORT, *floor, "train.steps=20")
    assert status == 1
    assert "float16 failed: " in err
    assert "float32" in out


def test_ops_lists_every_op_with_its_dtype_under_the_policy(ampkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = ampkit("ops", "--policy", "bfloat16")
    assert status == 0
    listed = {line.split()[1] for line in out.splitlines() if line.startswith("│")}
    assert set(ops) <= listed
    assert 'Policy("bfloat16")' in out
    row = next(line for line in out.splitlines() if line.startswith("│ linear "))
    assert "low" in row
    assert "bfloat16" in row


def test_ops_names_the_kernels_of_a_gpu_also_where_there_is_none(ampkit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = ampkit("ops", "--device", "cuda")
    assert status == 0
    assert "gelu_cuda, reference" in next(line for line in out.splitlines() if line.startswith("│ gelu "))


def test_doctor_never_fails(ampkit):
    status, out, err = ampkit("doctor")
    assert (status, err) == (0, "")
    assert "Python" in out
    assert "CuPy" in out


def test_doctor_prints_commands_with_their_brackets():
    with Console(record=True, width=200, file=io.StringIO()) as console:
        console.print(findings([Finding("CuPy", "missing", "none[0]", "pip install 'ampkit[cuda13]'")]))
    assert "none[0]" in console.export_text(clear=False)
    assert "pip install 'ampkit[cuda13]'" in console.export_text()


def test_version_and_help_end_with_status_0(ampkit):
    for arguments in (["--version"], ["--help"], ["train", "--help"]):
        with pytest.raises(SystemExit) as end:
            ampkit(*arguments)
        assert end.value.code == 0


@pytest.mark.parametrize("command", ["train", "bench"])
def test_a_command_without_its_recipe_names_the_recipe_alone(ampkit, command):
    status, _, err = ampkit(command)
    assert status == 2
    assert err.startswith("ampkit: the following arguments are required: RECIPE\nhelp: ")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["--epochs", "3"], "keys of a recipe are written train.epochs=3"),
        (["--amp.dtype=float16"], "keys of a recipe are written amp.dtype=float16"),
        (["--learning-rate", "3e-4"], "keys of a recipe are written optimizer.lr=3e-4"),
        (["--fp16"], "keys of a recipe are written amp.dtype=..."),
        (["--run_dir", "x"], "did you mean '--run-dir'?"),
    ],
)
def test_an_option_of_another_tool_is_answered_with_the_key_of_a_recipe(words, cure, capsys):
    assert cli.main(["train", "digits_cnn", *words]) == 2
    assert capsys.readouterr().err.endswith(f"help: {cure}\n")


def test_a_command_without_a_recipe_says_that_it_takes_no_keys(capsys):
    assert cli.main(["evaluate", "runs/digits", "data.files=test.csv"]) == 2
    assert "help: `ampkit evaluate` takes no keys of a recipe; " in capsys.readouterr().err


def test_summary_lists_layers_and_the_memory_of_each_precision(ampkit):
    status, out, _ = ampkit("summary", MLP)
    assert status == 0
    for word in ("Linear", "forward of a batch", "kept for backward", "bfloat16", "an update of 64 samples"):
        assert word in out
    assert ampkit("summary", MLP, "train.device=cuda")[0] == 2
