"""Recipes on several ranks: they train as one process does, and stop together, with one message."""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from distributed.test_collectives import mpi, mpiexec
from distributed.thread_ranks import on_ranks

from ampkit import config
from ampkit.base.errors import FileError
from ampkit.cli import main
from ampkit.core import random
from ampkit.core.nested import tensors_in
from ampkit.run.checkpoint import Checkpoints
from ampkit.run.loop import StepRow, fit
from ampkit.run.ranks import Ranks

pytestmark = pytest.mark.no_gpu

BY_DATA = "raised by the training data, after step 3"
DETERMINISTIC = "[parallel]\ndeterministic = true"
RECIPE = """
[model]
name = "mlp"
hidden = [32]
{model}

[data]
name = "digits"
batch_size = 50

[optimizer]
name = "adamw"
lr = 1e-3

{more}

[train]
steps = 20
log_every = 1
eval_every = 10
accumulate = 2
grad_clip = 5.0
ema = 0.9
threads = 1
"""


@pytest.fixture
def recipe(tmp_path):
    def write(model="", more=""):
        path = tmp_path / "recipe.toml"
        path.write_text(RECIPE.format(model=model, more=more))
        return path

    return write


def train(ranks, directory, path, *words, fault="none"):
    found = mpiexec(ranks, "recipe_program.py", fault, str(path), *words, "--run-dir", str(directory))
    assert "Traceback" not in found.stderr, found.stderr
    return found


def rows_of(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("seconds", "memory")} for row in rows]


def need_close(found, expected, rtol):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_allclose(mine[key], value, rtol, err_msg=f"{key} of step {theirs['step']}")


@mpi
def test_ranks_train_as_one_process_does_with_parts_of_the_same_batches(recipe, tmp_path):
    path = recipe()
    assert train(2, tmp_path / "many", path).returncode == 0
    assert main(["train", str(path), "--run-dir", str(tmp_path / "one")]) == 0
    need_close(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), 2e-5)


@mpi
def test_a_model_with_synchronized_batch_norm_trains_as_on_one_process(tmp_path):
    path = str(Path(__file__).parents[2] / "recipes/digits_cnn.toml")
    words = ["train.epochs=", "train.steps=8", "train.eval_every=4", "train.log_every=1", "data.batch_size=63"]
    words += ["model.width=4", "optimizer.lr=1e-3", "parallel.sync_batchnorm=true", "train.ema=0.5"]
    assert train(2, tmp_path / "many", path, *words).returncode == 0
    assert main(["train", path, *words, "--run-dir", str(tmp_path / "one")]) == 0
    need_close(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), 1e-4)


@mpi
def test_a_run_resumes_with_another_number_of_ranks(recipe, tmp_path):
    path, directory = recipe(), tmp_path / "run"
    assert train(2, directory, path, fault="signal").returncode == 130
    assert rows_of(directory)[-1]["step"] == 7
    resumed = train(3, directory, path, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step 7 of 20" in resumed.stdout
    assert main(["train", str(path), "--run-dir", str(tmp_path / "one")]) == 0
    need_close(rows_of(directory), rows_of(tmp_path / "one"), 2e-5)


@mpi
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(recipe, tmp_path):
    path = recipe("dropout = 0.3", '[amp]\ndtype = "float16"\n\n[parallel]\nwire_dtype = "bfloat16"\nbucket_mb = 0.002')
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert train(2, whole, path).returncode == 0
    assert train(2, parted, path, fault="signal").returncode == 130
    assert train(2, parted, path, "--resume").returncode == 0
    assert rows_of(parted) == rows_of(whole)


@mpi
@pytest.mark.parametrize(("first", "second"), [(3, 2), (1, 3), (2, 1)])
def test_a_run_of_sharded_ranks_goes_on_with_another_stage(first, second, tmp_path):
    path = str(Path(__file__).parents[2] / "recipes/text_gpt.toml")
    words = [f"data.path={Path(__file__).parent}", "train.steps=10", "train.eval_every=5", "train.log_every=1"]
    words += ["model.n_layer=2", "model.n_embd=16", "model.block_size=16", "data.batch_size=6", "train.accumulate=2"]
    words += ["train.eval_batches=3", "train.ema=0.9", "train.threads=1", "optimizer.eps=1e-4", "schedule.warmup=2"]
    assert main(["train", path, *words, "--run-dir", str(tmp_path / "one")]) == 0
    directory = tmp_path / "run"
    assert train(2, directory, path, *words, f"parallel.stage={first}", fault="signal").returncode == 130
    resumed = train(3, directory, path, *words, f"parallel.stage={second}", "train.steps=10", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    need_close(rows_of(directory), rows_of(tmp_path / "one"), 2e-5)


@pytest.mark.parametrize(
    "words",
    [
        ("amp.dtype=float16", "amp.init_scale=4194304"),
        ("optimizer.name=lamb", "amp.dtype=bfloat16", "amp.parameters=low"),
        ("train.compile=true",),
    ],
)
def test_a_state_that_ranks_share_out_has_the_bits_of_one_that_each_has(words, recipe, tmp_path):
    words = [*words, "train.steps=4", "train.eval_every=2", "data.batch_size=64", "train.eval_batches=2"]

    def trained(stage, group):
        with random.drawing_from(random.Stream()):
            run = fit(config.load(recipe(), [*words, f"parallel.stage={stage}"]), tmp_path / stage, ranks=Ranks(group))
            rows = [(row.loss, row.grad_norm, row.scale) if isinstance(row, StepRow) else row for row in run]
            arenas = (arena for each in run.optimizer.param_groups for arena in each.arenas)
            held = sum(flat.nbytes for arena in arenas for flat in arena.moment_arrays())
            return rows, held, [tensor.numpy(force=True).tobytes() for tensor in run.model.state_dict().values()]

    whole, shared = (on_ranks(2, partial(trained, stage)) for stage in "01")
    assert [(rows, weights) for rows, _, weights in shared] == [(rows, weights) for rows, _, weights in whole]
    mine, theirs = (held for _, held, _ in shared)
    assert 0 < mine < whole[0][1] and mine + theirs == whole[0][1]
    first, second = (tensors_in(Checkpoints(tmp_path / stage).at(4).state) for stage in "01")
    assert [each.numpy().tobytes() for each in first] == [each.numpy().tobytes() for each in second]


@mpi
def test_an_error_of_all_ranks_is_printed_once(recipe, tmp_path):
    cases = [
        ("none", "train.foo=1", "train.foo: needs a known key"),
        ("none", "parallel.stage=2 train.compile=true", "parallel.stage: needs train.compile=false"),
        ("none", "parallel.stage=3 optimizer.name=lamb", "LAMB, whose update reads whole parameters"),
        (
            "none",
            "parallel.stage=1 optimizer.name=adamwschedulefree",
            "parallel.stage: needs an optimizer that upd",
        ),
        ("none", "parallel.data=4", "needs 2 on 2 ranks, got 4\nhelp: start it with `ampkit launch -n 4`, or"),
        ("one core", "train.threads=", "needs a core for each rank of a machine, got 2 ranks for 1 of "),
    ]
    for fault, word, said in cases:
        found = train(2, tmp_path / "run", recipe(), *word.split(), fault=fault)
        assert found.returncode == 2
        assert found.stderr.count("ampkit: ") == 1, found.stderr
        assert said in found.stderr
        assert not (tmp_path / "run").exists()


@mpi
def test_ranks_with_different_recipes_do_not_start(recipe, tmp_path):
    found = train(2, tmp_path / "run", recipe(), fault="other seed")
    assert found.returncode == 2
    assert "train.seed=0 on rank 0, 5 on rank 1" in found.stderr
    assert found.stderr.count("ampkit: ") == 1
    assert not (tmp_path / "run").exists()


@mpi
@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("sample", 1, [r"failed: rank 1: sample 7: needs a file .*\nhelp: to resume: ampkit launch -n 2 train"]),
        ("metrics", 1, [r"failed: disk: needs space", r"all_reduce\(.*got FileError: disk: needs space.* on rank 0"]),
        ("checkpoint", 1, [r"failed: disk: needs space"]),
        ("nan", 1, [r"failed: step 4, float32: needs a finite loss, got nan\non rank 1:\n.* NaN of float32"]),
    ],
)
def test_a_fault_on_one_rank_ends_all_and_names_it(fault, status, said, recipe, tmp_path):
    found = train(2, tmp_path / "run", recipe(), fault=fault)
    assert found.returncode == status, found.stderr
    assert found.stderr.count("ampkit: ") == len(said), found.stderr
    for pattern in said:
        assert re.search(pattern, found.stderr), found.stderr


@pytest.mark.parametrize(
    ("accumulate", "more"), [(1, ""), (3, "[parallel]\nstage = 3"), (1, "[parallel]\nstage = 1"), (1, DETERMINISTIC)]
)
def test_all_ranks_save_the_last_whole_step_where_the_data_of_one_raise(accumulate, more, recipe, tmp_path):
    words = [f"train.accumulate={accumulate}", "train.steps=6", "data.batch_size=64", "train.eval_batches=2"]
    made = config.load(recipe("dropout = 0.3", more), words)

    def trained(directory, fails, resume=False):
        def on_rank(group):
            rows, caught = [], None
            with random.drawing_from(random.Stream()):
                run = fit(made, tmp_path / directory, resume, Ranks(group))
                if fails and group.rank():
                    run._batches = broken(run._batches, 4 * run.batches_per_step - 1)
                try:
                    rows = [(row.step, getattr(row, "loss", None) or row.val_loss) for row in run]
                except Exception as error:
                    caught = error
            return run.done, rows, caught

        return on_ranks(2, on_rank)

    def broken(batches, count):
        yield from islice(batches, count)
        raise FileError("sample 7", "a file that can be read", "a directory")

    whole, stopped = trained("whole", False), trained("run", True)
    assert [str(error) for *_, error in stopped] == [
        f"{rank}sample 7: needs a file that can be read, got a directory" for rank in ("rank 1: ", "")
    ]
    assert [(done, error.__notes__) for done, _, error in stopped] == [(3, [BY_DATA])] * 2
    again = trained("run", False, resume=True)
    assert again == [(6, whole[0][1][3:], None)] * 2
    first, second = (Checkpoints(tmp_path / name).at(6).state for name in ("whole", "run"))
    assert [each.numpy().tobytes() for each in tensors_in(first)] == [
        each.numpy().tobytes() for each in tensors_in(second)
    ]
    assert first["random"] == second["random"]


@mpi
def test_ranks_without_held_out_samples_of_their_own_evaluate_with_the_others(recipe, tmp_path):
    path = recipe()
    words = ["train.eval_batches=1", "data.batch_size=2", "train.steps=2"]
    assert train(3, tmp_path / "many", path, *words).returncode == 0
    assert main(["train", str(path), *words, "--run-dir", str(tmp_path / "one")]) == 0
    need_close(rows_of(tmp_path / "many"), rows_of(tmp_path / "one"), 2e-5)


@mpi
def test_other_commands_say_that_they_run_in_one_process(recipe):
    found = mpiexec(2, "recipe_program.py", "plan", str(recipe()))
    assert "plan: needs one process, got rank 1 of 2" in found.stderr
    assert found.returncode != 0


class _Group:
    """A group of which only rank and size are asked."""

    def __init__(self, rank, size):
        self.rank, self.size = (lambda: rank), (lambda: size)


@pytest.mark.parametrize(("rows", "size"), [(8, 4), (10, 4), (3, 4), (1, 3)])
def test_the_weighted_means_of_all_parts_are_the_mean_of_the_batch(rows, size):
    values, total, seen = np.random.default_rng(0).normal(size=rows), 0.0, []
    for rank in range(size):
        ranks = Ranks(_Group(rank, size))
        part, (weight,) = values[ranks.part(rows)], ranks.weighted((), rows)
        assert len(part)
        total += part.mean() * float(weight) / size
        seen.extend(ranks.share(values))
    assert total == pytest.approx(values.mean(), rel=1e-6)
    assert seen == list(values)


def test_one_process_adds_no_weight_and_no_message(recipe):
    run = fit(config.load(str(recipe())))
    assert len(run.first_batch()) == 2
    assert run.ranks.size == 1
