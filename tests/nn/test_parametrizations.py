"""Weights that are computed: of norm and direction, of spectral norm 1, and by modules of one's own."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim, tensor
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError, StateError
from ampkit.nn.utils import parametrizations, parametrize
from ampkit.testing import assert_close, gradcheck

UTILS = nn.utils
NORMS = [UTILS.weight_norm, parametrizations.weight_norm]
SPECTRAL = [UTILS.spectral_norm, parametrizations.spectral_norm]
ALL = [*NORMS, *SPECTRAL]


def values(x):
    return x.detach().numpy().astype(np.float64)


def largest(weight):
    return np.linalg.svd(values(weight).reshape(len(weight), -1), compute_uv=False)[0]


@pytest.mark.parametrize("weight_norm", NORMS)
@pytest.mark.parametrize(("dim", "shape"), [(0, (4, 1, 1)), (1, (1, 2, 1)), (-2, (1, 2, 1)), (None, ()), (-1, ())])
def test_weight_norm_keeps_the_weight_and_makes_norms_of_the_shape_of_pytorchs(weight_norm, dim, shape):
    layer = nn.Conv1d(2, 4, 3)
    before = layer.weight.detach().clone()
    assert weight_norm(layer, dim=dim) is layer
    assert_close(layer.weight, before)
    assert [tuple(p.shape) for _, p in layer.named_parameters()] == [(4,), shape, (4, 2, 3)]


def test_state_dicts_have_pytorchs_names():
    assert list(UTILS.weight_norm(nn.Linear(3, 2)).state_dict()) == ["bias", "weight_g", "weight_v"]
    names = ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    assert list(parametrizations.weight_norm(nn.Linear(3, 2)).state_dict()) == names
    names = ["bias", "weight_orig", "weight_u", "weight_v"]
    assert list(UTILS.spectral_norm(nn.Linear(3, 2)).state_dict()) == names
    names = ["original", "0._u", "0._v"]
    found = parametrizations.spectral_norm(nn.Linear(3, 2)).state_dict()
    assert list(found) == ["bias", *[f"parametrizations.weight.{name}" for name in names]]


@pytest.mark.parametrize("weight_norm", NORMS)
def test_the_gradients_of_norm_and_direction_are_those_of_the_quotient(weight_norm):
    layer = weight_norm(nn.Linear(3, 2, bias=False)).double()
    g, v = layer.parameters()
    dw = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    (layer.weight * tensor(dw)).sum().backward()
    size = np.linalg.norm(values(v), axis=1, keepdims=True)
    along = (dw * values(v)).sum(1, keepdims=True) / size
    assert_close(g.grad, along)
    assert_close(v.grad, values(g) / size * (dw - along * values(v) / size))


@pytest.mark.parametrize("weight_norm", NORMS)
def test_a_direction_of_zeros_gives_zeros_and_no_nan(weight_norm):
    layer = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(layer.weight)
    weight_norm(layer)
    layer(ops.ones(1, 3)).sum().backward()
    assert layer.weight.tolist() == [[0.0] * 3] * 2
    assert all(np.isfinite(values(p.grad)).all() for p in layer.parameters())


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 4), lambda: nn.Conv2d(2, 3, 2)], ids=["linear", "conv"])
def test_the_largest_singular_value_becomes_1(spectral_norm, make):
    layer = spectral_norm(make(), n_power_iterations=40)
    layer(ops.ones(1, 6) if layer.weight.ndim == 2 else ops.ones(1, 2, 3, 3))
    assert largest(layer.weight) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_transposed_convolutions_have_their_outputs_in_the_second_axis(spectral_norm):
    layer = spectral_norm(nn.ConvTranspose1d(3, 5, 2))
    sizes = [tuple(b.shape) for b in layer.buffers()]
    assert sizes == [(5,), (6,)]


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_singular_vectors_move_in_training_alone(spectral_norm):
    layer = spectral_norm(nn.Linear(6, 4))
    x, before = ops.ones(1, 6), [b.tolist() for b in layer.buffers()]
    layer.eval()
    assert layer(x).tolist() == layer(x).tolist()
    assert [b.tolist() for b in layer.buffers()] == before
    layer.train()
    layer(x)
    assert [b.tolist() for b in layer.buffers()] != before


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_the_gradient_of_a_spectrally_normed_weight_takes_the_vectors_as_constants(spectral_norm):
    layer = spectral_norm(nn.Linear(3, 2, bias=False)).double().eval()
    (w,), (u, v) = layer.parameters(), map(values, layer.buffers())
    sigma = u @ values(w) @ v
    dw = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    (layer.weight * tensor(dw)).sum().backward()
    assert_close(w.grad, dw / sigma - (dw * values(w)).sum() / sigma**2 * np.outer(u, v))


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_a_weight_of_zeros_or_nan_leaves_the_vectors_as_they_are(spectral_norm):
    layer = spectral_norm(nn.Linear(3, 2))
    before = [b.tolist() for b in layer.buffers()]
    weight = dict(layer.named_parameters()).get("weight_orig", list(layer.parameters())[-1])
    for bad in (0.0, np.nan):
        weight.data = np.full((2, 3), bad, np.float32)
        layer(ops.ones(1, 3))
        assert [b.tolist() for b in layer.buffers()] == before


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_two_forwards_before_one_backward_have_vectors_of_their_own(spectral_norm):
    layer = spectral_norm(nn.Linear(3, 2))
    (layer(ops.ones(1, 3)) - layer(ops.zeros(1, 3))).sum().backward()


@pytest.mark.parametrize("norm", ALL)
def test_in_a_region_the_weight_stays_float32_and_the_product_is_16_bits(norm):
    layer = norm(nn.Linear(8, 4))
    layer.eval()
    x = tensor(np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32))
    with ampkit.autocast(dtype=ampkit.float16):
        assert layer.weight.dtype == ampkit.float32
        assert layer.weight.tolist() == layer.eval().weight.tolist()
        y = layer(x)
        assert y.dtype == ampkit.float16
    y.float().square().sum().backward()
    low = [p.grad.tolist() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).square().sum().backward()
    for got, parameter in zip(low, layer.parameters(), strict=True):
        assert_close(np.array(got), values(parameter.grad), (2e-2, 1e-2))


@pytest.mark.parametrize("norm", ALL)
def test_weights_in_16_bits_are_computed_in_float32_and_rounded_once(norm):
    layer = norm(nn.Linear(8, 4).half()).eval()
    wide = copy.deepcopy(layer).double()
    assert layer.weight.dtype == ampkit.float16
    assert_close(layer.weight, wide.weight, (2**-11, 2**-14))


@pytest.mark.parametrize("norm", ALL)
def test_recompute_gives_the_same_gradients_and_moves_the_vectors_once(norm):
    layer = norm(nn.Linear(6, 4))
    twin = copy.deepcopy(layer)
    x = ops.ones(2, 6, requires_grad=True)
    layer(x).square().sum().backward()
    ampkit.recompute(twin, x).square().sum().backward()
    for one, other in zip([*layer.parameters(), *layer.buffers()], [*twin.parameters(), *twin.buffers()], strict=True):
        assert one.tolist() == other.tolist()
        assert one.grad is None or one.grad.tolist() == other.grad.tolist()


@pytest.mark.parametrize("norm", ALL)
def test_a_copy_has_parameters_and_vectors_of_its_own(norm):
    layer = norm(nn.Linear(6, 4))
    layer(ops.ones(1, 6))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        held = [p.tolist() for p in [*layer.parameters(), *layer.buffers()]]
        assert twin.eval().weight.tolist() == copy.deepcopy(layer).eval().weight.tolist()
        twin.train()
        optimizer = optim.SGD(twin.parameters(), lr=1.0)
        twin(ops.ones(1, 6)).sum().backward()
        optimizer.step()
        assert [p.tolist() for p in [*layer.parameters(), *layer.buffers()]] == held
        assert [p.tolist() for p in [*twin.parameters(), *twin.buffers()]] != held


@pytest.mark.parametrize("norm", ALL)
def test_a_state_dict_brings_the_weight_back(norm):
    layer, other = norm(nn.Linear(6, 4)).eval(), norm(nn.Linear(6, 4)).eval()
    other.load_state_dict(layer.state_dict())
    assert other.weight.tolist() == layer.weight.tolist()


def test_a_parametrized_weight_takes_states_from_before_there_were_parametrizations():
    older = UTILS.weight_norm(nn.Conv1d(2, 3, 3))
    newer = nn.Sequential(parametrizations.weight_norm(nn.Conv1d(2, 3, 3)))
    newer.load_state_dict({f"0.{name}": value for name, value in older.state_dict().items()})
    assert newer[0].weight.tolist() == older.weight.tolist()
    alone = parametrizations.weight_norm(nn.Conv1d(2, 3, 3))
    alone.load_state_dict(older.state_dict())
    assert alone.weight.tolist() == older.weight.tolist()


@pytest.mark.parametrize("norm", ALL)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_trains_what_the_weight_is_computed_of(norm, compiled):
    ampkit.manual_seed(0)
    model = nn.Sequential(norm(nn.Linear(6, 4)), nn.GELU(), norm(nn.Linear(4, 1)))
    optimizer = optim.Adam(model.parameters(), lr=0.05)
    x, before = ops.randn(16, 6), [p.tolist() for p in model.parameters()]

    def step():
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = ampkit.compile(step, warmup=2) if compiled else step
    losses = [run().item() for _ in range(8)]
    assert losses[-1] < losses[0]
    assert all(p.tolist() != held for p, held in zip(model.parameters(), before, strict=True))
    assert_close(np.array(losses), np.array(LOSSES.setdefault(norm, losses)))


LOSSES: dict = {}  # of the first way to run the steps; the other ones give the same


@pytest.mark.parametrize("weight_norm", NORMS)
def test_a_weight_that_an_optimizer_holds_is_not_replaced(weight_norm):
    layer = nn.Linear(3, 2)
    optimizer = optim.SGD(layer.parameters())
    with pytest.raises(StateError, match=r"needs a Parameter that no optimizer holds.*\nhelp: make the"):
        weight_norm(layer)
    assert list(layer.state_dict()) == ["weight", "bias"]
    optimizer.step()


@pytest.mark.parametrize("spectral_norm", SPECTRAL)
def test_spectral_norm_leaves_the_parameter_to_the_optimizer_that_holds_it(spectral_norm):
    layer = nn.Linear(3, 2)
    optimizer = optim.SGD(layer.parameters(), lr=1.0)
    spectral_norm(layer)
    before = layer.eval().weight.tolist()
    layer(ops.tensor([[1.0, 2.0, 3.0]])).square().sum().backward()
    optimizer.step()
    assert layer.weight.tolist() != before


@pytest.mark.parametrize(("put_on", "take_off"), [
    (UTILS.weight_norm, UTILS.remove_weight_norm),
    (UTILS.spectral_norm, UTILS.remove_spectral_norm),
    (parametrizations.weight_norm, lambda layer: parametrize.remove_parametrizations(layer, "weight")),
    (parametrizations.spectral_norm, lambda layer: parametrize.remove_parametrizations(layer, "weight")),
])  # fmt: skip
def test_what_is_taken_off_leaves_a_parameter_of_the_same_values(put_on, take_off):
    layer = put_on(nn.Linear(3, 2)).eval()
    before = layer.weight.tolist()
    assert take_off(layer) is layer
    assert isinstance(layer.weight, nn.Parameter)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert layer.weight.tolist() == before
    assert not layer._forward_pre_hooks
    with pytest.raises(ArgumentError, match="needs the name of a"):
        take_off(layer)


def test_recurrent_layers_take_computed_weights():
    layer = nn.LSTM(3, 4)
    plain = copy.deepcopy(layer)
    UTILS.weight_norm(layer, "weight_hh_l0")
    x = ops.ones(5, 2, 3)
    assert_close(layer(x)[0], plain(x)[0])


# parametrizations of one's own


class Halved(nn.Module):
    """Of half the rows, with a right inverse that changes the values."""

    def forward(self, x):
        return x[:1]

    def right_inverse(self, x):
        return x * 0


class Symmetric(nn.Module):
    def forward(self, x):
        return ops.triu(x) + ops.triu(x, 1).T

    def right_inverse(self, x):
        return ops.triu(x)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Outer(nn.Module):
    def forward(self, a, b):
        return ops.outer(a, b)

    def right_inverse(self, x):
        return x[:, 0], x[0]


def test_a_parametrization_of_ones_own_is_read_assigned_and_trained():
    layer = parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
    assert layer.weight.tolist() == layer.weight.T.tolist()
    assert parametrize.is_parametrized(layer, "weight") and not parametrize.is_parametrized(layer, "bias")
    layer.weight = ops.ones(3, 3)
    assert layer.weight.tolist() == [[1.0] * 3] * 3
    assert layer.parametrizations.weight.original.tolist() == [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad.tolist() == [[1.0, 2.0, 2.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0]]


def test_parametrizations_follow_one_another():
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    before = layer.weight * 2
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert layer.weight.tolist() == before.tolist()
    with pytest.raises(StateError, match="needs a parametrization with a method `right_inverse`, got Doubled"):
        layer.weight = ops.ones(2, 2)
    parametrize.remove_parametrizations(layer, "weight")
    assert layer.weight.tolist() == before.tolist()
    assert not parametrize.is_parametrized(layer)


def test_several_originals_are_numbered():
    layer = parametrize.register_parametrization(nn.Linear(3, 2), "weight", Outer())
    assert [n for n, _ in layer.named_parameters()][1:] == [f"parametrizations.weight.original{i}" for i in (0, 1)]
    with pytest.raises(ArgumentError, match="needs leave_parametrized=True for several originals"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)


def test_a_removed_parametrization_can_leave_the_original():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight is weight


def test_within_cached_a_weight_is_computed_once():
    layer = parametrizations.spectral_norm(nn.Linear(3, 2))
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda m: UTILS.weight_norm(m, "wait"), ArgumentError, r"weight_norm: needs the name of a Parameter of Linear"),
    (lambda m: UTILS.weight_norm(m, dim=2), RangeError, "weight_norm: needs dim below 2, got 2"),
    (lambda m: UTILS.weight_norm(UTILS.weight_norm(m)), StateError, "needs a plain 'weight', got one that is computed"),
    (lambda m: UTILS.weight_norm(m, dim="0"), DTypeError, "weight_norm: needs dim as an integer, got '0'"),
    (lambda m: UTILS.weight_norm(5), DTypeError, "weight_norm: needs module as a Module, got 5"),
    (lambda m: UTILS.spectral_norm(m, dim=5), RangeError, "spectral_norm: needs dim below 2, got 5"),
    (lambda m: UTILS.spectral_norm(m, n_power_iterations=0), ArgumentError, "needs n_power_iterations from 1, got 0"),
    (lambda m: parametrizations.spectral_norm(m, "wait"), ArgumentError, "needs the name of a Parameter of Linear"),
    (lambda m: UTILS.weight_norm(m).__setattr__("weight", ops.ones(2, 3)), StateError, "a Parameter to assign to"),
    (lambda m: parametrize.register_parametrization(m, "weight", nn.Flatten(0)), ShapeError, r"the shape \(2, 3\)"),
    (lambda m: parametrize.register_parametrization(m, "weight", Halved()), ShapeError, r"the shape \(2, 3\)"),
    (lambda m: parametrize.register_parametrization(m, "weight", len), DTypeError, "parametrization as a Module"),
    (lambda m: parametrize.register_parametrization(m, "weight", By(tuple)), ArgumentError, "that returns a Tensor"),
    (lambda m: parametrize.register_parametrization(m, "weight", By(ops.isnan)), ArgumentError, "that keeps float32"),
    (lambda m: parametrize.transfer_parametrizations_and_params(m, m), ArgumentError, "a tensor with parametrizations"),
    (lambda m: setattr(parametrizations.weight_norm(m), "weight", ops.ones(3)), ShapeError, "needs originals"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line_and_changes_nothing(call, error, match):
    layer = nn.Linear(3, 2)
    before = layer(ops.ones(1, 3)).tolist()
    with pytest.raises(error, match=match):
        call(layer)
    assert_close(layer(ops.ones(1, 3)), np.array(before, np.float32))


class By(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("several", [False, True])
def test_parametrizations_go_to_another_module_with_the_values_of_their_originals(several):
    source, target, without = nn.Linear(3, 2), nn.Linear(3, 2), nn.Identity()
    kind = type(source)
    if several:
        parametrizations.weight_norm(source)
    else:
        parametrize.register_parametrization(source, "weight", By(lambda w: w * 2))
        parametrize.register_parametrization(source, "bias", By(lambda b: b + 1))
    assert parametrize.type_before_parametrizations(source) is kind
    assert parametrize.transfer_parametrizations_and_params(source, target) is target
    parametrize.transfer_parametrizations_and_params(source, without, "weight")
    for module in (target, without):
        assert_close(module.weight, values(source.weight))
        assert module.parametrizations.weight[0] is source.parametrizations.weight[0]
    assert len(target.parametrizations) == len(source.parametrizations)
    trained = {id(p) for p in source.parameters()}
    assert not trained & {id(p) for p in target.parameters()}
    assert [p.requires_grad for p in without.parameters()] == [True, True] if several else [True]


# orthogonal: columns, or rows, that are orthonormal

MAPS = ("matrix_exp", "cayley", "householder")


def tall(matrix):
    return np.asarray(matrix) if matrix.shape[-2] >= matrix.shape[-1] else np.swapaxes(matrix, -1, -2)


def orthogonal_factor(matrix):
    q, r = np.linalg.qr(tall(matrix))
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    return q if matrix.shape[-2] >= matrix.shape[-1] else np.swapaxes(q, -1, -2)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3)], ids=str)
@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("trivialization", [False, True])
def test_an_orthogonal_weight_stays_orthogonal_and_begins_as_the_weight_s_factor(shape, kind, trivialization):
    layer = nn.Module()
    layer.w = nn.Parameter(ampkit.randn(*shape, dtype=ampkit.float64))
    before = values(layer.w)
    assert parametrizations.orthogonal(layer, "w", kind, use_trivialization=trivialization) is layer
    original = layer.parametrizations.w.original
    if trivialization or kind == "householder":
        np.testing.assert_allclose(values(layer.w), orthogonal_factor(before), atol=1e-12)
        assigned = ampkit.randn(*shape, dtype=ampkit.float64)
        layer.w = assigned
        np.testing.assert_allclose(values(layer.w), orthogonal_factor(values(assigned)), atol=1e-12)
    else:
        assert original.tolist() == before.tolist()
        with pytest.raises(StateError, match="needs a parametrization with a method `right_inverse`"):
            layer.w = layer.w.detach()
    optimizer = optim.SGD(layer.parameters(), lr=0.3)
    target = ampkit.randn(*shape, dtype=ampkit.float64)
    for _ in range(2):
        optimizer.zero_grad()
        (layer.w - target).square().sum().backward()
        assert not np.triu(tall(values(original.grad))).any()  # the diagonal has signs alone
        optimizer.step()
        q = tall(values(layer.w))
        squares = np.swapaxes(q, -1, -2) @ q
        np.testing.assert_allclose(squares, np.broadcast_to(np.eye(q.shape[-1]), squares.shape), atol=1e-12)


@pytest.mark.parametrize("kind", MAPS)
def test_gradients_flow_through_an_orthogonal_weight(kind):
    layer = nn.Linear(3, 5).double()
    parametrizations.orthogonal(layer, "weight", kind)
    layer.parametrizations.weight.original.data = ampkit.randn(5, 3, dtype=ampkit.float64)
    x = ampkit.randn(2, 3, dtype=ampkit.float64)
    assert gradcheck(lambda weight: layer(x).tanh(), (layer.parametrizations.weight.original,))


def test_the_map_is_by_default_the_exponential_for_square_matrices_and_reflections_for_others():
    for shape, kind in (((3, 3), "matrix_exp"), ((3, 4), "householder")):
        layer = parametrizations.orthogonal(nn.Linear(*shape))
        assert repr(layer.parametrizations.weight[0]) == f"Trivialization({kind})"


def test_an_orthogonal_weight_of_16_bits_under_autocast_and_its_state():
    layer = parametrizations.orthogonal(nn.Linear(4, 4).bfloat16())
    assert layer.weight.dtype == ampkit.bfloat16
    other = parametrizations.orthogonal(nn.Linear(4, 4).bfloat16())
    other.load_state_dict(layer.state_dict())
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert other.weight.tolist() == layer.weight.tolist()


def test_what_cannot_be_orthogonal_is_refused():
    with pytest.raises(ArgumentError, match="orthogonal: needs orthogonal_map that has to be one of .*, got 'qr'"):
        parametrizations.orthogonal(nn.Linear(2, 2), "weight", "qr")
    with pytest.raises(ShapeError, match="orthogonal: needs a matrix"):
        parametrizations.orthogonal(nn.Linear(2, 2), "bias")
    with pytest.raises(ArgumentError, match="nothing"):
        parametrizations.orthogonal(nn.Linear(2, 2), "nothing")
    layer = parametrizations.orthogonal(nn.Linear(3, 2))
    with pytest.raises(ShapeError, match=r"orthogonal: needs matrices of shape .*, got \(5, 5\)"):
        layer.weight = ampkit.zeros(5, 5)
