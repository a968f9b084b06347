"""Worker processes: the batches of threads, bit for bit; errors, deaths and ends that leave nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from data import asked_elsewhere
from data.asked_elsewhere import Noted

from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.core import random
from ampkit.data.augment import AugmentedImages
from ampkit.utils.data import DataLoader

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform == "win32", reason="about signals")]

IMAGES = np.random.RandomState(0).randint(0, 256, (22, 3, 8, 8)).astype(np.uint8)
AUGMENTED = AugmentedImages(IMAGES, np.arange(22), crop=2, flip=True, cutout=3, seed=5)


def loader(count, dataset=AUGMENTED, batch_size=4, **words):
    words = {"multiprocessing_context": "forkserver", **words} if count else {}
    return DataLoader(dataset, batch_size, shuffle=True, generator=random.Stream(3), num_workers=count, **words)


def bytes_of(batches):
    return [tuple(part.numpy().tobytes() for part in batch) for batch in batches]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and is not yet collected counts as dead.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_processes_give_the_batches_of_no_workers_bit_for_bit_epoch_after_epoch_and_from_any_place_on():
    expected = [bytes_of(batches) for alone in [loader(0)] for batches in (alone, alone)]
    kept = loader(2, persistent_workers=True)
    assert [bytes_of(kept) for _ in range(2)] == expected
    cut = loader(0)
    source = iter(cut)
    for _ in range(2):
        next(source)
    kept.load_state_dict(cut.state_dict())
    assert bytes_of(kept) == expected[0][2:]


def test_persistent_processes_stay_from_epoch_to_epoch_and_are_called_with_their_number():
    loaded = loader(1, Noted(4), batch_size=1, persistent_workers=True, worker_init_fn=asked_elsewhere.note)
    first = next(iter(loaded))  # of an epoch that is left
    epochs = [{(int(pid), int(number)) for _, pid, number in loaded} for _ in range(2)]
    assert epochs == [{(int(first[1]), 0)}] * 2
    assert int(first[1]) != os.getpid()


def test_an_error_in_a_process_comes_out_where_its_batch_would_have():
    loaded = DataLoader(Noted(fails=5), 2, num_workers=1, multiprocessing_context="forkserver")
    source = iter(loaded)
    assert [next(source)[0].numpy().tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="item 5"):
        next(source)


def test_a_process_that_dies_is_one_clear_error():
    with pytest.raises(StateError, match="DataLoader: needs workers that stay alive, got one that ended on its own\nh"):
        list(DataLoader(Noted(dies=5), 2, num_workers=1, multiprocessing_context="forkserver"))


def test_a_batch_that_is_late_is_one_clear_error():
    with pytest.raises(StateError, match=r"needs a batch within timeout=0.01 s, got none by then"):
        list(DataLoader(Noted(2, seconds=0.2), 1, num_workers=1, timeout=0.01))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "'fork', 'spawn' or 'forkserver', got 'thread'"),
        ({"multiprocessing_context": "spawn"}, "num_workers from 1 for a multiprocessing_context, got 0"),
    ],
)
def test_kinds_of_processes_that_do_not_work_are_refused(words, message):
    with pytest.raises(ArgumentError, match=message):
        DataLoader(Noted(), **words)


def test_fork_gives_threads_which_need_nothing_pickled():
    here = os.getpid()
    for context in ("fork", multiprocessing.get_context("fork")):
        loader = DataLoader(Noted(), 2, num_workers=2, multiprocessing_context=context, persistent_workers=True,
                            collate_fn=lambda items: os.getpid())  # fmt: skip
        assert [set(loader), set(loader)] == [{here}, {here}]
    with pytest.raises(DTypeError, match="needs multiprocessing_context as a word or a context, got int"):
        DataLoader(Noted(), num_workers=1, multiprocessing_context=1)


def test_what_cannot_be_pickled_is_refused_with_the_cure():
    words = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": lambda items: items}
    with pytest.raises(ArgumentError, match="needs a dataset that can be pickled for processes"):
        next(iter(DataLoader(Noted(), **words)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell of processes")
@pytest.mark.parametrize(("context", "number"), [("spawn", signal.SIGKILL), ("forkserver", signal.SIGINT)])
def test_no_process_outlives_the_one_that_started_it(context, number):
    command = [sys.executable, asked_elsewhere.__file__, context]
    words = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **words) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert pids and all(map(alive, pids))
        # As the terminal sends Ctrl-C: to all of the group.
        os.kill(process.pid, number) if number == signal.SIGKILL else os.killpg(process.pid, number)
        process.wait(30)
        late = time.monotonic() + 10
        while any(map(alive, pids)) and time.monotonic() < late:
            time.sleep(0.01)
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left
        trouble = process.stderr.read()
    assert trouble.count("Traceback") <= 1, trouble  # its own KeyboardInterrupt, and none of its workers
