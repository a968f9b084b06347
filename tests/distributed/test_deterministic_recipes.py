"""parallel.deterministic: a recipe gives one result, bit for bit, on any number of ranks and threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed.thread_ranks import on_ranks

from ampkit import config
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.errors import ConfigError
from ampkit.core import random
from ampkit.distributed.optim import ZeroRedundancyOptimizer
from ampkit.run.loop import StepRow, fit
from ampkit.run.ranks import ALONE, Ranks, whole

pytestmark = pytest.mark.no_gpu

RECIPES = Path(__file__).parents[2] / "recipes"
COMMON = ["parallel.deterministic=true", "train.steps=4", "train.log_every=1", "train.eval_every=2", "train.ema=0.9"]
COMMON += ["train.grad_clip=1.0", "train.threads=1", 'schedule={name="constant"}']
CNN = ["train.epochs=", "model.width=4", "data.batch_size=64", "train.eval_batches=3", "optimizer.lr=1e-2"]
MLP = ["train.epochs=", "model.hidden=[16]", "model.dropout=0.3", "data.batch_size=64", "train.eval_batches=3"]
GPT = ["model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.block_size=8", "model.dropout=0.2"]
GPT += ["data.batch_size=16", "train.eval_batches=3", f"data.path={RECIPES}"]
VIT = ["train.epochs=", "model.name=vit", "model.patch_size=4", "model.num_layers=2", "model.num_heads=2"]
VIT += ["model.hidden_dim=16", "model.mlp_dim=32", "model.dropout=0.2", "data.batch_size=16", "train.eval_batches=3"]
KINDS = {"cnn": ("digits_cnn", CNN), "mlp": ("digits_mlp", MLP), "gpt": ("text_gpt", GPT), "vit": ("digits_cnn", VIT)}


@pytest.fixture(autouse=True)
def threads():
    before = get_num_threads()
    yield
    set_num_threads(before)


def recipe(kind, *words):
    name, own = KINDS[kind]
    return config.load(RECIPES / f"{name}.toml", [*COMMON, *own, *words])


def trained(made, ranks=ALONE, checkpoints=None, resume=False, until=None):
    """The numbers of every row, and the bytes of the weights, their average and the moments.

    Of those that ranks share out rank 0 alone has the bytes.
    """
    with random.drawing_from(random.Stream()):
        run = fit(made, checkpoints, resume, ranks)
        rows = []
        for row in run:
            rows.append((row.step, row.loss, row.grad_norm, row.scale) if isinstance(row, StepRow) else row)
            if row.step == until and not isinstance(row, StepRow):
                run.save()
                break
        if isinstance(run.optimizer, ZeroRedundancyOptimizer):
            run.optimizer.consolidate_state_dict()
            if ranks.rank:
                return rows, b""
        state = whole(run.snapshot())
        tensors = [*state["model"].values(), *state["average"].values()]
        tensors += [value for each in state["optimizer"]["state"].values() for value in each.values()]
        return rows, b"".join(tensor.numpy().tobytes() for tensor in tensors if tensor is not None)


def on(size, made, **options):
    return on_ranks(size, lambda group: trained(made, Ranks(group), **options))


@pytest.mark.parametrize(("kind", "dtype"), [("cnn", "float16"), ("mlp", "bfloat16"), ("gpt", "float32")])
def test_ranks_threads_and_accumulation_do_not_change_a_bit(kind, dtype):
    precision = f"amp.dtype={dtype}"
    expected = trained(recipe(kind, precision))
    quarter = recipe(kind).data.batch_size // 4
    accumulated = recipe(kind, precision, "train.accumulate=4", f"data.batch_size={quarter}", "train.eval_batches=12")
    assert trained(recipe(kind, precision, "train.threads=2")) == expected
    assert trained(accumulated) == expected
    assert on(2, accumulated) == [expected] * 2
    assert on(4, recipe(kind, precision)) == [expected] * 4


def test_a_run_resumes_on_another_number_of_ranks_with_the_same_bits(tmp_path):
    made = recipe("cnn", "amp.dtype=float16", "train.checkpoint_every=2")
    rows, state = trained(made)
    assert on(2, made, checkpoints=tmp_path, until=2)[0][0] == rows[:3]
    assert on(4, made, checkpoints=tmp_path, resume=True) == [(rows[3:], state)] * 4


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("cnn", "float16"), ("mlp", "bfloat16"), ("gpt", "float32"), ("gpt", "float16")]
)
def test_parameters_that_ranks_share_out_do_not_change_a_bit(kind, dtype, stage):
    precision = f"amp.dtype={dtype}"
    rows, state = trained(recipe(kind, precision))
    quarter, words = recipe(kind).data.batch_size // 4, (precision, f"parallel.stage={stage}")
    accumulated = recipe(kind, *words, "train.accumulate=4", f"data.batch_size={quarter}", "train.eval_batches=12")
    for size, made in ((1, recipe(kind, *words)), (2, accumulated), (4, recipe(kind, *words, "train.threads=2"))):
        found = on(size, made)
        assert found[0][1] == state and [each[0] for each in found] == [rows] * size


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer.state_dtype=bfloat16", "optimizer.stochastic_rounding=true", "amp.parameters=low"),
        ("optimizer.state_dtype=int8",),
        ("optimizer.name=muon",),
    ],
)
def test_a_state_that_ranks_share_out_has_the_bits_of_one_process_in_any_dtype_and_with_products(words):
    rows, state = trained(recipe("mlp", *words, "amp.dtype=bfloat16"))
    found = on(2, recipe("mlp", *words, "amp.dtype=bfloat16", "parallel.stage=1"))
    assert found[0] == (rows, state) and found[1][0] == rows


def test_a_run_resumes_with_another_stage_and_number_of_ranks_with_the_same_bits(tmp_path):
    words = "amp.dtype=float16", "train.checkpoint_every=2"
    rows, state = trained(recipe("cnn", *words))
    for first, second in ((3, 2), (1, 3), (2, 1)):
        options = {"checkpoints": tmp_path / str(first)}
        assert on(4, recipe("cnn", *words, f"parallel.stage={first}"), **options, until=2)[0][0] == rows[:3]
        found = on(2, recipe("cnn", *words, f"parallel.stage={second}"), **options, resume=True)
        assert found[0] == (rows[3:], state)


def test_an_update_has_the_samples_that_it_has_without_accumulation_and_an_epoch_leaves_out_what_does_not_fill_one():
    made = recipe("mlp", "data.batch_size=1000", "train.steps=", "train.epochs=3")
    assert fit(made).steps == 3  # of 1,437 samples
    with pytest.raises(
        ConfigError, match="the training data: needs 1600 samples or more, those of an update, got 1437"
    ):
        fit(recipe("mlp", "data.batch_size=1600"))


def test_what_does_not_fit_is_refused_in_one_line():
    def refused(*words):
        with pytest.raises(ConfigError) as error:
            recipe("mlp", *words)
        return str(error.value).splitlines()[0]

    assert "data.batch_size: needs a multiple of 8 samples in an update with parallel.deterministic, got 50" in refused(
        "data.batch_size=50"
    )
    assert "parallel.microbatches: needs a power of 2" in refused("parallel.microbatches=6")
    assert "parallel.wire_dtype: needs float32" in refused("parallel.wire_dtype=bfloat16")
    assert "parallel.sync_batchnorm: needs false" in refused("parallel.sync_batchnorm=true")
    rounds = refused("parallel.stage=3", "optimizer.state_dtype=bfloat16")
    assert "optimizer.state_dtype: needs float32 with parallel.deterministic and parallel.stage=3, got" in rounds
    random_rounding = refused("parallel.stage=2", "optimizer.stochastic_rounding=true", "amp.parameters=low")
    assert "optimizer.stochastic_rounding: needs false with parallel.deterministic and par" in random_rounding
    assert "train.compile: needs false" in refused("train.compile=true")
    delayed = refused("amp.dtype=float8", "amp.recipe=delayed")
    assert "amp.recipe: needs scales that follow from the present values" in delayed
    with pytest.raises(
        ConfigError, match="needs a number of ranks that divides parallel.microbatches=8, a power of 2, got 3"
    ):
        on(3, recipe("mlp"))
