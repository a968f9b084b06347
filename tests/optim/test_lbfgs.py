"""LBFGS: known minima, its formulas in float64, its state, and what it refuses."""

import copy
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, DTypeError, NonFiniteError, StateError
from ampkit.optim.lbfgs.inverse_hessian import InverseHessian
from ampkit.optim.lbfgs.line_search import Point


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def parameter(array, dtype=ampkit.float64):
    return nn.Parameter(ampkit.tensor(np.asarray(array, np.float64)).to(dtype).detach())


def rosenbrock(x):
    a, b = x[:-1], x[1:]
    return ops.sum(100 * (b - a * a) ** 2 + (1 - a) ** 2)


def closure(optimizer, loss):
    def evaluate():
        optimizer.zero_grad()
        found = loss()
        found.backward()
        return found

    return evaluate


START = [1.3, 0.7, 0.8, 1.9]


@pytest.mark.parametrize(
    "options",
    [{"line_search_fn": "strong_wolfe"}, {"line_search_fn": "strong_wolfe", "history_size": 3}, {"lr": 0.3}],
    ids=str,
)
def test_it_finds_the_minimum_of_rosenbrocks_valley(options):
    x, y = parameter(START[:3]), parameter([START[3]])
    optimizer = optim.LBFGS([x, y], max_iter=100, **options)
    losses = [float(optimizer.step(closure(optimizer, lambda: rosenbrock(ops.cat([x, y]))))) for _ in range(4)]
    np.testing.assert_allclose([*values(x), *values(y)], 1.0, atol=1e-4)
    assert losses[0] == pytest.approx(float(rosenbrock(ampkit.tensor(np.array(START)))))


@pytest.mark.parametrize("maximize", [False, True])
def test_a_parabola_takes_as_many_steps_as_it_has_axes(maximize):
    a, best = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, -2.0])
    x, sign = parameter([5.0, 5.0]), -1 if maximize else 1
    optimizer = optim.LBFGS([x], tolerance_change=1e-15, line_search_fn="strong_wolfe", maximize=maximize)

    def loss():
        away = x - ampkit.tensor(best, device=x.device)
        return sign * ops.sum(away * ops.mv(ampkit.tensor(a, device=x.device), away))

    optimizer.step(closure(optimizer, loss))
    np.testing.assert_allclose(values(x), best, atol=1e-7)
    assert optimizer.state[x]["n_iter"] < 15


def test_its_direction_is_that_of_the_inverse_hessian_written_out():
    rng = np.random.default_rng(0)
    hessian = np.diag(rng.uniform(1, 9, 6))
    history, gradient = InverseHessian(3), rng.standard_normal(6)
    pairs = []
    for _ in range(6):
        history.next_direction(Point(0.0, 0.0, gradient, 0.0), 1.0)
        history.t = 0.3
        move = history.direction * 0.3
        pairs.append((move, hessian @ move))
        gradient = gradient + hessian @ move
    history.next_direction(Point(0.0, 0.0, gradient, 0.0), 1.0)
    move, change = pairs[-1]
    inverse = np.eye(6) * (change @ move) / (change @ change)
    for move, change in pairs[-3:]:
        left = np.eye(6) - np.outer(move, change) / (change @ move)
        inverse = left @ inverse @ left.T + np.outer(move, move) / (change @ move)
    np.testing.assert_allclose(history.direction, -inverse @ gradient, rtol=1e-12)


def trained(optimizer, steps):
    (x,) = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        optimizer.step(closure(optimizer, lambda: rosenbrock(x.float() if x.dtype != ampkit.float64 else x)))
    return values(x).tobytes()


def loaded(optimizer):
    (x,) = optimizer.param_groups[0]["params"]
    other = optim.LBFGS([nn.Parameter(x.detach().clone())], lr=0.5)
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), loaded])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float64, ampkit.bfloat16], ids=str)
def test_a_copy_and_a_loaded_state_go_on_bit_for_bit(dtype, search, way):
    optimizer = optim.LBFGS([parameter(START, dtype)], lr=0.1, max_iter=3, history_size=4, line_search_fn=search)
    trained(optimizer, 3)
    twin = way(optimizer)
    assert trained(optimizer, 3) == trained(twin, 3)
    assert trained(optimizer, 3) == trained(twin, 3)


def test_its_state_is_that_of_the_first_parameter_in_pytorchs_words():
    x, y = parameter(START), parameter([2.0])
    optimizer = optim.LBFGS([x, y], lr=1e-3, max_iter=3, max_eval=9)
    optimizer.step(closure(optimizer, lambda: rosenbrock(x) + ops.sum(y * y)))
    state = optimizer.state_dict()["state"]
    assert list(state) == [0]
    words = "func_evals n_iter d t old_dirs old_stps ro H_diag prev_flat_grad prev_loss".split()
    assert sorted(state[0]) == sorted(words)
    assert state[0]["n_iter"] == state[0]["func_evals"] == 3
    assert tuple(state[0]["d"].shape) == tuple(state[0]["old_dirs"][0].shape) == (5,)


@pytest.mark.parametrize("dtype", [ampkit.float16, ampkit.bfloat16], ids=str)
def test_parameters_in_16_bits_move_by_less_than_their_spacing(dtype):
    x = parameter([1.0, 1.0], dtype)
    optimizer = optim.LBFGS([x], lr=2.0**-13, max_iter=1)
    for _ in range(2**9):
        optimizer.step(closure(optimizer, lambda: ops.sum(x.float())))
    np.testing.assert_allclose(values(x).astype(float), 1 - 2**9 * 2.0**-13, rtol=1e-2)
    assert (values(x) < 1).all()


def test_it_trains_under_autocast_and_refreshes_the_copies():
    ampkit.manual_seed(0)
    layer = nn.Linear(4, 2)
    x, t = ampkit.randn(16, 4), ampkit.randn(16, 2)
    optimizer = optim.LBFGS(layer.parameters(), max_iter=5, line_search_fn="strong_wolfe")

    def loss():
        with ampkit.autocast(dtype=ampkit.bfloat16):
            return ops.mse_loss(layer(x).float(), t)

    first = float(optimizer.step(closure(optimizer, loss)))
    assert float(optimizer.step(closure(optimizer, loss))) < 0.9 * first
    fresh = ops.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16(), layer.bias.detach().clone().bfloat16())
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert np.allclose(values(layer(x).float()), values(fresh.float()), atol=0.02)


def test_a_parameter_without_a_gradient_stays_where_it_is():
    x, y = parameter(START), parameter([7.0])
    optimizer = optim.LBFGS([y, x], line_search_fn="strong_wolfe")
    optimizer.step(closure(optimizer, lambda: rosenbrock(x)))
    assert values(y) == 7.0 and values(x)[0] != START[0]


def interrupted(optimizer, after, what):
    (x,), left = optimizer.param_groups[0]["params"], [after]

    def evaluate():
        left[0] -= 1
        if left[0] < 0:
            return what(x)
        return closure(optimizer, lambda: rosenbrock(x))()

    return evaluate


def boom(x):
    raise KeyboardInterrupt


def nan(x):
    loss = ops.sum(x * float("nan"))
    loss.backward()
    return loss


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize(("what", "error"), [(boom, KeyboardInterrupt), (nan, NonFiniteError)])
def test_whatever_a_step_raises_parameters_and_state_are_what_they_were(what, error, after, search):
    optimizer = optim.LBFGS([x := parameter(START)], lr=1e-3, max_iter=8, line_search_fn=search)
    trained(optimizer, 2)
    before, state = values(x).tobytes(), pickle.dumps(values(optimizer.state[x]["d"]))
    if search and what is nan and after:
        optimizer.step(interrupted(optimizer, after, what))  # a search steps back from there
        assert np.isfinite(values(x)).all()
        return
    with pytest.raises(error):
        optimizer.step(interrupted(optimizer, after, what))
    assert values(x).tobytes() == before and pickle.dumps(values(optimizer.state[x]["d"])) == state


def test_an_error_about_a_loss_that_is_not_finite_names_the_cure():
    optimizer = optim.LBFGS([parameter(START)])
    with pytest.raises(NonFiniteError, match=r"needs a finite loss and gradient, got a loss of nan\nhelp: "):
        optimizer.step(interrupted(optimizer, 0, nan))


def test_a_scaler_and_it_do_not_go_together():
    x = parameter(START, ampkit.float32)
    optimizer, scaler = optim.LBFGS([x]), ampkit.GradScaler()
    scaler.scale(rosenbrock(x)).backward()
    with pytest.raises(StateError, match="Closure use is not currently supported if GradScaler is enabled"):
        scaler.step(optimizer, lambda: rosenbrock(x))
    with pytest.raises(StateError, match="needs an optimizer that needs no closure, got LBFGS\nhelp: call"):
        scaler.step(optimizer)

    def scaled():
        loss = scaler.scale(rosenbrock(x))
        loss.backward()
        return loss

    before = values(x)
    with pytest.raises(StateError, match="LBFGS.step: needs unscaled gradients"):
        optimizer.step(scaled)
    np.testing.assert_array_equal(values(x), before)
    off = ampkit.GradScaler(enabled=False)
    assert float(off.step(optimizer, closure(optimizer, lambda: off.scale(rosenbrock(x)))).value) > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "LBFGS.step: needs a closure, got a NoneType"),
        (lambda: None, "LBFGS.step: needs a closure that returns the loss, one number, got a NoneType"),
        (lambda: ampkit.ones(2), r"one number, got a Tensor \[2\]"),
    ],
)
def test_a_closure_returns_the_loss(given, message):
    with pytest.raises(DTypeError, match=message):
        optim.LBFGS([parameter(START)]).step(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iter": 0}, "LBFGS: needs max_iter as an integer from 1 to 2147483647, got 0"),
        ({"max_eval": 2.5}, "LBFGS: needs max_eval as an integer from 1 to 2147483647, got 2.5"),
        ({"history_size": "x"}, "LBFGS: needs history_size as an integer from 1 to 2147483647, got 'x'"),
        ({"tolerance_grad": -1}, "LBFGS: needs tolerance_grad >= 0, got -1"),
        ({"line_search_fn": "wolfe"}, "LBFGS: needs line_search_fn None or 'strong_wolfe', got 'wolfe'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        optim.LBFGS([parameter(START)], **options)


def test_there_is_one_group():
    first, second = parameter(START), parameter(START)
    with pytest.raises(ArgumentError, match="LBFGS: needs one group of parameters, got another one"):
        optim.LBFGS([{"params": [first]}, {"params": [second]}])
    assert first._arena_segment is None
    with pytest.raises(ArgumentError, match="LBFGS: needs one group"):
        optim.LBFGS([first]).add_param_group({"params": [second]})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("d", None, "needs the whole state, got one without d"),
        ("d", np.ones(3), r"needs vectors of 4 elements, got d \[3\]"),
        ("old_stps", [], r"needs as many old_dirs as old_stps and ro, in lists, got \[\d, 0, \d\]"),
        ("old_dirs", 7, "needs as many old_dirs"),
        ("d", ["x"] * 4, "needs d as numbers, got"),
        ("exp_avg", 1, "needs a state of LBFGS, got one with exp_avg"),
        ("t", "x", "needs t as a number, got 'x'"),
        ("ro", ["x", "x", "x"], "needs ro as a number, got 'x'"),
        ("n_iter", -1, "needs n_iter as an integer from 0 to 2147483647, got -1"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(key, value, message):
    optimizer = optim.LBFGS([x := parameter(START)], lr=1e-3, max_iter=4)
    trained(optimizer, 1)
    state = optimizer.state_dict()
    state["state"][0][key] = value
    with pytest.raises(ArgumentError, match=f"LBFGS.load_state_dict: {message}"):
        optimizer.load_state_dict(state)
    assert values(optimizer.state[x]["d"]).shape == (4,) and optimizer.state[x]["n_iter"] == 4


def test_the_state_of_no_group_loads():
    optimizer = optim.LBFGS([parameter([1.0, 2.0])])
    optimizer.param_groups.clear()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups == []


def test_a_loss_beyond_float64_is_infinite():
    with pytest.raises(NonFiniteError):
        optim.LBFGS([parameter(START)]).step(lambda: 10**400)
