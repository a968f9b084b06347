"""Runs on an object store: fsspec's in memory and on the disk, full ones, damaged ones, and two runs at a time."""

from __future__ import annotations

import errno
import json
import re
import sys
from pathlib import Path

import pytest

from ampkit import cli
from ampkit.base.errors import ConfigError, FileError
from ampkit.base.file_lock import LOCK_NAME, HeldError
from ampkit.run.checkpoint import Checkpoints
from ampkit.run.trainer import object_store
from ampkit.run.trainer.object_store import Store, StoredRunDirectory, StoreLock, fetched, is_url

pytest.importorskip("fsspec", reason="needs the extra store")
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

pytestmark = pytest.mark.cpu
MLP = str(Path(__file__).parents[3] / "recipes" / "digits_mlp.toml")
SHORT = ["train.epochs=", "train.eval_every=", 'schedule={name="constant"}', "model.hidden=[16]", "train.threads=1"]
SHORT += ["train.checkpoint_every=2", "train.log_every=1"]


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path, monkeypatch):
    """The URL of a store; the time in which a lock is abandoned is short."""
    for name, value in (("RENEWED", 0.1), ("ABANDONED", 0.6), ("LOOK", 0.05)):
        monkeypatch.setattr(object_store, name, value)
    MemoryFileSystem.store.clear()
    yield f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/store/run"
    MemoryFileSystem.store.clear()


def train(*words):
    return cli.main(["train", MLP, *SHORT, *words])


def content(url):
    """The rows and the newest checkpoint of a run, without what depends on time."""
    with fetched(url) as folder:
        return of_disk(folder)


def of_disk(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = Checkpoints(folder / "checkpoints").last()
    values = [array.tobytes() for array in arrays(last.state["model"])]
    return [{**row, "seconds": 0, "memory": 0} for row in rows], last.step, values


def arrays(model):
    return [each.numpy() for each in model.values()]


def test_a_run_that_resumes_from_a_store_ends_as_one_on_a_disk(url, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # of a table that names the directory
    for steps in (3, 6):
        assert train(f"train.steps={steps}", "--run-dir", str(tmp_path / "disk"), "--resume") == 0
    capsys.readouterr()
    assert train("train.steps=3", "--run-dir", url) == 0
    out = capsys.readouterr().out
    assert url in out and "ampkit-run-" not in out
    assert train("train.steps=6", "--run-dir", url, "--resume") == 0
    assert "resuming after step 3 of 6" in capsys.readouterr().out
    assert content(url) == of_disk(tmp_path / "disk")
    names = Store(url).names()
    assert [name for name in names if name.endswith(".json")] == [f"checkpoints/step-0000000{n}.json" for n in (4, 6)]
    assert LOCK_NAME not in names and sum(name.endswith(".safetensors") for name in names) == 2
    assert train("train.steps=6", "--run-dir", url, "--resume") == 0
    assert f"{url}: all 6 steps are done" in capsys.readouterr().out


def test_a_store_that_holds_a_run_is_left_alone(url, capsys):
    assert train("train.steps=2", "--run-dir", url) == 0
    before = content(url)
    assert train("train.steps=2", "--run-dir", url) == 2
    assert f"needs a new or empty one, got {url!r}, which holds a run" in capsys.readouterr().err
    assert content(url) == before


def test_a_damaged_checkpoint_of_a_store_is_passed_over(url, capsys):
    assert train("train.steps=4", "--run-dir", url) == 0
    store = Store(url)
    name = next(name for name in store.names() if "step-00000004-" in name)
    store.write(name, store.read(name)[:-9])
    assert train("train.steps=4", "--run-dir", url, "--resume") == 0
    out = capsys.readouterr().out
    assert re.search(r"skipped a damaged checkpoint: .*step-00000004.json: .* bytes instead of", out)
    assert "resuming after step 2 of 4" in out


@pytest.mark.parametrize("after", [3, 8, 11])
def test_a_full_store_ends_the_run_in_one_line_and_loses_nothing(url, capsys, monkeypatch, after):
    kind = MemoryFileSystem if url.startswith("memory") else LocalFileSystem
    write, count = kind.pipe_file, [0]

    def full(self, path, data, *given, **named):
        if not path.endswith(LOCK_NAME):
            count[0] += 1
            if count[0] > after:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, path, data, *given, **named)

    monkeypatch.setattr(kind, "pipe_file", full)
    assert train("train.steps=8", "--run-dir", url) == 1
    err = capsys.readouterr().err
    assert f"needs an object store that can be written, got {url}: No space left on device" in err
    assert f"--resume --run-dir {url}" in err
    copy = Path(re.search(r"The files of the run are in (\S+)", err)[1])
    saved = of_disk(copy)[1]
    monkeypatch.setattr(kind, "pipe_file", write)
    assert train("train.steps=8", "--run-dir", url, "--resume") == 0
    resumed = re.search(r"resuming after step (\d)", capsys.readouterr().out)
    assert content(url)[1] == 8
    assert saved == (2 if resumed is None else int(resumed[1]) + 2)  # the store had the checkpoint before, if any


# locks


def test_two_runs_never_write_to_one_store(url):
    with StoredRunDirectory(url):
        for resume in (False, True):
            with pytest.raises(HeldError, match=r"for itself, got process \d+ on .*, which writes there"):
                StoredRunDirectory(url, resume).__enter__()


def test_the_lock_of_a_run_that_was_killed_is_taken_over(url):
    Store(url).write(LOCK_NAME, b"process 1 on another, token, 7\n")
    with pytest.raises(HeldError, match="got process 1 on another, which writes there\nhelp: wait"):
        StoredRunDirectory(url).__enter__()
    with StoredRunDirectory(url, resume=True):
        assert b"process 1 on another" not in Store(url).read(LOCK_NAME)
    assert Store(url).names() == []


def test_a_run_whose_store_was_taken_over_uploads_nothing(url):
    lock = StoreLock(Store(url), False)
    Store(url).write(LOCK_NAME, b"process 2 on another, other, 1\n")
    with pytest.raises(HeldError, match="got another run, which has taken it over"):
        lock.check()
    lock.release()
    assert Store(url).read(LOCK_NAME) == b"process 2 on another, other, 1\n"


# URLs


@pytest.mark.parametrize(
    ("given", "said"),
    [("nowhere://a/b", "needs a URL that fsspec knows, such as s3://bucket/run, got Protocol not known: nowhere")],
)
def test_a_url_that_cannot_be_used_is_one_line(given, said, capsys):
    assert train("train.steps=2", "--run-dir", given) == 2
    assert said in capsys.readouterr().err


def test_what_is_not_installed_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match="needs fsspec and its driver for the URL, got Install s3fs"):
        Store("s3://bucket/run")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"needs fsspec and its driver for the URL, got .*fsspec"):
        Store("memory://run")


def test_names_that_leave_the_folder_are_refused(url, tmp_path, monkeypatch):
    store = Store(url)
    monkeypatch.setattr(store, "names", lambda: ["../outside"])
    with pytest.raises(FileError, match="needs files below it"):
        store.fetch(tmp_path / "folder")


def test_only_what_has_a_protocol_is_a_url():
    assert [is_url(each) for each in ("s3://a", "runs/a", "a:b", None, Path("a"))] == [True, False, False, False, False]
