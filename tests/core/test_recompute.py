import numpy as np
import pytest

import ampkit
from ampkit import autocast, nn, ops
from ampkit.base.errors import DTypeError, StateError


def leaf(*values, dtype=ampkit.float64):
    return ampkit.tensor(list(values), dtype=dtype, requires_grad=True)


@pytest.mark.cpu
def test_recompute_gives_the_same_gradients_for_arguments_and_parameters():
    layer = nn.Linear(3, 3)
    x = leaf(1.0, 2.0, 3.0, dtype=ampkit.float32)

    def run(call):
        x.grad = layer.weight.grad = None
        call(lambda t: ops.tanh(layer(t)).pow(2), x).sum().backward()
        return x.grad.array.copy(), layer.weight.grad.array.copy()

    for direct, again in zip(run(lambda f, t: f(t)), run(ampkit.recompute), strict=True):
        np.testing.assert_array_equal(direct, again)


@pytest.mark.cpu
def test_recompute_enters_the_forward_s_region_and_random_state_again():
    w, seen = nn.Parameter(np.ones((8, 8), np.float32)), []
    x = ampkit.tensor(np.ones((4, 8)), dtype=ampkit.float32, requires_grad=True)

    def block(t):
        y = ops.dropout(ops.linear(t, w), 0.5)
        seen.append((y.dtype, y.detach().float().numpy().copy()))
        return y

    ampkit.manual_seed(3)
    with autocast(dtype=ampkit.float16):
        y = ampkit.recompute(block, x)
    after = ampkit.get_rng_state()
    y.float().sum().backward()
    (first, a), (second, b) = seen
    assert first == second == ampkit.float16
    np.testing.assert_array_equal(a, b)
    assert ampkit.get_rng_state() == after


def test_recompute_notices_an_argument_that_changed_in_place():
    x, mask = leaf(1.0, 2.0), ampkit.tensor([1.0, 0.0], dtype=ampkit.float64)
    y = ampkit.recompute(lambda t, m: ops.exp(t) * m, x, mask).sum()
    mask.fill_(3.0)
    with pytest.raises(StateError, match="an argument of recompute that changed in place since"):
        y.backward()


@pytest.mark.cpu
def test_recompute_keeps_nothing_but_its_arguments():
    x = leaf(1.0, 2.0)
    y = ampkit.recompute(lambda t: ops.exp(ops.exp(t)), x)
    assert y.node.op.name == "recompute"
    (g,) = ampkit.grad(y.sum(), x)
    np.testing.assert_allclose(g.array, np.exp(np.exp(x.array)) * np.exp(x.array))


def test_recompute_keeps_the_gradient_of_a_weight_wide():
    w, x = nn.Parameter(ampkit.ones(2, 2)), ampkit.ones(3, 2)
    with autocast(dtype=ampkit.float16):
        y = ampkit.recompute(ops.linear, x, w)
    (y.float().sum() * 60000).backward()
    assert w.grad.tolist() == [[180000.0] * 2] * 2


def test_what_the_function_reads_by_itself_must_not_change_before_backward():
    layer, x = nn.Sequential(nn.Linear(2, 2)), ampkit.ones(3, 2)
    optimizer = ampkit.optim.SGD(layer.parameters(), lr=0.5)
    y = ampkit.recompute(lambda t: ops.tanh(layer(t)), x).sum()
    ops.sum(layer(x)).backward()
    optimizer.step()
    with pytest.raises(StateError, match=r"parameter '0\.\w+' of recompute that changed in place since"):
        y.backward()


def test_buffers_that_the_function_itself_writes_are_no_change():
    norm, x = nn.BatchNorm1d(2), ampkit.tensor(np.arange(6.0).reshape(3, 2), dtype=ampkit.float32, requires_grad=True)
    y = ampkit.recompute(norm, x)
    ops.sum(norm(x) * 2).backward()
    y.sum().backward()
    assert norm.weight.grad is not None


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, lambda n: nn.BatchNorm1d(n, momentum=None), nn.LazyInstanceNorm1d])
def test_running_statistics_move_once(kind):
    x = ampkit.tensor(np.arange(12.0).reshape(3, 2, 2), dtype=ampkit.float32, requires_grad=True)
    norms = [kind(2) if kind is not nn.LazyInstanceNorm1d else kind() for _ in range(2)]
    norms[0](x).sum().backward()
    ampkit.recompute(norms[1], x).sum().backward()
    assert [b.tolist() for b in norms[0].buffers()] == [b.tolist() for b in norms[1].buffers()]


def test_recompute_takes_keywords_and_returns_any_nest():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)

    def nest(a, b, count=1):
        return {"loss": a * b, "more": [(b * b, a > 1), None], "n": count}

    def run(call):
        x.grad = y.grad = None
        out = call(
            lambda a, b, count=1: {"loss": a * b, "more": [(b * b, a > 1), None], "n": count}, x, b=y * 2, count=7
        )
        assert out["n"] == 7
        assert out["more"][1] is None
        assert out["more"][0][1].tolist() == [False, True]
        ops.sum(out["loss"] + out["more"][0][0]).backward()
        return x.grad.tolist(), y.grad.tolist()

    assert run(ampkit.recompute) == run(lambda f, *args, **options: f(*args, **options))


def test_a_function_that_computes_something_else_the_second_time_is_refused():
    x, calls = leaf(1.0, 2.0), []

    def unsteady(t):
        calls.append(t)
        return t * 2 if len(calls) == 1 else (t * 2, t)

    y = ampkit.recompute(unsteady, x)
    with pytest.raises(StateError, match="recompute: needs a function that returns tensors like its first run's"):
        y.sum().backward()


def test_recompute_of_no_function_is_refused():
    with pytest.raises(DTypeError, match="recompute: needs a function and its arguments, got a Tensor"):
        ampkit.recompute(leaf(1.0))
