"""parallel.deterministic with parallel.pipeline: stages of a model give the bits of one process that has all of it."""

from __future__ import annotations

import pytest
from distributed.test_deterministic_recipes import recipe, threads, trained
from distributed.thread_ranks import on_mesh

from ampkit.base.errors import ConfigError
from ampkit.distributed.pipelining.model_stage import ModelStage
from ampkit.run.ranks import Ranks

pytestmark = pytest.mark.no_gpu
__all__ = ["threads"]  # a fixture


class MeshRanks(Ranks):
    """Ranks that are threads, of whose groups `on_mesh` has made a mesh."""

    def __init__(self, world, replicas, stages):
        super().__init__(world)
        self._groups = replicas, stages

    def group_by_stages(self, count, device):
        if count > 1:
            self.data_group, self._stages = self._groups
            self.data_rank, self.data_size = self.data_group.rank(), self.data_group.size()


def alone(made, **options):
    """The rows, and the bytes of the state."""
    rows, state = trained(made, **options)
    return list(map(repr, rows)), state  # a norm may be NaN


def on(shape, made, **options):
    """The same of every rank, which have the same rows."""
    found = on_mesh(shape, lambda *groups: alone(made, ranks=MeshRanks(*groups), **options))
    assert all(rows == found[0][0] for rows, _ in found)
    return found[0]


def made_of(kind, stages, *words):
    layers = {"gpt": "model.n_layer=3", "vit": "model.num_layers=3"}[kind]
    return recipe(kind, layers, f"parallel.pipeline={stages}", *words)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["gpt", "vit"])
def test_stages_do_not_change_a_bit(kind, dtype):
    precision = f"amp.dtype={dtype}", "amp.init_scale=4194304"
    expected = alone(made_of(kind, 1, *precision))
    assert any("nan" in row for row in expected[0]) is (dtype == "float16")  # a step overflowed
    accumulated = "train.accumulate=4", "data.batch_size=4", "train.eval_batches=12"
    assert on((1, 2), made_of(kind, 2, *precision, *accumulated)) == expected
    assert on((2, 2), made_of(kind, 2, *precision)) == expected
    if dtype == "float32":
        assert on((1, 3), made_of(kind, 3, *precision)) == expected
        assert on((4, 2), made_of(kind, 2, *precision, *accumulated)) == expected


def test_a_run_resumes_with_other_stages_and_without_them_with_the_same_bits(tmp_path):
    words = "amp.dtype=float16", "train.checkpoint_every=2"
    rows, state = alone(made_of("gpt", 1, *words))
    assert on((2, 2), made_of("gpt", 2, *words), checkpoints=tmp_path, until=2)[0] == rows[:3]
    assert on((1, 3), made_of("gpt", 3, *words), checkpoints=tmp_path, resume=True) == (rows[3:], state)
    assert alone(made_of("gpt", 1, *words, "train.steps=2"), checkpoints=tmp_path / "one")[0] == rows[:3]
    assert on((1, 2), made_of("gpt", 2, *words), checkpoints=tmp_path / "one", resume=True) == (rows[3:], state)


def test_both_gradients_of_a_tied_weight_are_added_within_each_microbatch(monkeypatch):
    expected = alone(made_of("gpt", 1, "train.steps=1"))[0][0]
    assert on((1, 2), made_of("gpt", 2, "train.steps=1"))[0][0] == expected
    monkeypatch.setattr(ModelStage, "_exchange_tied", lambda self, number, gradients: None)
    assert on((1, 2), made_of("gpt", 2, "train.steps=1"))[0][0] != expected  # the norm


def test_what_does_not_fit_is_refused_in_one_line():
    needs = "optimizer.state_dtype: needs float32 with parallel.deterministic and parallel.pipeline, got bfloat16"
    with pytest.raises(ConfigError, match=needs):
        made_of("gpt", 2, "optimizer.state_dtype=bfloat16")
    with pytest.raises(ConfigError, match="a number of groups of ranks that divides parallel.microbatches=8, .* got 3"):
        on((3, 2), made_of("gpt", 2))
