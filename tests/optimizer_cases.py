"""A case of each optimizer beyond SGD and Adam: its formula in float64, options to test it with, and its state.

formula(p, state, g, t, **options) returns the parameter p after step t with the gradient g, NumPy arrays in float64,
and updates the dict `state`.
"""

from typing import Any, NamedTuple

import numpy as np

from ampkit import optim


class OptimizerCase(NamedTuple):
    """What the tests of optimizers need to know of one.

    kind: the optimizer. formula: see above; None of one whose formula has a test of its own. options: sets of them;
    tests of anything but the formula take the last.
    state: the names of its state in a state_dict, PyTorch's where PyTorch has the optimizer.
    """

    kind: type[optim.Optimizer]
    formula: Any
    options: list[dict[str, Any]]
    state: list[str]


def adagrad(p, s, g, t, lr=0.01, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10):
    g = g + weight_decay * p
    s["sum"] = s.get("sum", initial_accumulator_value) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)


def rmsprop(p, s, g, t, lr=0.01, alpha=0.99, eps=1e-8, weight_decay=0, momentum=0, centered=False):
    g = g + weight_decay * p
    s["square_avg"] = alpha * s.get("square_avg", 0) + (1 - alpha) * g * g
    var = s["square_avg"]
    if centered:
        s["grad_avg"] = alpha * s.get("grad_avg", 0) + (1 - alpha) * g
        var = var - s["grad_avg"] ** 2
    move = g / (np.sqrt(var) + eps)
    if momentum:
        move = s["momentum_buffer"] = momentum * s.get("momentum_buffer", 0) + move
    return p - lr * move


def lion(p, s, g, t, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
    m = s.get("exp_avg", np.zeros_like(p))
    step = np.sign(betas[0] * m + (1 - betas[0]) * g) + weight_decay * p
    s["exp_avg"] = betas[1] * m + (1 - betas[1]) * g
    return p - lr * step


def lamb(p, s, g, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
    m = s["exp_avg"] = betas[0] * s.get("exp_avg", 0) + (1 - betas[0]) * g
    v = s["exp_avg_sq"] = betas[1] * s.get("exp_avg_sq", 0) + (1 - betas[1]) * g * g
    u = (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + weight_decay * p
    norms = np.sqrt((p * p).sum()), np.sqrt((u * u).sum())
    return p - lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * u


def adafactor(p, s, g, t, lr=0.01, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.0, spacing=0.0):
    least = spacing if eps[0] is None else eps[0]
    new, square = float(t) ** beta2_decay, g * g
    rms = lambda x: np.sqrt((x * x).mean())  # noqa: E731
    alpha = max(eps[1], rms(p)) * min(lr, 1 / np.sqrt(t))
    if p.ndim > 1:
        s["row_var"] = s.get("row_var", 0) * (1 - new) + new * square.mean(-1, keepdims=True)
        s["col_var"] = s.get("col_var", 0) * (1 - new) + new * square.mean(-2, keepdims=True)
        v = s["row_var"] * s["col_var"] / np.maximum(s["row_var"].mean(-2, keepdims=True), least)
    else:
        v = s["variance"] = s.get("variance", 0) * (1 - new) + new * square
    u = g / np.sqrt(np.maximum(v, least**2))
    return p * (1 - lr * weight_decay) - alpha / max(1.0, rms(u) / d) * u


def adamax(p, s, g, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0):
    g = g + weight_decay * p
    m = s["exp_avg"] = betas[0] * s.get("exp_avg", 0) + (1 - betas[0]) * g
    u = s["exp_inf"] = np.maximum(betas[1] * s.get("exp_inf", 0), np.abs(g) + eps)
    return p - lr / (1 - betas[0] ** t) * m / u


def radam(p, s, g, t, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, decoupled_weight_decay=False):
    p, g = (p * (1 - lr * weight_decay), g) if decoupled_weight_decay else (p, g + weight_decay * p)
    m = s["exp_avg"] = betas[0] * s.get("exp_avg", 0) + (1 - betas[0]) * g
    v = s["exp_avg_sq"] = betas[1] * s.get("exp_avg_sq", 0) + (1 - betas[1]) * g * g
    most, left = 2 / (1 - betas[1]) - 1, 1 - betas[1] ** t
    rho, step = most - 2 * t * betas[1] ** t / left, lr * m / (1 - betas[0] ** t)
    if rho <= 5:
        return p - step
    r = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    return p - step * r * np.sqrt(left) / (np.sqrt(v) + eps)


def nadam(
    p, s, g, t, lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, momentum_decay=4e-3, decoupled_weight_decay=False
):
    p, g = (p * (1 - lr * weight_decay), g) if decoupled_weight_decay else (p, g + weight_decay * p)
    m = s["exp_avg"] = betas[0] * s.get("exp_avg", 0) + (1 - betas[0]) * g
    v = s["exp_avg_sq"] = betas[1] * s.get("exp_avg_sq", 0) + (1 - betas[1]) * g * g
    now, then = (betas[0] * (1 - 0.5 * 0.96 ** (k * momentum_decay)) for k in (t, t + 1))
    product = s["mu_product"] = s.get("mu_product", 1.0) * now
    root = np.sqrt(v / (1 - betas[1] ** t)) + eps
    return p - lr * ((1 - now) / (1 - product) * g + then / (1 - product * then) * m) / root


def adadelta(p, s, g, t, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0):
    g = g + weight_decay * p
    v = s["square_avg"] = rho * s.get("square_avg", 0) + (1 - rho) * g * g
    u = np.sqrt(s.get("acc_delta", 0) + eps) / np.sqrt(v + eps) * g
    s["acc_delta"] = rho * s.get("acc_delta", 0) + (1 - rho) * u * u
    return p - lr * u


def asgd(p, s, g, t, lr=1e-2, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0):
    g = g + weight_decay * p
    eta, mu = s.get("eta", lr), s.get("mu", 1.0)
    p = p * (1 - lambd * eta) - eta * g
    s["ax"] = s.get("ax", 0) * (1 - mu) + mu * p
    s["eta"], s["mu"] = lr / (1 + lambd * lr * t) ** alpha, 1 / max(1, t - t0)
    return p


def rprop(p, s, g, t, lr=1e-2, etas=(0.5, 1.2), step_sizes=(1e-6, 50)):
    turn = np.sign(s.get("prev", 0) * g)
    factor = np.where(turn > 0, etas[1], np.where(turn < 0, etas[0], 1.0))
    s["step_size"] = np.clip(s.get("step_size", lr) * factor, *step_sizes)
    s["prev"] = np.where(turn < 0, 0.0, g)
    return p - np.sign(s["prev"]) * s["step_size"]


CASES = [
    OptimizerCase(
        optim.Adagrad,
        adagrad,
        [{}, {"lr_decay": 0.1, "weight_decay": 0.2, "initial_accumulator_value": 0.5}],
        ["step", "sum"],
    ),
    OptimizerCase(
        optim.RMSprop,
        rmsprop,
        [
            {},
            {"momentum": 0.9, "weight_decay": 0.1, "eps": 1e-3},
            {"centered": True, "alpha": 0.9, "momentum": 0.5, "eps": 1e-2},
        ],
        ["step", "square_avg", "grad_avg", "momentum_buffer"],
    ),
    OptimizerCase(
        optim.Lion, lion, [{"lr": 0.01}, {"lr": 0.01, "betas": (0.5, 0.75), "weight_decay": 0.3}], ["exp_avg"]
    ),
    OptimizerCase(
        optim.LAMB,
        lamb,
        [{"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.0}, {}],
        ["step", "exp_avg", "exp_avg_sq"],
    ),
    OptimizerCase(
        optim.Adafactor,
        adafactor,
        [{}, {"lr": 0.5, "beta2_decay": -0.5, "eps": (1e-4, 0.1), "d": 1.5, "weight_decay": 0.1}],
        ["step", "row_var", "col_var"],
    ),
    OptimizerCase(
        optim.Adamax,
        adamax,
        [{}, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}],
        ["step", "exp_avg", "exp_inf"],
    ),
    OptimizerCase(
        optim.RAdam,
        radam,
        [
            {"lr": 0.1},
            {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.3, "decoupled_weight_decay": True},
            {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1},
        ],
        ["step", "exp_avg", "exp_avg_sq"],
    ),
    OptimizerCase(
        optim.NAdam,
        nadam,
        [
            {"lr": 0.1},
            {"lr": 0.1, "weight_decay": 0.3, "decoupled_weight_decay": True},
            {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "momentum_decay": 0.1},
        ],
        ["step", "exp_avg", "exp_avg_sq", "mu_product"],
    ),
    OptimizerCase(
        optim.Adadelta,
        adadelta,
        [{}, {"lr": 0.5, "rho": 0.5, "eps": 1e-2, "weight_decay": 0.1}],
        ["step", "square_avg", "acc_delta"],
    ),
    OptimizerCase(
        optim.Rprop,
        rprop,
        [{}, {"lr": 0.1, "etas": (0.25, 2.0), "step_sizes": (0.05, 0.3)}],
        ["step", "prev", "step_size"],
    ),
    OptimizerCase(
        optim.ASGD,
        asgd,
        [{}, {"lr": 0.5, "lambd": 0.1, "alpha": 0.5, "t0": 1.5, "weight_decay": 0.1}],
        ["step", "ax", "eta", "mu"],
    ),
    OptimizerCase(
        optim.AdamWScheduleFree,
        None,  # its average counts the steps of a group, not of a parameter
        [{"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.1, "warmup_steps": 2, "r": 0.5}],
        ["step", "z", "exp_avg_sq"],
    ),
]
