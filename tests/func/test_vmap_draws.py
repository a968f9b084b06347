"""Random ops under `vmap`: with randomness="different" one draw of all samples, of which each has its own part."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import distributions, func, ops
from ampkit.base.errors import StateError
from ampkit.core.dispatch.batching.call import watching_loops

P = [[0.2, 0.5, 0.3], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]]
DRAWS = {
    "rand": lambda p, lead: ampkit.rand(*lead, 3),
    "randn": lambda p, lead: ampkit.randn(*lead, 3),
    "randint": lambda p, lead: ampkit.randint(5, (*lead, 3)),
    "normal": lambda p, lead: ampkit.normal(0.0, 1.0, (*lead, 3)),
    "rand_like": lambda p, lead: ampkit.rand_like(p),
    "normal of means": lambda p, lead: ampkit.normal(p, 0.5),
    "normal of deviations": lambda p, lead: ampkit.normal(1.0, p),
    "bernoulli": lambda p, lead: ampkit.bernoulli(p),
    "poisson": lambda p, lead: ampkit.poisson(p * 9),
    "binomial": lambda p, lead: ampkit.binomial((p * 9).floor(), p),
    "multinomial": lambda p, lead: ampkit.multinomial(p, 2),
    "multinomial with replacement": lambda p, lead: ampkit.multinomial(p, 5, replacement=True),
    "gumbel_softmax": lambda p, lead: ops.gumbel_softmax(p),
    "rrelu": lambda p, lead: ops.rrelu(-p, training=True),
    "normal_": lambda p, lead: ops.zeros_like(p).normal_(),
    "uniform_": lambda p, lead: ops.zeros_like(p).uniform_(),
    "random_": lambda p, lead: ops.zeros_like(p).random_(9),
    "exponential_": lambda p, lead: ops.zeros_like(p).exponential_(),
    "geometric_": lambda p, lead: ops.zeros_like(p).geometric_(0.5),
    "bernoulli_": lambda p, lead: ops.zeros_like(p).bernoulli_(p),
    "gamma": lambda p, lead: distributions.Gamma(p, p, validate_args=False).sample(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
@pytest.mark.parametrize("generator", [None, 7], ids=["default stream", "seed 7"])
def test_samples_draw_what_one_draw_of_the_whole_batch_gives(draw, generator):
    p = ampkit.tensor(P)
    ampkit.manual_seed(generator or 3)
    wanted = draw(p, (4,))
    ampkit.manual_seed(generator or 3)
    with watching_loops() as looped:
        found = func.vmap(lambda row: draw(row, ()), randomness="different")(p)
    assert not looped
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()
    assert found[0].tolist() != found[1].tolist() or found[1].tolist() != found[2].tolist()


def test_a_generator_is_drawn_from_once():
    def of(stream):
        return ampkit.randn(4, 3, generator=stream)

    x, one, other = ampkit.zeros(4), ampkit.Generator().manual_seed(5), ampkit.Generator().manual_seed(5)
    found = func.vmap(lambda _: ampkit.randn(3, generator=one), randomness="different")(x)
    assert found.tolist() == of(other).tolist()
    assert one.get_state() == other.get_state()


def test_levels_that_differ_draw_for_all_their_samples_and_others_once():
    x = ampkit.zeros(2, 3)

    def nested(outer, inner):
        ampkit.manual_seed(1)
        each = func.vmap(lambda _: ampkit.randn(4), randomness=inner)
        return func.vmap(each, randomness=outer)(x)

    ampkit.manual_seed(1)
    whole = ampkit.randn(2, 3, 4)
    assert nested("different", "different").tolist() == whole.tolist()
    ampkit.manual_seed(1)
    rows = ampkit.randn(2, 4)
    assert nested("different", "same").tolist() == rows[:, None].expand(2, 3, 4).tolist()
    ampkit.manual_seed(1)
    rows = ampkit.randn(3, 4)
    assert nested("same", "different").tolist() == rows.expand(2, 3, 4).tolist()


def test_a_permutation_is_one_of_each_sample():
    found = func.vmap(lambda _: ampkit.randperm(50), randomness="different")(ampkit.zeros(3))
    assert found.sort(-1).values.tolist() == [list(range(50))] * 3
    assert found[0].tolist() != found[1].tolist()


def test_parameters_of_means_that_broadcast_within_a_sample():
    mean, std = ampkit.tensor(P), ampkit.tensor([[0.1], [0.2]])
    ampkit.manual_seed(2)
    wanted = ampkit.normal(mean[:, None].expand(4, 2, 3), std.expand(4, 2, 3))
    ampkit.manual_seed(2)
    found = func.vmap(lambda m: ampkit.normal(m, std), randomness="different")(mean)
    assert found.tolist() == wanted.tolist()


def test_draws_that_cannot_be_said_for_each_sample_are_refused():
    p = ampkit.tensor(P)
    with pytest.raises(StateError, match=r"draw with randomness=\"same\"(?s:.*)randomness=\"different\""):
        func.vmap(ampkit.bernoulli, randomness="same")(p)
    with pytest.raises(StateError, match='no random op with randomness="error"'):
        func.vmap(ampkit.bernoulli)(p)
    shared = ampkit.zeros(3)
    with pytest.raises(StateError, match="a tensor that all samples share"):
        func.vmap(lambda x: shared.normal_() + x, randomness="different")(p)
    assert shared.tolist() == [0, 0, 0]
