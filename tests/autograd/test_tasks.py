"""fork and wait: tasks that run side by side, with the bits of a run in which each ran where it was begun."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import DTypeError
from ampkit.core.autograd import tasks

pytestmark = pytest.mark.no_gpu


@pytest.fixture(params=[0, 1, 2])
def order(request, monkeypatch):
    """In which order tasks run: each at once; when they are waited for; in threads, the first ones last."""
    if request.param == 0:
        monkeypatch.setattr(tasks, "_start", lambda future: future._run())
    elif request.param == 1:
        monkeypatch.setattr(tasks, "_start", lambda future: None)
    else:
        number = iter(range(100))

        def start(future):
            threading.Timer(0.02 * (5 - next(number) % 5), future._run).start()

        monkeypatch.setattr(tasks, "_start", start)
        monkeypatch.setattr(tasks.Future, "wait", lambda future: future._outcome.result())
    return request.param


class Shared(nn.Module):
    """Three branches that use one weight and one input several times, so that the order of gradients shows in bits."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(33, 33), nn.Dropout(0.3)

    def branch(self, x, power):
        for _ in range(3):
            x = self.dropout(ops.tanh(self.linear(x) * power))
        return x

    def forward(self, x):
        futures = [ampkit.fork(self.branch, x, power) for power in (1.0, 3.0, 1e3)]
        own = self.branch(x, 0.7)
        return own + sum(ampkit.wait(future) for future in futures)


def gradients():
    ampkit.manual_seed(0)
    model, x = Shared(), ampkit.randn(17, 33, requires_grad=True)
    out = model(x)
    ops.sum(out * out).backward()
    return [out.detach().numpy(), x.grad.numpy(), *[p.grad.numpy() for p in model.parameters()], ampkit.rand(3).numpy()]


EXPECTED = {}


def test_values_draws_and_gradients_have_the_bits_of_a_run_in_sequence(order):
    found = gradients()
    expected = EXPECTED.setdefault("bits", found)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_tasks_run_side_by_side():
    meeting = threading.Barrier(2, timeout=20)
    first = ampkit.fork(meeting.wait)
    meeting.wait()
    first.wait()
    assert first.done()


def test_a_task_that_has_not_begun_runs_where_it_is_waited_for():
    release = threading.Event()
    waiting = [ampkit.fork(release.wait, 20) for _ in range(100)]  # more than there are threads
    last = ampkit.fork(threading.get_ident)
    assert last.wait() == threading.get_ident()
    release.set()
    assert all(future.wait() for future in waiting)


def test_a_task_may_wait_for_tasks_of_its_own(order):
    def count(depth):
        if not depth:
            return 1
        return sum(future.wait() for future in [ampkit.fork(count, depth - 1) for _ in range(3)])

    assert ampkit.wait(ampkit.fork(count, 3)) == 27


def test_a_task_is_in_the_regions_of_its_caller(order):
    x = ampkit.ones(2, 2, requires_grad=True)
    with ampkit.autocast(dtype=ampkit.bfloat16):
        low = ampkit.fork(ops.matmul, x, x)
    with ampkit.no_grad():
        unrecorded = ampkit.fork(lambda: (x * 2, ampkit.is_grad_enabled()))
    assert low.wait().dtype == ampkit.bfloat16
    assert not unrecorded.wait()[0].requires_grad
    assert not unrecorded.wait()[1]
    assert ampkit.is_grad_enabled()


def test_changes_in_place_within_a_task_are_no_changes_after_it(order):
    def task(x):
        y = x * 2
        y.add_(1.0)
        return y * y

    x = ampkit.tensor([1.0, 2.0], requires_grad=True)
    future = ampkit.fork(task, x)
    z = x * 3
    (future.wait() * z).sum().backward()
    values = x.detach().numpy().astype(np.float64)
    expected = 2 * (2 * values + 1) * 2 * 3 * values + (2 * values + 1) ** 2 * 3
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_a_backward_pass_may_be_part_of_a_task(order):
    def step(seed):
        rng = np.random.default_rng(seed)
        weight = nn.Parameter(ampkit.tensor(rng.standard_normal((8, 8)).astype(np.float32)))
        ops.sum(ops.tanh(weight @ weight)).backward()
        return weight.grad.numpy()

    both = [ampkit.fork(step, seed) for seed in (1, 2)]
    assert all(np.array_equal(future.wait(), step(seed)) for future, seed in zip(both, (1, 2), strict=True))


def test_an_error_is_raised_by_wait_each_time(order):
    def fail():
        raise ValueError("of the task")

    future = ampkit.fork(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="of the task"):
            ampkit.wait(future)


def test_results_within_containers_have_their_places(order):
    def grads():
        ampkit.manual_seed(1)
        weight = ampkit.randn(9, 9, requires_grad=True)
        futures = [ampkit.fork(lambda c=c: {"a": [weight @ weight * c, (weight * c,)]}) for c in (1.0, 1e4, 1e-4)]
        late = weight * 7e3 @ weight
        found = [future.wait()["a"] for future in futures]
        (sum(each[0] + each[1][0] for each in found) + late).sum().backward()
        return weight.grad.numpy()

    expected = EXPECTED.setdefault("containers", grads())
    assert np.array_equal(grads(), expected)


def test_callbacks_hear_of_the_end():
    heard, future = [], ampkit.fork(lambda: 3)
    future.add_done_callback(lambda done: heard.append(done.value()))
    assert future.wait() == 3
    for _ in range(1000):
        if heard:
            break
        time.sleep(0.01)
    assert heard == [3]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(lambda: ampkit.fork(3), "fork: needs a function, got a int"), (lambda: ampkit.wait(3), "wait: needs what fork")],
)
def test_what_is_no_task_is_refused(wrong, said):
    with pytest.raises(DTypeError, match=said):
        wrong()
