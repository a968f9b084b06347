"""Checkpoints of ranks that are threads: other numbers of ranks, whole and sharded, killed saves, damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed.test_fully_shard import make, same, shard, train, whole
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import optim
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, FileError, ShapeError, StateError
from ampkit.distributed import checkpoint
from ampkit.distributed.checkpoint import state_dict as states
from ampkit.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.no_gpu


class Run:
    """A model with an optimizer, sharded or not."""

    def __init__(self, group, sharded=True, seed_offset=0.0):
        self.group, self.model = group, make()
        for parameter in self.model.parameters():
            parameter.data = parameter.detach() + seed_offset
        self.model = shard(self.model, group) if sharded else self.model
        self.replica = self.model if sharded else DistributedDataParallel(self.model, process_group=group)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)

    def steps(self, count=3):
        optimizer = self.optimizer
        train(self.replica, self.group, count, kind=lambda params, lr: optimizer)
        return self

    def named(self):
        return {
            "model": states.get_model_state_dict(self.model),
            "optimizer": states.get_optimizer_state_dict(self.model, self.optimizer),
            "done": 3,
        }

    def save(self, path):
        checkpoint.save(self.named(), checkpoint_id=path, process_group=self.group)

    def load(self, path):
        state = {**self.named(), "done": 0}
        checkpoint.load(state, checkpoint_id=path, process_group=self.group)
        states.set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        assert state["done"] == 3
        return self

    def moments(self):
        entries = states.get_optimizer_state_dict(self.model, self.optimizer)["state"]
        return [
            np.array(v.full_tensor() if hasattr(v, "full_tensor") else v) for e in entries.values() for v in e.values()
        ]

    def all(self):
        return whole(self.model) + self.moments()


@pytest.mark.parametrize("kind", ["verbs", "objects"])
def test_a_checkpoint_of_four_ranks_is_loaded_by_others_sharded_or_not(tmp_path, kind):
    def save(group):
        run = Run(group).steps()
        if kind == "verbs":
            run.save(tmp_path)
        else:
            state = {"model": run.model, "optimizer": run.optimizer, "done": 3}
            checkpoint.save(state, checkpoint_id=tmp_path, process_group=group)
        return run.all()

    expected, *_ = on_ranks(4, save)
    names = sorted(path.name.partition(".")[2] for path in tmp_path.iterdir())
    assert names == ["json", *(f"rank{rank:05d}.safetensors" for rank in range(4))]

    def load(group, sharded):
        run = Run(group, sharded, 1.0)
        if kind == "verbs":
            run.load(tmp_path)
        else:
            state = {"model": run.model, "optimizer": run.optimizer, "done": 0}
            checkpoint.load(state, checkpoint_id=tmp_path, process_group=group)
            assert state["done"] == 3
        return run.all()

    for size, sharded in ((1, False), (2, True), (3, True), (2, False)):
        for found in on_ranks(size, lambda g: load(g, sharded)):  # noqa: B023
            assert same(found, expected), (size, sharded)


def test_a_checkpoint_of_data_parallelism_is_loaded_by_sharded_ranks_and_training_goes_on(tmp_path):
    def plain(group):
        run = Run(group, sharded=False).steps()
        run.save(tmp_path)
        return run.steps(2).all()

    expected, *_ = on_ranks(2, plain)
    for found in on_ranks(2, lambda group: Run(group, True, 1.0).load(tmp_path).steps(2).all()):
        assert same(found, expected)


def test_whole_states_load_into_sharded_modules_and_optimizers():
    whole_state = states.StateDictOptions(full_state_dict=True)

    def program(group):
        run, plain = Run(group).steps(), Run(group, False)
        model, optimizer = states.get_state_dict(run.model, run.optimizer, options=whole_state)
        for other in (plain, Run(group, True, 1.0)):
            states.set_state_dict(other.model, other.optimizer, model_state_dict=model, optim_state_dict=optimizer)
            assert same(other.all(), run.all())
        return [tuple(value.shape) for value in model.values()]

    first, second = on_ranks(2, program)
    assert first == second == [tuple(p.shape) for p in make().parameters()]


def test_saving_in_the_background_keeps_the_values_of_its_call(tmp_path):
    def program(group):
        run = Run(group).steps(1)
        expected = run.all()
        future = checkpoint.async_save(run.named(), checkpoint_id=tmp_path, process_group=group)
        run.steps(1)
        future.result(20)
        group.transport.barrier(ampkit.distributed.transport.Call("saved", ""))
        return same(Run(group, True, 1.0).load(tmp_path).all(), expected)

    assert on_ranks(2, program) == [True, True]


def test_a_save_replaces_the_one_before_and_deletes_its_files(tmp_path):
    def program(group):
        run = Run(group).steps(1)
        run.save(tmp_path)
        run.steps(1).save(tmp_path)
        return run.all(), Run(group, True, 1.0).load(tmp_path).all()

    for expected, found in on_ranks(2, program):
        assert same(expected, found)
    assert len(list(tmp_path.iterdir())) == 3


KILLED = """
import os, random, signal, sys, time
import numpy as np
import ampkit
from ampkit.distributed import checkpoint
random.seed(0)
state, number = {"w": ampkit.zeros(64, 64), "n": 0}, 0
checkpoint.save(state, checkpoint_id=sys.argv[1])
for _ in range(20):
    told, tell = os.pipe()
    child = os.fork()
    while child == 0:
        number += 1
        saved = {"w": ampkit.tensor(np.full((64, 64), number, np.float32)), "n": number}
        checkpoint.save(saved, checkpoint_id=sys.argv[1])
        os.write(tell, bytes(8) + number.to_bytes(8, "little"))
    first = os.read(told, 16)
    time.sleep(0.06 * random.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(tell)
    done = max(np.frombuffer(first + os.read(told, 1 << 16), np.int64))
    checkpoint.load(state, checkpoint_id=sys.argv[1])
    assert state["n"] >= done and state["n"] >= number, (state["n"], done, number)
    assert (state["w"].numpy() == state["n"]).all()
    number = state["n"]
checkpoint.save(state, checkpoint_id=sys.argv[1])
print("saves:", number)
"""


def test_a_save_that_is_killed_loses_nothing(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(ampkit.__file__).parents[1])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert int(found.stdout.split()[-1]) >= 20
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def edited(path, change):
    index = json.loads((path / "index.json").read_text())
    change(index["pieces"]["model.head.weight"])
    (path / "index.json").write_text(json.dumps(index))


def grow(pieces):
    pieces[1][2][0] -= 1


DAMAGE = {
    "a file is gone": (lambda path: next(path.glob("*rank00001*")).unlink(), FileError, "needs the file .*rank00001"),
    "no index": (lambda path: (path / "index.json").unlink(), FileError, "a folder with a complete save"),
    "half an index": (lambda path: (path / "index.json").write_text('{"format": 1'), FileError, "a whole index"),
    "a piece less": (lambda path: edited(path, lambda p: p.pop()), FileError, "every row of 'model.head.weight' once"),
    "rows twice": (lambda path: edited(path, grow), FileError, "got rows 2 to 3 twice"),
    "half a file": (lambda path: os.truncate(next(path.glob("*rank00000*")), 900), FileError, "safetensors file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_error_on_every_rank_and_changes_nothing(tmp_path, damage):
    action, error, said = DAMAGE[damage]
    on_ranks(2, lambda group: Run(group).save(tmp_path))
    action(tmp_path)

    def program(group):
        run = Run(group, True, 1.0)
        before = run.all()
        with pytest.raises(error, match=said) as caught:
            run.load(tmp_path)
        return same(run.all(), before), str(caught.value).replace("rank 0: ", "")

    found = on_ranks(2, program)
    assert all(unchanged for unchanged, _ in found)
    assert len({text for _, text in found}) == 1


def test_checkpoints_of_the_format_before_which_had_rows_alone_are_loaded(tmp_path):
    expected, _ = on_ranks(2, lambda group: (run := Run(group).steps(1)).save(tmp_path) or run.all())
    index = json.loads((tmp_path / "index.json").read_text())
    index["format"] = 1
    for pieces in index["pieces"].values():
        for piece in pieces:
            dtype, shape, begin, end, crc, file, _ = piece
            piece[:] = [dtype, shape, *((begin[0], end[0]) if shape else (0, 1)), crc, file]
    (tmp_path / "index.json").write_text(json.dumps(index))
    for found in on_ranks(3, lambda group: Run(group, True, 1.0).load(tmp_path).all()):
        assert same(found, expected)


def test_bytes_that_changed_are_found(tmp_path):
    on_ranks(1, lambda group: Run(group).save(tmp_path))
    (path,) = tmp_path.glob("*rank00000*")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileError, match="as saved, got others"):
        on_ranks(1, lambda group: Run(group).load(tmp_path))


def test_ranks_that_load_different_checkpoints_and_other_models_are_refused_on_every_rank(tmp_path):
    on_ranks(2, lambda group: [Run(group).save(tmp_path / name) for name in "ab"])

    def two(group):
        with pytest.raises(FileError, match=r"needs the same checkpoint on all ranks, got .* on rank 0, .* on rank 1"):
            Run(group).load(tmp_path / "ab"[group.rank()])
        checkpoint.save({"w": ampkit.zeros(5, 10)}, checkpoint_id=tmp_path / "c", process_group=group)
        with pytest.raises(ShapeError, match=r"'w' \[3\], got \[5, 10\]"):
            checkpoint.load({"w": ampkit.zeros(3)}, checkpoint_id=tmp_path / "c", process_group=group)
        with pytest.raises(StateError, match="needs 'v' in .*, got a checkpoint without it"):
            checkpoint.load({"v": ampkit.zeros(3)}, checkpoint_id=tmp_path / "c", process_group=group)
        one = {"v": object() if group.rank() else 1.0}
        with pytest.raises(DTypeError, match="rank 1: save: needs tensors" if group.rank() == 0 else "object"):
            checkpoint.save(one, checkpoint_id=tmp_path / "d", process_group=group)
        return True

    assert on_ranks(2, two) == [True, True]


def test_what_is_no_folder_or_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="a folder as checkpoint_id"):
        checkpoint.save({"a": 1})
    with pytest.raises(ArgumentError, match="a dict as state_dict"):
        checkpoint.save([1], checkpoint_id=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises((OSError, AmpkitError), match="file"):
        checkpoint.save({"a": 1}, checkpoint_id=tmp_path / "file")


def test_nested_values_come_back_as_they_were(tmp_path):
    state = {"a": {"b": (1, 2.5), "c": [ampkit.ones(2), {"d": None}]}, "groups": [{"betas": (0.9, 0.99), 3: "x"}]}
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(tmp_path))
    target = {"a": {"b": None, "c": [ampkit.zeros(2), None]}, "groups": []}
    checkpoint.load(target, storage_reader=checkpoint.FileSystemReader(tmp_path))
    assert (target["a"]["c"][0].numpy() == 1).all()
    assert (target["a"]["b"], target["a"]["c"][1], target["groups"]) == ((1, 2.5), {"d": None}, state["groups"])
