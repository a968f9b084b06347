"""Models of the library as stages of ranks that are threads: the numbers of one process, and whole states."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.thread_ranks import on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError
from ampkit.core import random
from ampkit.distributed.pipelining.model_stage import ModelStage, whole_model
from ampkit.run.ranks import whole

pytestmark = pytest.mark.no_gpu
STEPS, BATCH, MICROBATCHES = 3, 8, 4


def gpt(**changes):
    sizes = {"vocab_size": 31, "block_size": 6, "n_layer": 3, "n_head": 2, "n_embd": 16}
    return ampkit.models.gpt("nano", **{**sizes, **changes})


def bert():
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    return ampkit.models.bert("tiny", **sizes, num_hidden_layers=2, hidden_dropout_prob=0, max_position_embeddings=6,
                              attention_probs_dropout_prob=0)  # fmt: skip


def vit():
    sizes = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return ampkit.models.VisionTransformer(**sizes, num_classes=5)


def frozen():
    model = gpt()
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.h[2].requires_grad_(False)
    return model


MODELS = {"gpt": gpt, "frozen gpt": frozen, "untied gpt": lambda: gpt(tie_weights=False),
          "gpt with dropout": lambda: gpt(dropout=0.2), "bert": bert, "vit": vit}  # fmt: skip


def made(name):
    with random.drawing_from(random.Stream(3)):
        return MODELS[name]()


def batches(name):
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        if name == "vit":
            x, y = rng.normal(size=(BATCH, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, BATCH)
        else:
            x, y = rng.integers(0, 31, (BATCH, 6)), rng.integers(0, 31, (BATCH, 6))
        yield ampkit.tensor(x), ampkit.tensor(y)


def loss_of(output, y):
    return ops.cross_entropy(output.reshape(-1, output.shape[-1]), y.reshape(-1))


def train(name, dtype, group=None):
    """The losses and norms of some steps, and the whole state after them."""
    model, found = made(name), []
    stage = None if group is None else ModelStage(model, group)
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-2), ampkit.GradScaler(enabled=dtype == "float16")
    with random.drawing_from(random.Stream(7)):
        for x, y in batches(name):
            with ampkit.autocast(dtype=dtype, enabled=dtype != "float32"):
                loss = one_by_one(model, x, y, scaler) if stage is None else stage.forward_backward(
                    loss_of, [(x, y)], MICROBATCHES, scaler)  # fmt: skip
            scaler.unscale_(optimizer)
            norm = optim.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            found += [loss.item(), norm.item()]
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    return found, state if group is None else whole(state), model, optimizer


def one_by_one(model, x, y, scaler):
    """The gradients of the micro-batches in turn. -> the mean of their losses."""
    total, streams = 0.0, random.split_into(MICROBATCHES)
    for i, stream in enumerate(streams):
        rows = slice(BATCH // MICROBATCHES * i, BATCH // MICROBATCHES * (i + 1))
        with random.drawing_from(stream):
            loss = loss_of(model(x[rows]), y[rows]) / MICROBATCHES
        scaler.scale(loss).backward()
        total = total + loss.detach()
    return total


def arrays(state):
    found = {f"model {name}": value for name, value in state["model"].items()}
    entries = state["optimizer"]["state"]
    return {**found, **{f"{n} {key}": value for n, entry in entries.items() for key, value in entry.items()}}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_stages_train_as_one_process_and_have_its_state_together(name, dtype):
    expected, state, *_ = train(name, dtype)
    ranks = on_ranks(2, lambda group: train(name, dtype, group)[:2])
    for found, _ in ranks:
        np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-3)
    together, wanted = arrays(ranks[0][1]), arrays(state)
    assert together.keys() == wanted.keys()
    tolerance = {"rtol": 1e-3, "atol": 2e-5 if dtype == "float32" else 2e-3}
    for key, value in wanted.items():
        np.testing.assert_allclose(together[key].numpy(), value.numpy(), **tolerance, err_msg=key)


def test_each_rank_has_the_weights_and_moments_of_its_stage_alone():
    def program(group):
        *_, model, optimizer = train("gpt", "float32", group)
        entries = optimizer.state_dict()["state"].values()
        return (sum(p.numel() for p in model.parameters()), sum(e["exp_avg"].numel() for e in entries),
                [name for name, p in model.named_parameters() if p.numel()])  # fmt: skip

    model = made("gpt")
    whole_count = sum(parameter.numel() for parameter in model.parameters())
    ranks = on_ranks(2, program)
    assert sum(count for count, *_ in ranks) == sum(count for _, count, _ in ranks) == whole_count
    names = [set(found) for *_, found in ranks]
    assert {"transformer.wte.weight", "transformer.wpe.weight"} < names[0] and "transformer.ln_f.bias" in names[1]
    assert {int(name.split(".")[2]) for name in names[1] if ".h." in name} == {1, 2}


def test_states_of_one_process_are_loaded_and_whole_models_compute_its_outputs():
    _, state, model, _ = train("gpt", "float32")
    x = next(batches("gpt"))[0]
    expected = model(x).numpy(force=True)

    def program(group):
        model = made("gpt")
        ModelStage(model, group)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        before = [id(parameter) for parameter in model.parameters()]
        with whole_model(model):
            output = model(x).numpy(force=True)
        assert [id(parameter) for parameter in model.parameters()] == before
        return output, whole({"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()})

    ranks = on_ranks(2, program)
    assert all(np.array_equal(output, expected) for output, _ in ranks)
    together, wanted = arrays(ranks[0][1]), arrays(state)
    assert all(np.array_equal(together[key].numpy(), value.numpy()) for key, value in wanted.items())


def test_replicas_of_stages_have_the_mean_gradients_of_their_batches():
    def program(world, replicas, stages):
        model, half = made("gpt"), slice(4 * replicas.rank(), 4 * replicas.rank() + 4)
        x, y = next(batches("gpt"))
        stage, scaler = ModelStage(model, stages, replicas, bucket_bytes=1000), ampkit.GradScaler(enabled=False)
        loss = stage.forward_backward(loss_of, [(x[half], y[half])], 2, scaler)
        return loss.item(), whole({name: each.grad for name, each in model.named_parameters()})

    model = made("gpt")
    x, y = next(batches("gpt"))
    loss = loss_of(model(x), y)
    loss.backward()
    for found, gradients in on_mesh((2, 2), program)[::2]:
        np.testing.assert_allclose(found, loss.item(), rtol=1e-6)
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(gradients[name].numpy(), parameter.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_batch_that_micro_batches_do_not_divide_is_cut_in_fewer():
    def program(group):
        model = made("vit")
        x, y = (each[:6] for each in next(batches("vit")))
        loss = ModelStage(model, group).forward_backward(loss_of, [(x, y)], 4, ampkit.GradScaler(enabled=False))
        return loss.item()

    x, y = (each[:6] for each in next(batches("vit")))
    expected = loss_of(made("vit")(x), y).item()
    np.testing.assert_allclose(on_ranks(2, program), expected, rtol=1e-6)


def test_an_infinite_gradient_of_one_stage_skips_the_step_of_all():
    def program(group):
        model = made("vit")
        stage, optimizer = ModelStage(model, group), optim.AdamW(model.parameters(), lr=1e-2)
        scaler = ampkit.GradScaler(init_scale=2.0**10)
        x, y = next(batches("vit"))
        stage.forward_backward(loss_of, [(x, y)], 4, scaler)
        if group.rank() == 1:
            model.encoder.ln.weight.grad.array[0] = np.inf
        result = scaler.step(optimizer)
        scaler.update()
        return bool(result.skipped), scaler.get_scale()

    assert on_ranks(2, program) == [(True, 2.0**9)] * 2


def test_models_without_layers_enough_are_refused():
    def program(group):
        with pytest.raises(ArgumentError, match="a model that names 2 layers or more, got a Linear with 0"):
            ModelStage(nn.Linear(2, 2), group)
        with pytest.raises(ArgumentError, match="got a GPT with 1"):
            ModelStage(gpt(n_layer=1), group)

    on_ranks(2, program)
