import numpy as np
import pytest

from ampkit import Tensor, optim
from ampkit.base.errors import ArgumentError
from ampkit.nn import Parameter

SHAPES = [(7, 5), (5,), (300, 301), ()]


def formula(p, gradients, lr, betas, eps, weight_decay, amsgrad, maximize, decoupled):
    """Adam and AdamW in float64; None is a step in which the parameter took no part."""
    p, (b1, b2) = p.astype(np.float64), betas
    m, v, largest, t = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p), 0
    for g in gradients:
        if g is None:
            continue
        t += 1
        g = (-1 if maximize else 1) * g.astype(np.float64)
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        largest = np.maximum(largest, v)
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt((largest if amsgrad else v) / (1 - b2**t)) + eps)
    return p


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"amsgrad": True},
        {"maximize": True, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.3},
    ],
    ids=str,
)
def test_it_follows_its_formula(kind, dtype, options):
    rng = np.random.default_rng(0)
    parameters = [Parameter(rng.standard_normal(s).astype(dtype)) for s in SHAPES]
    gradients = [
        [
            None if i == 1 and k % 3 == 1 else (rng.standard_normal(s) * 10.0 ** rng.uniform(-3, 1)).astype(np.float32)
            for k in range(9)
        ]
        for i, s in enumerate(SHAPES)
    ]
    full = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False, "maximize": False}
    full |= {"weight_decay": 0.01 if kind is optim.AdamW else 0, **options}
    wanted = [
        formula(p.array, g, 0.01, decoupled=kind is optim.AdamW, **full)
        for p, g in zip(parameters, gradients, strict=True)
    ]
    optimizer = kind(parameters, lr=0.01, **options)
    for row in zip(*gradients, strict=True):
        optimizer.zero_grad()
        for p, g in zip(parameters, row, strict=True):
            if g is not None:
                p.grad = Tensor(g.astype(dtype))
        optimizer.step()
    for p, want in zip(parameters, wanted, strict=True):
        assert np.allclose(p.array, want, rtol=0, atol=(1e-6 if dtype is np.float32 else 1e-14) * np.abs(want).max())


def test_its_state_has_pytorchs_names_and_continues_exactly():
    rng = np.random.default_rng(1)
    gradients = [rng.standard_normal(6).astype(np.float32) for _ in range(6)]

    def run(p, optimizer, rows):
        for g in rows:
            p.grad = Tensor(g)
            optimizer.step()

    p, q = Parameter(np.ones(6, np.float32)), Parameter(np.zeros(6, np.float32))
    first = optim.AdamW([p], lr=0.1)
    run(p, first, gradients[:3])
    state = first.state_dict()
    assert list(state["state"][0]) == ["step", "exp_avg", "exp_avg_sq"]
    assert state["state"][0]["step"].item() == 3
    second = optim.AdamW([q], lr=0.7)
    q.data = p.detach()
    second.load_state_dict(state)
    run(p, first, gradients[3:])
    run(q, second, gradients[3:])
    assert np.array_equal(p.array, q.array)


def test_loaded_parameters_with_different_step_counts_are_updated_apart():
    ps = [Parameter(np.zeros(2, np.float32)) for _ in range(2)]
    optimizer = optim.Adam(ps, lr=1.0)
    zeros = np.zeros(2, np.float32)
    state = {i: {"step": step, "exp_avg": zeros, "exp_avg_sq": zeros} for i, step in enumerate((0, 99))}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for p in ps:
        p.grad = Tensor(np.ones(2, np.float32))
    optimizer.step()
    late = (0.1 / (1 - 0.9**100)) / np.sqrt(0.001 / (1 - 0.999**100))
    assert np.allclose(ps[0].array, -1)
    assert np.allclose(ps[1].array, -late, rtol=1e-5)


def test_betas_read_as_a_pair_and_write_to_the_device():
    group = optim.Adam([Parameter(np.zeros(2, np.float32))]).param_groups[0]
    group["betas"] = (0.5, 0.75)
    assert group["betas"] == (0.5, 0.75)
    assert np.array_equal(group.device["betas"], [0.5, 0.75])


@pytest.mark.parametrize(
    "options", [{"betas": (1.0, 0.9)}, {"betas": (0.9, -0.1)}, {"eps": -1}, {"lr": float("inf")}], ids=str
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ArgumentError, match="AdamW"):
        optim.AdamW([Parameter(np.zeros(2, np.float32))], **options)


@pytest.mark.parametrize("betas", [0.9, ("a", "b"), (0.9,), (0.9, 1.0)], ids=str)
def test_betas_that_are_no_pair_are_refused(betas):
    with pytest.raises(ArgumentError, match="needs two betas in"):
        optim.AdamW([Parameter(np.ones(2, np.float32))], betas=betas)
