"""Muon and SOAP: their formulas in float64, PyTorch's values, states, skipped steps, 16-bit parameters."""

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit.base.dtypes import parse
from ampkit.base.errors import ArgumentError, NonFiniteError
from ampkit.core.tensor import Tensor
from ampkit.optim.matrix.orthogonal import newton_schulz

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SHAPES = [(7, 5), (5, 9), (4, 3, 2, 2), (6, 6)]
KINDS = {
    "muon": lambda p: optim.Muon(p, lr=0.02),
    "soap": lambda p: optim.SOAP(p, lr=0.02, precondition_frequency=2),
    "mixed": lambda p: optim.MuonWithAuxAdam(divided(p), lr=0.02, adam_lr=0.01),
}


def divided(parameters):
    hidden = [p for p in parameters if p.shape[0] % 2]
    others = [p for p in parameters if not p.shape[0] % 2]
    return [{"params": hidden, "use_muon": True}, {"params": others, "use_muon": False}]


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def drawn(dtype=np.float32, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [nn.Parameter(ampkit.tensor(rng.standard_normal(s).astype(dtype))) for s in shapes], rng


def give(parameters, row):
    for p, g in zip(parameters, row, strict=True):
        p.grad = None if g is None else ampkit.tensor(np.asarray(g, values(p).dtype), device=p.device)


def rows_of(rng, count, shapes=SHAPES):
    return [
        [None if i == 1 and k % 3 == 1 else rng.standard_normal(s) for i, s in enumerate(shapes)] for k in range(count)
    ]


# formulas


def orthogonal(m, coefficients=COEFFICIENTS, steps=5, eps=1e-7):
    """The polynomial on the singular values, in place of products of matrices."""
    u, s, vt = np.linalg.svd(m, full_matrices=False)
    s, (a, b, c) = s / max(np.sqrt((s * s).sum()), eps), coefficients
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vt


def muon(p, s, g, t, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn=None, **iteration):
    b = s["momentum_buffer"] = momentum * s.get("momentum_buffer", 0) + (1 - momentum) * g
    u = momentum * b + (1 - momentum) * g if nesterov else b
    rows, columns = len(p), p.size // len(p)
    factor = 0.2 * max(rows, columns) ** 0.5 if adjust_lr_fn == "match_rms_adamw" else max(1, rows / columns) ** 0.5
    move = orthogonal(u.reshape(rows, columns), **iteration).reshape(p.shape)
    return p * (1 - lr * weight_decay) - lr * factor * move


MUON = [
    {},
    {"lr": 0.1, "nesterov": False, "momentum": 0.5, "weight_decay": 0.0, "steps": 3},
    {"lr": 0.05, "adjust_lr_fn": "match_rms_adamw", "coefficients": (2.0, -1.5, 0.5)},
]
NAMES = {"steps": "ns_steps", "coefficients": "ns_coefficients"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", MUON, ids=str)
def test_muon_follows_its_formula(options, dtype, maximize):
    given = {NAMES.get(key, key): value for key, value in options.items()}
    follows(optim.Muon, muon, given, options, dtype, maximize, 5e-6)


def tensor_product(x, bases):
    letters = "abcd"[: x.ndim]
    for i, q in enumerate(bases):
        if q is not None:
            x = np.einsum(f"{letters},{letters[i]}z->{letters[:i]}z{letters[i + 1 :]}", x, q)
    return x


def soap(
    p, s, g, t, lr=3e-3, betas=(0.95, 0.95), shampoo_beta=None, eps=1e-8, weight_decay=0.01, precondition_frequency=10,
    max_precond_dim=10000, precondition_1d=False, normalize_grads=False, correct_bias=True,
):  # fmt: skip
    first, second = betas
    sized = [n <= max_precond_dim and (p.ndim > 1 or precondition_1d) for n in p.shape]
    if t > 1:
        s["exp_avg"] = first * s["exp_avg"] + (1 - first) * g
        s["exp_avg_sq"] = second * s["exp_avg_sq"] + (1 - second) * tensor_product(g, s["Q"]) ** 2
        move = tensor_product(s["exp_avg"], s["Q"]) / (np.sqrt(s["exp_avg_sq"]) + eps)
        move = tensor_product(move, [None if q is None else q.T for q in s["Q"]])
        if normalize_grads:
            move = move / np.sqrt((move**2).mean())
        rate = lr * (np.sqrt(1 - second ** (t - 1)) / (1 - first ** (t - 1)) if correct_bias else 1.0)
        p = (p - rate * move) * (1 - lr * weight_decay)
    else:
        s |= {"exp_avg": np.zeros_like(p), "exp_avg_sq": np.zeros_like(p), "GG": [0.0] * p.ndim}
    hold = second if shampoo_beta is None else shampoo_beta
    for i in range(p.ndim):
        rows = np.moveaxis(g, i, 0).reshape(p.shape[i], -1)
        s["GG"][i] = hold * s["GG"][i] + (1 - hold) * rows @ rows.T
    if t == 1:
        s["Q"] = [np.linalg.eigh(m)[1][:, ::-1] if used else None for m, used in zip(s["GG"], sized, strict=True)]
    elif (t - 1) % precondition_frequency == 0:
        for i in np.flatnonzero(sized):
            order = np.argsort(-np.diag(s["Q"][i].T @ s["GG"][i] @ s["Q"][i]))
            s["exp_avg_sq"] = np.take(s["exp_avg_sq"], order, i)
            s["Q"][i] = np.linalg.qr(s["GG"][i] @ s["Q"][i][:, order])[0]
    return p


SOAPS = [
    {},
    {"lr": 0.05, "betas": (0.5, 0.9), "weight_decay": 0.0, "precondition_frequency": 2, "correct_bias": False},
    {"lr": 0.05, "shampoo_beta": 0.5, "max_precond_dim": 5, "precondition_1d": True, "normalize_grads": True},
]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("options", SOAPS, ids=str)
def test_soap_follows_its_formula(options, maximize):
    # Shapes whose first moments have no double eigenvalue: the basis of one is anybody's choice.
    follows(optim.SOAP, soap, options, options, np.float64, maximize, 1e-9, [(7, 7), (6, 6), (5, 4, 3), (2,), ()])


def follows(kind, formula, given, options, dtype, maximize, atol, shapes=SHAPES):
    parameters, rng = drawn(dtype, shapes)
    wanted, states, counts = [values(p).astype(np.float64) for p in parameters], [{} for _ in shapes], [0] * len(shapes)
    optimizer = kind(parameters, **given, maximize=maximize)
    for row in rows_of(rng, 7, shapes):
        row = [None if g is None else np.asarray(g, dtype) for g in row]
        give(parameters, row)
        optimizer.step()
        for i, g in enumerate(row):
            if g is not None:
                counts[i] += 1
                g = (-1 if maximize else 1) * g.astype(np.float64)
                wanted[i] = formula(wanted[i], states[i], g, counts[i], **options)
    for p, want in zip(parameters, wanted, strict=True):
        assert np.abs(values(p) - want).max() <= atol * (
            1 if dtype is np.float32 else 1e-4 if kind is optim.Muon else 1
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3)])
def test_muon_has_pytorchs_values_at_the_tolerance_of_its_iteration(shape, dtype):
    # torch.optim.Muon 2.13, whose iteration is in bfloat16; "match_rms_adamw" for the second shape
    wanted = {
        (3, 4): [-0.2385, 0.8649, 0.8564, 0.0727, -0.6938, -1.0575, -0.2217, 0.4757, 1.0889, 0.5376, -0.3962, -1.0826],
        (4, 3): [-0.1048, 0.8267, 0.8791, 0.1113, -0.7294, -1.0003, -0.2532, 0.5798, 1.0035, 0.4401, -0.4630, -0.9812],
    }[shape]
    p = nn.Parameter(ampkit.tensor(np.sin(np.arange(12.0)).reshape(shape).astype(np.float32)))
    adjust_lr_fn = None if shape == (3, 4) else "match_rms_adamw"
    optimizer = optim.Muon([p], lr=0.1, adjust_lr_fn=adjust_lr_fn, ns_dtype=dtype)
    for k in range(3):
        give([p], [np.cos(np.arange(12.0) ** 2 * (k + 1.3)).reshape(shape)])
        optimizer.step()
    assert np.abs(values(p).ravel() - wanted).max() < 4e-3
    assert list(optimizer.state_dict()["state"][0]) == ["momentum_buffer"]


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 4e-2)])
def test_the_iteration_in_fewer_bits_is_off_by_their_roundings(dtype, most):
    g = np.random.default_rng(0).standard_normal((24, 16))
    matrix = ampkit.tensor(g.astype(np.float32)).array
    with backends.device_guard(matrix):
        found = newton_schulz(matrix, COEFFICIENTS, 5, 1e-7, parse(dtype))
    found, wanted = Tensor(found).cpu().numpy(), orthogonal(g)
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert most / 100 < error < most


@pytest.mark.parametrize("low", [ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_16_bit_parameter_is_the_rounding_of_its_float32_master(kind, low):
    wide = [nn.Parameter(p.detach().to(low).float()) for p in drawn()[0]]
    narrow = [nn.Parameter(p.detach().to(low)) for p in wide]
    for parameters in (wide, narrow):
        optimizer = KINDS[kind](parameters)
        for row in rows_of(np.random.default_rng(1), 4):
            give_sums(parameters, row)
            optimizer.step()
    for p, q in zip(wide, narrow, strict=True):
        assert np.array_equal(values(optimizer.state[q]["master"]), values(p))
        assert np.array_equal(values(q), values(p.detach().to(low)))


def give_sums(parameters, row):
    for p, g in zip(parameters, row, strict=True):
        p.grad = None
        if g is not None:
            ops.sum(p.float() * ampkit.tensor(np.float32(g), device=p.device)).backward()


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_changes_nothing(kind):
    parameters = drawn()[0]
    optimizer, scaler = KINDS[kind](parameters), ampkit.GradScaler(init_scale=8.0, growth_interval=100)

    def step(size):
        optimizer.zero_grad()
        scaler.scale(sum(ops.sum(ops.sin(p) * size) for p in parameters)).backward()
        skipped = scaler.step(optimizer).skipped
        scaler.update()
        state = optimizer.state_dict()["state"]
        return skipped, [values(v).tobytes() for entry in state.values() for v in entry.values()] + bits(parameters)

    start = bits(parameters)
    assert step(float("inf")) == (True, start)
    step(0.5)
    moved = step(0.5)[1]
    assert step(float("nan")) == (True, moved)
    assert step(0.5)[1] != moved


def bits(parameters):
    return [values(p).tobytes() for p in parameters]


@pytest.mark.parametrize("way", ["state", "deepcopy", "pickle"])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_goes_on_bit_for_bit(kind, dtype, way):
    rows, first = rows_of(np.random.default_rng(1), 7), [nn.Parameter(p.detach().to(dtype)) for p in drawn()[0]]
    one = KINDS[kind](first)
    for row in rows[:4]:
        give_sums(first, row)
        one.step()
    if way == "state":
        second = [nn.Parameter(p.detach().clone()) for p in first]
        two = KINDS[kind](second)
        two.load_state_dict(one.state_dict())
    else:
        second, two = copy.deepcopy((first, one)) if way == "deepcopy" else pickle.loads(pickle.dumps((first, one)))
    for row in rows[4:]:
        for parameters, optimizer in ((first, one), (second, two)):
            give_sums(parameters, row)
            optimizer.step()
    assert bits(first) == bits(second)


@pytest.mark.parametrize("kind", KINDS)
def test_the_16_bit_copy_of_a_weight_is_rewritten(kind):
    ampkit.manual_seed(0)
    layer, x = nn.Linear(4, 3, bias=False), ampkit.ones(2, 4)
    optimizer = KINDS[kind](list(layer.parameters()))
    for _ in range(3):
        with ampkit.autocast(dtype=ampkit.bfloat16):
            loss = ops.sum(layer(x).float())
        loss.backward()
        optimizer.step()
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert layer(x).tolist() == ops.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16()).tolist()


def test_a_group_that_is_not_muons_is_updated_by_adamw():
    parameters, others = drawn()[0], drawn()[0]
    mixed = optim.MuonWithAuxAdam([{"params": parameters, "use_muon": False}], lr=0.5, adam_lr=0.01, weight_decay=0.2)
    adamw = optim.AdamW(others, lr=0.01, betas=(0.9, 0.95), weight_decay=0.2)
    for row in rows_of(np.random.default_rng(1), 5):
        for each, optimizer in ((parameters, mixed), (others, adamw)):
            give(each, row)
            optimizer.step()
    assert bits(parameters) == bits(others)


def test_hidden_matrices_are_neither_embeddings_nor_the_output_nor_biases():
    model = ampkit.models.gpt(vocab_size=11, block_size=6, n_layer=1, n_head=1, n_embd=8)
    hidden, others = optim.hidden_matrices(model)
    assert [name.split(".", 2)[2] for name, _ in hidden] == [
        "0.attn.c_attn.weight", "0.attn.c_proj.weight", "0.mlp.c_fc.weight", "0.mlp.c_proj.weight",
    ]  # fmt: skip
    assert {"transformer.wte.weight", "transformer.wpe.weight"} <= {name for name, _ in others}
    assert len(hidden) + len(others) == len(list(model.parameters()))
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3))
    net[3].requires_grad_(False)
    hidden, others = optim.hidden_matrices(net)
    assert [name for name, _ in hidden] == ["0.weight"]
    assert [name for name, _ in others] == ["0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]


def test_soap_refuses_gradients_that_are_not_finite_before_it_moves_anything():
    parameters = drawn()[0]
    optimizer, before = optim.SOAP(parameters), bits(parameters)
    give(parameters, [*(np.ones(s) for s in SHAPES[:3]), np.full(SHAPES[3], np.nan)])
    with pytest.raises(NonFiniteError, match="SOAP.step: needs finite gradients, got inf or NaN"):
        optimizer.step()
    assert bits(parameters) == before


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (optim.Muon, {"lr": -1}, "Muon: needs lr >= 0, got -1"),
        (optim.Muon, {"ns_coefficients": (1, 2)}, "Muon: needs three ns_coefficients, numbers, got"),
        (optim.Muon, {"ns_steps": 100}, r"Muon: needs ns_steps in \[1, 99\], got 100"),
        (optim.Muon, {"ns_steps": 2.5}, "Muon: needs ns_steps as a whole number, got 2.5"),
        (optim.Muon, {"adjust_lr_fn": "rms"}, "Muon: needs adjust_lr_fn 'original', 'match_rms_adamw' or None"),
        (optim.Muon, {"ns_dtype": "half"}, "Muon: needs ns_dtype 'float32', 'float16' or 'bfloat16', got 'half'"),
        (optim.MuonWithAuxAdam, {}, "MuonWithAuxAdam: needs groups that say use_muon, got one with params"),
        (optim.SOAP, {"shampoo_beta": -1}, r"SOAP: needs shampoo_beta in \[0, 1\), got -1"),
        (optim.SOAP, {"basis_dtype": "bfloat16"}, "SOAP: needs basis_dtype 'float32' or 'float64'"),
        (optim.SOAP, {"precondition_frequency": 0}, r"SOAP: needs precondition_frequency"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ArgumentError, match=message):
        kind([nn.Parameter(ampkit.ones(2, 2))], **options)


def test_muon_names_the_parameter_that_is_no_matrix():
    with pytest.raises(ArgumentError, match=r"Muon: needs matrices, got 'bias' \[3\]\nhelp: give biases and gains to"):
        optim.Muon(nn.Linear(2, 3).named_parameters())
