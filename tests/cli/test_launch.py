"""`ampkit launch`: ranks under supervision."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.interrupted_runs import ranks_below
from distributed.test_collectives import mpi

from ampkit.cli import launch as launch_command
from ampkit.cli import main
from ampkit_cli.arguments import parser

pytestmark = pytest.mark.no_gpu
ROOT = Path(__file__).parents[2]
RECIPE = str(ROOT / "recipes/digits_mlp.toml")


@pytest.fixture
def launch(tmp_path):
    """Starts `ampkit launch` with some arguments, in an empty directory; ends what a failed test leaves."""
    started = []

    def start(*words):
        command = [sys.executable, "-m", "ampkit", "launch", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        heeded = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731  # also where pytest runs by nohup
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, preexec_fn=heeded, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            for rank in ranks_below(process.pid):
                os.kill(rank, signal.SIGKILL)
            process.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "0", "train", RECIPE], "-n from 1 and --max-restarts from 0, got -n 0 --max-restarts 0"),
        (["-n", "2"], "`train RECIPE.toml` or a SCRIPT.py, got nothing"),
        (["-n", "2", "bench", RECIPE], "`train RECIPE.toml` or a SCRIPT.py, got 'bench'"),
        (["-n", "2", "train", RECIPE, "train.foo=1"], "train.foo: needs a known key"),
        (["-n", "2", "train", RECIPE, "--foo"], "unknown argument '--foo'"),
        (["-n", "2", "--sockets", "--mpiexec", "mpiexec", "train", RECIPE], "needs --mpiexec or --sockets, got both"),
        (["-n", "2", "--mpiexec", "no-mpiexec -f hosts", "train", RECIPE], "needs no-mpiexec, got no such program"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_a_rank_starts(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    launcher = [] if "--mpiexec" in words else ["--mpiexec", sys.executable]
    assert main(["launch", *launcher, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_script_is_started_again_until_it_ends_well_and_hears_how_often(launch, tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "count = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "print('start', count, sys.argv[1:], os.environ['OMP_NUM_THREADS'], flush=True)\n"
        "sys.exit(0 if count == 2 else 7)\n"
    )
    out, err = (process := launch("--sockets", "-n", "1", "--max-restarts", "2", "script.py", "--lr", "3")).communicate(
        timeout=300
    )
    assert process.returncode == 0, err
    cores = str(len(os.sched_getaffinity(0)))
    threads = os.environ.get("OMP_NUM_THREADS", cores)
    assert [line for line in out.splitlines() if line.startswith("start")] == [
        f"start {count} ['--lr', '3'] {threads}" for count in range(3)
    ]
    assert "a rank ended with status 7: restart 2 of 2" in out
    process = launch("--sockets", "-n", "1", "--max-restarts", "1", "script.py")
    process.communicate(timeout=300)
    assert process.returncode == 7


def test_a_rank_without_mpi_that_is_killed_ends_the_others_and_all_start_again(launch, tmp_path):
    (tmp_path / "script.py").write_text(
        "import os, signal, ampkit\n"
        "import ampkit.distributed as dist\n"
        "dist.init_process_group()\n"
        "if dist.get_rank() == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(total := ampkit.ones(3))\n"
        "print(total.tolist(), flush=True)\n"
    )
    out, err = (process := launch("--sockets", "-n", "2", "--max-restarts", "1", "script.py")).communicate(timeout=300)
    assert process.returncode == 0, err
    assert "ampkit: rank 1 was ended by SIGKILL" in err
    assert re.search(r"all_reduce\(.*script.py:6: .*got the end of its program on rank 1", err)
    assert "restart 1 of 1" in out
    assert out.count("[2.0, 2.0, 2.0]") == 2


@pytest.mark.parametrize(("status", "stopped"), [(137, False), (9, False), (130, True), (1, False), (0, False)])
def test_a_killed_run_ends_with_the_command_that_resumes_it(status, stopped, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch_command, "_supervise", lambda *given: (status, stopped))
    words = ["--sockets", "-n", "2", "train", RECIPE, "train.seed=3"]
    assert main(["launch", *words, "--run-dir", "a run"]) == status
    out = capsys.readouterr().out.replace("\n", " ")
    wanted = f"to resume: ampkit launch {' '.join(words)} --run-dir 'a run' --resume"
    assert (wanted in out) == (status in (137, 9)) == ("to resume" in out)
    main(["launch", "--sockets", "-n", "2", "script.py"])
    assert "to resume" not in capsys.readouterr().out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux ends a process with its parent")
def test_ranks_end_with_a_launch_that_is_killed(launch, tmp_path):
    (tmp_path / "script.py").write_text("import os, time; open(f'{os.getpid()}.pid', 'w'); time.sleep(60)\n")
    process = launch("--sockets", "-n", "2", "script.py")
    while process.poll() is None and len(ranks := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2:
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while (left := [each for each in ranks if Path(f"/proc/{each}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.01)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left


@mpi
def test_a_run_whose_rank_is_killed_resumes_and_ends_as_if_it_had_not_been(launch, tmp_path):
    setting = ["train.epochs=", "train.steps=300", "train.log_every=20", "train.checkpoint_every=20"]
    process = launch("-n", "2", "--max-restarts", "1", "train", RECIPE, *setting, "--run-dir", "killed")
    rows = tmp_path / "killed/metrics.jsonl"
    while process.poll() is None and not (rows.exists() and rows.read_text().count("\n") > 4):
        time.sleep(0.01)
    victim = ranks_below(process.pid)[1]
    (rank,) = re.findall(r"\0PMI_RANK=(\d+)\0", Path(f"/proc/{victim}/environ").read_text())
    os.kill(victim, signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"ampkit: rank {rank} was ended by SIGKILL" in err
    assert "restart 1 of 1" in out
    assert "resuming after step" in out
    whole = launch("-n", "2", "train", RECIPE, *setting, "--run-dir", "whole")
    whole.communicate(timeout=300)
    values = [
        [
            json.loads(line) | {"seconds": 0, "memory": 0}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("killed", "whole")
    ]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("available", "words", "by"),
    [(True, [], "mpiexec"), (False, [], "launcher.py"), (True, ["--sockets"], "launcher.py"),
     (False, ["--mpiexec", "mpiexec -f hosts"], "mpiexec")],
)  # fmt: skip
def test_ranks_are_started_by_mpiexec_where_mpi_is_found(available, words, by, monkeypatch, tmp_path):
    (tmp_path / "mpiexec").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch_command, "is_mpi_available", lambda: available)
    options = parser().parse_args(["launch", "-n", "2", *words, "script.py"])
    command = launch_command._launcher(options, "2")
    assert by in [Path(word).name for word in command]
    assert command[command.index("-n") + 1] == "2"


@pytest.mark.parametrize(
    ("number", "by"),  # the launcher gets the signals as SIGINT and SIGTERM
    [
        pytest.param(signal.SIGINT, [], marks=mpi),
        (signal.SIGHUP, ["--sockets"]),
    ],
)
def test_a_signal_stops_the_ranks_with_a_checkpoint_and_starts_nothing_again(number, by, launch, tmp_path):
    setting = ["train.epochs=", "train.steps=100000"]
    process = launch(*by, "-n", "2", "--max-restarts", "3", "train", RECIPE, *setting, "--run-dir", "run")
    rows = tmp_path / "run/metrics.jsonl"
    while process.poll() is None and not (rows.exists() and rows.read_text()):
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "interrupted after step" in err and f"to resume: ampkit launch -n 2 train {RECIPE} train.epochs= " in err
    assert "restart" not in out and "to resume" not in out
    assert list((tmp_path / "run/checkpoints").glob("step-*.json"))
