"""Tensor parallelism on ranks that are threads: numbers of one process, mixed precision, states, errors."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import distributed as dist
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from ampkit.distributed.tensor import (
    ColwiseParallel,
    DTensor,
    Partial,
    Replicate,
    RowwiseParallel,
    SequenceParallel,
    Shard,
    distribute_tensor,
    parallelize_module,
    redistribute,
)  # fmt: skip

pytestmark = pytest.mark.no_gpu
ONE_BY_ONE = threading.Lock()  # the random stream is one for all threads
RNG = np.random.default_rng(2)
TOKENS = ampkit.tensor(RNG.integers(0, 30, (2, 3, 8)))
IMAGES = ampkit.tensor(RNG.standard_normal((2, 3, 3, 8, 8)), dtype=ampkit.float32)


def gpt():
    return ampkit.models.GPT(vocab_size=30, block_size=8, n_layer=2, n_head=4, n_embd=16)


def bert():
    config = ampkit.models.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ampkit.models.BertForMaskedLM(config)


def vit():
    return ampkit.models.VisionTransformer(8, 4, 2, 4, 16, 32, num_classes=30)


MODELS = {"gpt": (gpt, TOKENS), "bert": (bert, TOKENS), "vit": (vit, IMAGES)}


def make(kind, dtype=None):
    with ONE_BY_ONE:
        ampkit.manual_seed(0)
        model = kind()
        for name, p in model.named_parameters():
            if name.endswith("bias") or "head" in name:  # zeros would hide a bias that is added twice
                p.data = ampkit.randn(p.shape) * 0.1
    return model


def loss_of(model, inputs):
    logits = model(inputs).float()
    return ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), TOKENS[0].reshape(-1)[: logits[..., 0].numel()])


def train(model, inputs, steps=4, region=nullcontext, scaler=None, kind=optim.SGD):
    # Not AdamW by default: the gradient of a bias of keys is 0 but for rounding, which it would scale to a step.
    optimizer, losses = kind(model.parameters(), lr=1e-2 if kind is optim.AdamW else 0.3), []
    scaler = scaler or ampkit.GradScaler(enabled=False)
    for step in range(steps):
        with region():
            loss = loss_of(model, inputs[step % 2])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = optim.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses += [float(loss), float(norm)]
    return losses


def whole(model):
    return {n: p.full_tensor().numpy() if hasattr(p, "full_tensor") else p.detach().numpy()
            for n, p in model.named_parameters()}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_steps_have_the_numbers_of_one_process(name, size):
    kind, inputs = MODELS[name]
    plain = make(kind)
    expected = train(plain, inputs)

    def program(group):
        model = parallelize_module(make(kind), group)
        assert {n: p.full_shape for n, p in model.named_parameters() if hasattr(p, "full_shape")}
        return train(model, inputs), whole(model)

    for losses, weights in on_ranks(size, program):
        np.testing.assert_allclose(losses, expected, rtol=2e-5)
        for path, parameter in plain.named_parameters():
            np.testing.assert_allclose(weights[path], parameter.detach().numpy(), rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_process_in_float64(name):
    kind, inputs = MODELS[name]
    plain = make(kind).double()
    given = inputs[0].double() if inputs.is_floating_point() else inputs[0]
    loss_of(plain, given).backward()
    expected = {path: p.grad.numpy() for path, p in plain.named_parameters()}

    def program(group):
        model = parallelize_module(make(kind).double(), group)
        loss_of(model, given).backward()
        return {n: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).numpy()
                for n, p in model.named_parameters()}  # fmt: skip

    for found in on_ranks(2, program):
        for path, gradient in expected.items():
            np.testing.assert_allclose(found[path], gradient, rtol=1e-5, atol=1e-8, err_msg=path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_trains_on_and_all_ranks_skip_the_same_steps(dtype):
    def region():
        return ampkit.autocast(dtype=dtype)

    plain = make(gpt)
    expected = train(plain, TOKENS, 6, region, ampkit.GradScaler(init_scale=2.0**24, enabled=dtype == "float16"))

    def program(group):
        scaler = ampkit.GradScaler(init_scale=2.0**24, enabled=dtype == "float16")
        return train(parallelize_module(make(gpt), group), TOKENS, 6, region, scaler), scaler.get_scale()

    (first, scale), (second, other) = on_ranks(2, program)
    assert np.array_equal(first, second, equal_nan=True) and scale == other
    assert scale == 1 or (dtype == "float16" and scale < 2.0**24)
    assert np.isfinite(first[-2]) and first[-2] < first[0]
    np.testing.assert_allclose(first[-2], expected[-2], rtol=0.02)


def test_a_rank_holds_its_part_of_weights_and_moments():
    def program(group):
        model = parallelize_module(make(gpt), group)
        optimizer = optim.AdamW(model.parameters())
        loss_of(model, TOKENS[0]).backward()
        optimizer.step()
        c_attn = model.transformer.h[0].attn.c_attn
        assert c_attn.weight.shape == (24, 16) and c_attn.weight.full_shape == (48, 16)
        assert optimizer.state[c_attn.weight]["exp_avg"].shape == (24, 16)
        assert c_attn.weight.placements == (Shard(0),)
        assert model.transformer.h[0].mlp.c_proj.weight.placements == (Shard(1),)
        return sum(p.numel() for p in model.parameters())

    assert max(on_ranks(2, program)) < 0.6 * sum(p.numel() for p in gpt().parameters())


class Sequence(nn.Module):
    """A block with a norm whose activations the ranks share out by position."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.table, self.norm = nn.Embedding(30, 16, padding_idx=3), norm(16)
        self.up, self.down, self.out = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 30)

    def forward(self, tokens):
        x = self.table(tokens)
        x = x + self.down(ops.gelu(self.up(self.norm(x))))
        return self.out(x)


PLAN = {
    "table": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("table", [PLAN["table"], ColwiseParallel(output_layouts=Shard(1))], ids=["rows", "columns"])
def test_norms_between_layers_can_share_the_positions_out(norm, table):
    plain = make(lambda: Sequence(norm))
    expected = train(plain, TOKENS)

    def program(group):
        model = parallelize_module(make(lambda: Sequence(norm)), group, {**PLAN, "table": table})
        return train(model, TOKENS), whole(model)

    for losses, weights in on_ranks(2, program):
        np.testing.assert_allclose(losses, expected, rtol=2e-5)
        for path, parameter in plain.named_parameters():
            np.testing.assert_allclose(weights[path], parameter.detach().numpy(), rtol=1e-3, atol=3e-5)


def test_states_are_loaded_whole_or_in_parts_and_shown_in_parts():
    source = make(gpt)

    def program(group):
        model = parallelize_module(gpt(), group)
        model.load_state_dict(source.state_dict())
        other = parallelize_module(gpt(), group)
        other.load_state_dict(model.state_dict())
        assert model.state_dict()["lm_head.weight"].full_shape == (30, 16)
        return whole(other)

    for weights in on_ranks(2, program):
        for path, parameter in source.named_parameters():
            np.testing.assert_array_equal(weights[path], parameter.detach().numpy())


def test_whole_states_of_divided_layers_go_on_undivided():
    source = make(gpt)

    def program(group):
        model = parallelize_module(make(gpt), group)
        optimizer = optim.AdamW(model.parameters())
        loss_of(model, TOKENS[0]).backward()
        optimizer.step()
        options = StateDictOptions(full_state_dict=True)
        weights, states = get_state_dict(model, optimizer, options=options)
        assert states["state"]["transformer.h.0.mlp.c_proj.weight"]["exp_avg"].shape == (16, 64)
        plain = make(gpt)
        moments = optim.AdamW(plain.parameters())
        set_state_dict(plain, moments, model_state_dict=weights, optim_state_dict=states, options=options)
        return {path: parameter.detach().numpy() for path, parameter in plain.named_parameters()}, whole(model)

    for plain, divided in on_ranks(2, program):
        assert all(np.array_equal(plain[path], divided[path]) for path, _ in source.named_parameters())


MOVES = [
    (Replicate(), Shard(1)), (Shard(1), Replicate()), (Shard(0), Shard(-1)), (Partial(), Replicate()),
    (Partial(), Shard(1)),
]  # fmt: skip


UNEVEN = [move for move in MOVES if move != (Shard(0), Shard(-1))]  # a length is of one axis


@pytest.mark.parametrize(
    ("source", "target", "length"), [*((*move, None) for move in MOVES), *((*move, 6) for move in UNEVEN)]
)
def test_redistribute_keeps_the_tensor_and_its_gradient(source, target, length):
    size = 2 if length is None else 4
    values = RNG.standard_normal((4, 6))
    weights = ampkit.tensor(RNG.standard_normal((4, 6)))
    terms = RNG.standard_normal((size, 4, 6))
    terms[-1] = values - terms[:-1].sum(0)

    def part(group, placement, whole):
        if not isinstance(placement, Shard):
            return whole
        most = -(-whole.shape[placement.dim] // size)
        before = (slice(None),) * (placement.dim % 2)
        return whole[(*before, slice(group.rank() * most, (group.rank() + 1) * most))]

    def program(group):
        mine = terms[group.rank()] if isinstance(source, Partial) else part(group, source, values)
        local = ampkit.tensor(np.ascontiguousarray(mine)).requires_grad_()
        found = redistribute(local, group, source, target, length=length)
        np.testing.assert_allclose(found.numpy(force=True), part(group, target, values), rtol=1e-12)
        (found * part(group, target, weights)).sum().backward()
        np.testing.assert_allclose(local.grad.numpy(), part(group, source, weights.numpy()), rtol=1e-12)

    on_ranks(size, program)


def test_terms_in_16_bits_are_summed_in_float32():
    terms = [256.0, 1.0, 1.0, 1.0]

    def program(group):
        local = ampkit.tensor([terms[group.rank()]], dtype=ampkit.bfloat16)
        return redistribute(local, group, Partial(), Replicate()).item()

    assert on_ranks(4, program) == [260.0] * 4  # 259 rounded once; bfloat16 sums stay at 256


def test_an_index_outside_of_the_table_is_refused_on_every_rank():
    def program(group):
        model = parallelize_module(make(gpt), group)
        with pytest.raises(ampkit.RangeError, match="indices from 0 to 29"):
            model(ampkit.tensor([[3, 30]]))

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        (None, ArgumentError, "a parallelize_plan, got a Sequence without one"),
        ({"nothing": ColwiseParallel()}, ArgumentError, "paths of submodules, got 'nothing'"),
        ({"norm": ColwiseParallel()}, ArgumentError, "a Linear, Embedding or MultiheadAttention for ColwiseParallel"),
        ({"norm": RowwiseParallel()}, ArgumentError, "a Linear or Embedding for RowwiseParallel, got a LayerNorm"),
        ({"up": SequenceParallel()}, ArgumentError, "a LayerNorm, RMSNorm or Dropout for SequenceParallel"),
        ({"down": RowwiseParallel(), "*": "rowwise"}, DTypeError, "a plan: a ParallelStyle"),
        ({"up": ColwiseParallel(blocks=5)}, ShapeError, "an axis that 2 ranks divide, in 5 blocks, got 24 in 'up.we"),
    ],
)
def test_plans_that_do_not_fit_are_refused(plan, error, said):
    def program(group):
        with pytest.raises(error, match=said):
            parallelize_module(make(Sequence), group, plan)

    on_ranks(2, program)


def test_layouts_and_parameters_that_do_not_fit_are_refused():
    with pytest.raises(DTypeError, match="layouts Replicate"):
        ColwiseParallel(input_layouts="rows")
    with pytest.raises(ArgumentError, match="use_local_output=True"):
        RowwiseParallel(use_local_output=False)

    def program(group):
        model = parallelize_module(make(Sequence), group, PLAN)
        with pytest.raises(StateError, match="'up.weight', which is divided already"):
            parallelize_module(model, group, {"up": RowwiseParallel()})
        with pytest.raises(ShapeError, match="heads that 2 ranks divide, got 3"):
            parallelize_module(nn.MultiheadAttention(6, 3), group, ColwiseParallel())
        with pytest.raises(ShapeError, match="an axis whose length 2 ranks divide"):
            model(TOKENS[0][:, :7])

    on_ranks(2, program)


def test_heads_that_the_ranks_do_not_divide_are_refused():
    def program(group):
        model = ampkit.models.GPT(vocab_size=30, block_size=8, n_layer=1, n_head=2, n_embd=24)
        with pytest.raises(ShapeError, match="parallelize_module: needs heads that 4 ranks divide, got 2"):
            parallelize_module(model, group)
        with pytest.raises(ShapeError, match="whole heads of 12"):
            parallelize_module(model, group, {"transformer.h.0.attn.c_attn": ColwiseParallel(blocks=3)})(TOKENS[0])

    on_ranks(4, program)


@pytest.fixture
def mesh(monkeypatch):
    """A mesh of one process, whatever launcher runs the tests."""
    for name in [name for name in os.environ if name.startswith(("PMI_", "OMPI_", "SLURM_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    yield dist.init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    dist.destroy_process_group()


def test_a_mesh_of_two_dimensions_is_refused(mesh):
    with pytest.raises(ArgumentError, match="a DeviceMesh of one dimension, got one of 2"):
        parallelize_module(make(gpt), mesh)
    model = parallelize_module(make(gpt), mesh["tensor"])
    assert loss_of(model, TOKENS[0]).isfinite()


def test_distribute_tensor_keeps_a_part_and_says_how_it_lies(mesh):
    values = ampkit.tensor(RNG.standard_normal((4, 6)))
    part = distribute_tensor(nn.Parameter(values.clone()), mesh, [Shard(-1), Replicate()])
    assert isinstance(part, DTensor) and part.placements == (Shard(1), Replicate()) and part.device_mesh is mesh
    assert part.placements[0].is_shard() and not part.placements[0].is_shard(0) and part.placements[1].is_replicate()
    assert part.full_tensor().equal(values) and part.to_local().equal(values)
    parameter = nn.Parameter(values)
    assert distribute_tensor(parameter, mesh) is parameter
    for wrong, said in (
        ([Shard(0)], "2 placements"),
        ([Shard(0)] * 2, "one Shard"),
        ([Partial()] * 2, r"or Shard\(dim\)"),
    ):
        with pytest.raises(ArgumentError, match=said):
            distribute_tensor(nn.Parameter(values), mesh, wrong)
    assert distribute_tensor(parameter, mesh["tensor"], [Shard(0)]) is parameter
    with pytest.raises(ShapeError, match="a tensor with an axis 2"):
        distribute_tensor(values, mesh["data"], [Shard(2)])


def test_the_gradient_of_a_row_wise_bias_does_not_overflow_in_float16():
    def gradient(group):
        layer = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))
        parallelize_module(layer, group, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        with ampkit.autocast(dtype=ampkit.float16):
            out = layer(ampkit.ones(70_000, 2))
        out.backward(ampkit.ones_like(out))
        return layer[1].bias.grad.tolist()

    assert on_ranks(2, gradient) == [[70_000.0] * 2] * 2
