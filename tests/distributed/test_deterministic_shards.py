"""Layers in shards: deterministic trainings have the bits of one process, whichever ranks divide layers and data."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.test_deterministic_recipes import recipe, trained
from distributed.thread_ranks import ThreadMesh, clipped_step, on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, ConfigError, DTypeError, ShapeError, StateError
from ampkit.core import random
from ampkit.distributed import DeterministicDataParallel, fully_shard
from ampkit.distributed.fsdp.sharded_tensor import cut
from ampkit.distributed.tensor import (
    ColwiseParallel,
    Replicate,
    RowwiseParallel,
    SequenceParallel,
    Shard,
    parallelize_module,
)
from ampkit.distributed.tensor.shards import LocalShards, for_each
from ampkit.optim import clip
from ampkit.optim.flat.rows import power_sum_by_rows
from ampkit.run.loop import Run
from ampkit.run.ranks import Ranks

pytestmark = pytest.mark.no_gpu

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 30, (2, 8, 8)), RNG.integers(0, 30, (2, 8, 8))
IMAGES = RNG.standard_normal((2, 8, 3, 8, 8)).astype(np.float32)


def gpt():
    return ampkit.models.GPT(vocab_size=30, block_size=8, n_layer=1, n_head=4, n_embd=16, dropout=0.2)


def bert():
    config = ampkit.models.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=8,
    )  # fmt: skip
    return ampkit.models.BertForMaskedLM(config)


def vit():
    return ampkit.models.VisionTransformer(8, 4, 1, 4, 16, 32, dropout=0.2, attention_dropout=0.2, num_classes=30)


MODELS = {"gpt": (gpt, X, "transformer.h"), "bert": (bert, X, "bert.encoder.layer"), "vit": (vit, IMAGES, "")}


def train(kind, shards, dtype, data=None, tensor=None, stage=0, accumulate=1, threads=1):
    """Losses, norms and scales of two steps, and the bytes of the weights."""
    make, inputs, layers = MODELS[kind]
    with random.drawing_from(random.Stream(7)):
        model = make()
        for name, p in model.named_parameters():
            if name.endswith("bias") or "head" in name:  # zeros would hide a bias that is added twice
                p.data = ampkit.randn(p.shape) * 0.1
        parallelize_module(model, tensor, shards=shards)
        if stage:
            for part in [*model.get_submodule(layers).children(), model] if layers else [model]:
                fully_shard(part, mesh=data, reshard_after_forward=stage == 3)
        parallel = DeterministicDataParallel(model, 4, data, threads=threads)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        scaler = ampkit.GradScaler(enabled=dtype == "float16", init_scale=2.0**26)
        measured = []

        def loss_of(model, x, y):
            with ampkit.autocast(dtype=dtype, enabled=dtype != "float32"):
                logits = model(x)
            return ops.cross_entropy(logits.float().reshape(-1, 30), y.reshape(-1)[: logits[..., 0].numel()])

        for step in range(2):
            mine = [[values[step][2 * i : 2 * i + 2] for i in parallel.mine] for values in (inputs, Y)]
            parts = zip(*(np.split(np.concatenate(each), accumulate) for each in mine), strict=True)
            loss = parallel.forward_backward(loss_of, [tuple(map(ampkit.tensor, part)) for part in parts], scaler)
            norm = clipped_step(model, optimizer, scaler)
            measured += map(repr, (loss.item(), norm.item(), scaler.get_scale()))
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return measured, b"".join(each.numpy(force=True).tobytes() for each in whole)


def on_layout(ranks, *args, **options):
    """What every rank of (data, tensor) gives."""
    return on_mesh(ranks, lambda world, data, tensor: train(*args, data=data, tensor=tensor, **options))


def test_ranks_that_divide_layers_have_the_bits_of_one_process():
    for kind, dtype in [("gpt", "float32"), ("bert", "bfloat16"), ("vit", "float16")]:
        expected = train(kind, 2, dtype, threads=2)
        assert dtype != "float16" or expected[0][1] in ("inf", "nan")  # a step is skipped
        assert train(kind, 1, dtype) != expected
        assert on_layout((1, 2), kind, 2, dtype, accumulate=4, threads=2) == [expected] * 2


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_ranks_that_divide_layers_and_data_have_the_bits_of_one_process(stage):
    expected = train("gpt", 2, "float16")
    assert on_layout((2, 2), "gpt", 2, "float16", stage=stage) == [expected] * 4
    assert on_layout((2, 1), "gpt", 2, "float16", stage=stage) == [expected] * 2


def test_four_shards_have_their_bits_on_any_ranks():
    for dtype in ("float32", "bfloat16"):
        expected = train("gpt", 4, dtype)
        for ranks, stage in [((1, 2), 2), ((1, 4), 0)]:
            assert on_layout(ranks, "gpt", 4, dtype, stage=stage) == [expected] * (ranks[0] * ranks[1])


def test_losses_and_norms_are_those_of_whole_layers():
    whole, shards = (train("vit", count, "float32")[0] for count in (1, 4))
    assert list(map(float, shards)) != list(map(float, whole))
    model, parts = vit().double().eval(), vit().double().eval()
    parts.load_state_dict(model.state_dict())
    parallelize_module(parts, shards=4)
    x = ampkit.tensor(IMAGES[0]).double()
    for each in (model, parts):
        each(x).square().sum().backward()
    for one, other in zip(model.parameters(), parts.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_norms_have_the_same_bits_before_they_are_rounded(monkeypatch):
    found = []
    root = clip._root
    monkeypatch.setattr(clip, "_root", lambda total, *rest: (found.append(total.item()), root(total, *rest))[1])
    train("gpt", 4, "float32")
    alone = set(found)
    for ranks, stage in [((1, 2), 0), ((2, 2), 3), ((2, 1), 2)]:
        on_layout(ranks, "gpt", 4, "float32", stage=stage)
    assert len(alone) == 2 and set(found) == alone


def test_norms_sum_the_columns_of_each_shard_by_themselves():
    gradients = RNG.standard_normal((8, 1, 64)).astype(np.float32)  # each of one row, so that no other hides its bits

    def totals(group=None):
        layer = parallelize_module(nn.Linear(64, 1), group, RowwiseParallel(), shards=4)
        found = []
        for gradient in gradients:
            layer.weight.grad = None
            sharding = layer.weight._sharding
            layer.weight.accumulate(gradient if sharding is None else cut(gradient, sharding))
            found.append(power_sum_by_rows([layer.weight], 3.0).item())  # powers that float64 rounds
        return found

    np.testing.assert_allclose(totals(), (abs(gradients.astype(np.float64)) ** 3).sum((1, 2)), rtol=1e-13)
    for size in (2, 4):
        assert on_ranks(size, totals) == [totals()] * size


class MeshRanks(Ranks):
    """Ranks of a mesh (data, tensor), which are threads."""

    def __init__(self, world, data, tensor):
        super().__init__(world)
        self._groups = data, tensor

    def group_by_layers(self, count, device):
        data, tensor = self._groups
        if count > 1:
            self._mesh, self.data_group = ThreadMesh(self._group, data, tensor)["b"], data
            self.data_rank, self.data_size = data.rank(), data.size()


def in_recipe(ranks, made, **options):
    return on_mesh(ranks, lambda *groups: trained(made, ranks=MeshRanks(*groups), **options))


def test_a_recipe_has_one_result_and_resumes_with_another_layout(tmp_path):
    words = ["amp.dtype=float16", "train.checkpoint_every=2", "parallel.tensor_shards=2"]
    rows, state = trained(recipe("gpt", *words))
    assert trained(recipe("gpt", *words[:2])) != (rows, state)
    accumulated = ["train.accumulate=4", "data.batch_size=4", "train.eval_batches=12", "parallel.tensor=2"]
    found = in_recipe((1, 2), recipe("gpt", *words[:2], *accumulated))  # as many shards as ranks that divide layers
    assert found[0] == (rows, state) and [each[0] for each in found] == [rows] * 2
    first = recipe("gpt", *words, "parallel.tensor=2", "parallel.stage=3")
    assert in_recipe((2, 2), first, checkpoints=tmp_path, until=2)[0][0] == rows[:3]
    with pytest.raises(
        ConfigError, match="resume: needs parallel.tensor_shards=2, with which the run was trained, got "
    ):
        trained(recipe("gpt", *words[:2]), checkpoints=tmp_path, resume=True)
    assert trained(recipe("gpt", *words), checkpoints=tmp_path, resume=True) == (rows[3:], state)


def test_what_does_not_fit_is_refused_on_every_rank():
    def refused(kind, *words):
        with pytest.raises(ConfigError) as error:
            recipe(kind, *words)
        return str(error.value).splitlines()[0]

    assert "parallel.tensor: needs a power of 2 with parallel.deterministic, got 3" in refused(
        "gpt", "parallel.tensor=3"
    )
    divides = refused("gpt", "parallel.tensor=4", "parallel.tensor_shards=2")
    assert "parallel.tensor_shards: needs a power of 2 that parallel.tensor=4 divides with parallel.det" in divides
    words = "parallel.tensor_shards=2", "parallel.deterministic=false"
    assert "parallel.tensor_shards: needs none without parallel.deterministic=true, got 2" in refused("gpt", *words)
    rounds = refused("gpt", "parallel.tensor_shards=2", "optimizer.state_dtype=bfloat16")
    assert "optimizer.state_dtype: needs float32 with parallel.deterministic and parallel.tensor_shards" in rounds

    def built(kind, *words):
        ranks = Ranks()
        with pytest.raises(ConfigError) as error:
            Run(recipe(kind, *words), ranks=ranks)
        assert ranks.in_agreement  # rank 0 alone prints it
        return str(error.value).splitlines()[0]

    needs = "parallel.tensor_shards: needs 1, or a model that has a tensor_parallel_plan, as gpt, bert, vit, got a CNN"
    assert needs in built("cnn", "parallel.tensor_shards=2")
    heads = "parallel.tensor_shards: needs heads that 4 shards divide, got 2"
    assert heads in built("gpt", "parallel.tensor_shards=4")


def test_scripts_hear_what_does_not_fit():
    def parallelize(kind, shards, plan=None, error=ArgumentError):
        with pytest.raises(error) as found:
            parallelize_module(kind, None, plan, shards=shards)
        return str(found.value).splitlines()[0]

    assert "shards as a power of 2 that the number of ranks, 1, divides, got 3" in parallelize(gpt(), 3)
    for make, _, _ in MODELS.values():
        assert "heads that 8 shards divide, got 4" in parallelize(make(), 8, error=ShapeError)
    layer = nn.Linear(4, 8)
    assert "each of 8 shards has some, got 4 in" in parallelize(
        nn.Embedding(4, 8), 8, RowwiseParallel(), error=ShapeError
    )
    assert "column-wise and row-wise layers, with shards" in parallelize(nn.LayerNorm(4), 2, SequenceParallel())
    plan = ColwiseParallel(input_layouts=Shard(1))
    assert "needs input_layouts=Replicate() and output_layouts=Shard(dim=-1), with" in parallelize(layer, 2, plan)
    parallelize_module(layer, None, ColwiseParallel(), shards=2)
    assert "layers that are not divided" in parallelize(layer, 2, ColwiseParallel(), StateError)
    with pytest.raises(
        DTypeError, match="RowwiseParallel with shards: needs the shards of an activation, got a Tensor"
    ):
        parallelize_module(nn.Linear(8, 4), None, RowwiseParallel(), shards=2)(ampkit.randn(2, 8))
    tied = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    got = parallelize(tied, 2, {"0": ColwiseParallel(), "1": ColwiseParallel()}, StateError)
    assert "'1.weight', which is divided already" in got

    def program(group):
        model = parallelize_module(gpt(), group)
        with pytest.raises(StateError, match="or parallelize_module with shards, got parts of one"):
            DeterministicDataParallel(model, 8, group)
        model = parallelize_module(gpt(), group, shards=2)
        with pytest.raises(ArgumentError, match="a process_group of ranks with the same parts, got one of ranks that"):
            DeterministicDataParallel(model, 8, group)

    on_ranks(2, program)


def test_a_call_with_shards_is_one_for_each_and_draws_by_their_numbers():
    def masks(first, count, call=1):
        with random.drawing_from(random.Stream(3)):
            given = LocalShards([ampkit.ones(64) for _ in range(count)], first)
            found = [for_each(ops.dropout, (given,), {"p": 0.5}).tensors for _ in range(call)]
            return [[t.tolist() for t in each] for each in found], ampkit.rand(1).item()

    (both, again), after = masks(0, 2, 2)
    assert both[0] != both[1] and both != again
    assert masks(1, 1, 2) == ([[both[1]], [again[1]]], after)
    pair = LocalShards([ampkit.full((2, 4), 1.0), ampkit.full((2, 4), 2.0)], 0)
    first, second = ops.chunk(-(3 - pair * pair) / 2, 2, -1)
    assert first.shape == (2, 2) and [t.tolist() for t in second.tensors] == [[[-1.0] * 2] * 2, [[0.5] * 2] * 2]
    assert [t.shape for t in ops.cat([pair, first], -1)[:, :5].tensors] == [(2, 5)] * 2 and pair.dim() == 2
    assert repr(pair) == "LocalShards(2 of shape (2, 4), from number 0)"
    with pytest.raises(DTypeError, match="needs a Tensor to read values of"):
        float(pair)
    with pytest.raises(AttributeError):
        pair._array  # noqa: B018


def test_attention_with_a_mask_and_other_keys_is_that_of_whole_heads():
    layer, parts = nn.MultiheadAttention(8, 4, batch_first=True), nn.MultiheadAttention(8, 4, batch_first=True)
    parts.load_state_dict(layer.state_dict())
    parallelize_module(parts, None, ColwiseParallel(output_layouts=Replicate()), shards=2)
    x, keys, padding = ampkit.randn(2, 3, 8), ampkit.randn(2, 5, 8), ampkit.arange(5) > 3
    options = {"key_padding_mask": padding.expand(2, 5), "need_weights": False}
    np.testing.assert_allclose(
        *(each(x, keys, keys, **options)[0].numpy(force=True) for each in (layer, parts)), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ArgumentError, match="need_weights=False in tensor parallelism"):
        parts(x, x, x)


def test_frozen_weights_and_evaluations_record_nothing_of_them():
    model = parallelize_module(gpt(), shards=2).eval()
    for parameter in model.transformer.h.parameters():
        parameter.requires_grad = False
    loss = model(ampkit.tensor(X[0])).square().mean()
    loss.backward()
    assert model.transformer.wte.weight.grad is not None and model.transformer.h[0].mlp.c_fc.weight.grad is None
    with ampkit.no_grad():
        assert not model(ampkit.tensor(X[0])).requires_grad


def test_gradients_of_shards_of_weights_are_not_rounded_to_16_bits():
    layer, parts = nn.Linear(8, 8), nn.Linear(8, 8)
    parts.load_state_dict(layer.state_dict())
    parallelize_module(parts, None, ColwiseParallel(output_layouts=Replicate()), shards=2)
    x = ampkit.randn(16, 8)
    for each in (layer, parts):
        with ampkit.autocast(dtype=ampkit.float16):
            (each(x) * 1e4).float().sum().backward()
    for one, other in zip(layer.parameters(), parts.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-6)
