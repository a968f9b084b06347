"""Recipes with stages of the model on ranks, over sockets: one process's numbers, and checkpoints for either."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.test_tensor_recipes import WORDS, launched, rows_of
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import config
from ampkit.base.errors import ConfigError
from ampkit.cli import main
from ampkit.run.loop import fit
from ampkit.run.ranks import Ranks

pytestmark = pytest.mark.no_gpu
STAGES = ["parallel.pipeline=2", "parallel.microbatches=2"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_recipe_has_the_numbers_of_one_process_and_resumes_on_the_other(tmp_path, dtype):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{i}(x): return x * {i}\n" for i in range(200)))
    words = ["text_gpt", *WORDS, "model.n_layer=2", f"data.path={text}", f"amp.dtype={dtype}", "train.grad_clip=1.0"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["train", *words, "train.steps=4", "--run-dir", str(one)]) == 0
    assert launched(2, *words, "train.steps=4", *STAGES, "--run-dir", str(two)).returncode == 0
    tolerance = {"rtol": 1e-5} if dtype == "float32" else {"rtol": 5e-3}
    for mine, theirs in zip(rows_of(two), rows_of(one), strict=True):
        assert mine.keys() == theirs.keys()
        np.testing.assert_allclose([*mine.values()], [*theirs.values()], **tolerance)
    weights, expected = (dict(ampkit.load_run(run).model.named_parameters()) for run in (two, one))
    for name, parameter in expected.items():
        found, truth = (each.numpy(force=True) for each in (weights[name], parameter))
        if name.endswith("c_attn.bias"):  # softmax does not depend on the keys' third: its gradient is rounding alone
            found, truth = (np.delete(each, np.s_[len(each) // 3 : 2 * len(each) // 3]) for each in (found, truth))
        np.testing.assert_allclose(found, truth, rtol=1e-2, atol=1e-4)
    assert main(["train", *words, "train.steps=6", "parallel.microbatches=2", "--resume", "--run-dir", str(two)]) == 0
    resumed = launched(2, *words, "train.steps=6", "parallel.pipeline=2", "--resume", "--run-dir", str(one))
    assert resumed.returncode == 0, resumed.stderr
    np.testing.assert_allclose([*rows_of(one)[-1].values()], [*rows_of(two)[-1].values()], **tolerance)


def test_groups_of_stages_share_the_data_out(tmp_path):
    words = ["digits_cnn", "model.name=vit", "model.patch_size=4", "model.num_layers=2", "model.num_heads=2",
             "model.hidden_dim=16", "model.mlp_dim=32", "optimizer.name=sgd", "optimizer.lr=0.1", "data.batch_size=5",
             "train.epochs=", "train.steps=4", "train.eval_every=2", "train.eval_batches=3", "train.threads=1",
             "train.accumulate=2", "amp.dtype=float32"]  # fmt: skip
    one, four = tmp_path / "one", tmp_path / "four"
    assert main(["train", *words, "--run-dir", str(one)]) == 0
    found = launched(4, *words, *STAGES, "--run-dir", str(four))
    assert found.returncode == 0, found.stderr
    for mine, theirs in zip(rows_of(four), rows_of(one), strict=True):
        np.testing.assert_allclose([*mine.values()], [*theirs.values()], rtol=1e-5)


def test_an_interrupted_run_of_stages_has_the_bits_of_one_that_was_not(tmp_path):
    words = ["text_gpt", *WORDS, "model.n_layer=2", "model.dropout=0.1", *STAGES, "data.path="]
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{i}(x): return x * {i}\n" for i in range(200)))
    words[-1] += str(text)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert launched(2, *words, "train.steps=4", "--run-dir", str(whole)).returncode == 0
    assert launched(2, *words, "train.steps=2", "schedule.warmup=1", "--run-dir", str(parts)).returncode == 0
    assert launched(2, *words, "train.steps=4", "--resume", "--run-dir", str(parts)).returncode == 0
    assert rows_of(parts)[-1] == rows_of(whole)[-1]


def test_a_loss_that_is_not_finite_is_explained_by_the_whole_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words to learn from " * 100)
    words = ["text_gpt", *WORDS, "model.n_layer=2", f"data.path={text}", "amp.dtype=float32", "optimizer.lr=1e30"]
    found = launched(2, *words, "train.steps=4", *STAGES, "--run-dir", str(tmp_path / "run"))
    assert found.returncode == 1 and "transformer.h" in found.stderr and "to see why failed" not in found.stderr


def test_ranks_and_models_that_do_not_fit_are_refused_on_every_rank():
    def program(group):
        ranks = Ranks(group)
        with pytest.raises(ConfigError, match="parallel.pipeline: needs a divisor of the number of ranks, 2, got 3"):
            ranks.group_by_stages(3, "cpu")
        ranks._stages = group
        with pytest.raises(ConfigError, match="needs 1, or a model of 2 layers or more that names them, as gpt, bert"):
            ranks.stage_of(ampkit.nn.Linear(2, 2), 25.0)
        return ranks.in_agreement  # rank 0 alone prints it

    assert on_ranks(2, program) == [True, True]
    with pytest.raises(ConfigError, match="parallel.pipeline: needs a divisor of the number of ranks, 1, got 2"):
        fit(config.load("digits_mlp", ["parallel.pipeline=2"]))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("parallel.tensor=2", "parallel.tensor: needs 1 with parallel.pipeline, got 2"),
        ("parallel.stage=3", "parallel.stage: needs 0 with parallel.pipeline, got 3"),
        ("parallel.sync_batchnorm=true", "parallel.sync_batchnorm: needs false with parallel.pipeline, got true"),
        ("parallel.wire_dtype=bfloat16", "parallel.wire_dtype: needs float32 with parallel.pipeline, got bfloat16"),
        ("train.compile=true", "train.compile: needs false with parallel.pipeline, got true"),
        ("debug.ranges_every=5", "debug.ranges_every: needs 0 with parallel.pipeline, got 5"),
        ("amp.dtype=float8", "amp.dtype: needs 16 or 32 bits with parallel.pipeline, got current"),
        ('amp.modules={"lm_head"="float32"}', "amp.modules: needs no entries with parallel.pipeline"),
    ],
)
def test_sections_that_do_not_fit_are_refused(other, said):
    with pytest.raises(ConfigError, match=said):
        config.load("text_gpt", ["parallel.pipeline=2", other])
