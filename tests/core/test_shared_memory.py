"""Tensors in memory that processes share."""

import copy
import multiprocessing
import pickle

import pytest
from core.in_another_process import add_one, train

import ampkit
from ampkit import nn, optim
from ampkit.base.errors import StateError

pytestmark = pytest.mark.cpu


def in_a_process(target, *arguments):
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_process_trains_the_model_that_it_was_given(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).share_memory()
    alone = copy.deepcopy(model)
    assert all(t.is_shared() for t in model.state_dict().values())
    in_a_process(train, model, tmp_path / "weights")
    there = pickle.loads((tmp_path / "weights").read_bytes())
    train(alone, tmp_path / "alone")
    here = [p.tolist() for p in model.parameters()]
    assert here == there == [p.tolist() for p in alone.parameters()]
    assert model[1].running_mean.tolist() == alone[1].running_mean.tolist() != [0.0, 0.0]


def test_casts_see_what_another_process_changed():
    linear = nn.Linear(2, 1, bias=False).share_memory()
    x = ampkit.ones(1, 2)
    with ampkit.no_grad(), ampkit.autocast(dtype=ampkit.bfloat16):
        before = linear(x).item()
        linear.weight.fill_(1.0)
        assert linear(x).item() == 2.0 != before
        in_a_process(add_one, linear.weight.detach())
        assert linear(x).item() == 4.0
    optimizer = optim.SGD(linear.parameters(), lr=0.0)
    linear(x).sum().backward()
    optimizer.step()
    with ampkit.no_grad(), ampkit.autocast(dtype=ampkit.bfloat16):
        assert linear(x).item() == 4.0
        in_a_process(add_one, linear.weight.detach())
        assert linear(x).item() == 6.0


def test_views_dtypes_and_a_tensor_without_elements_are_shared():
    dtypes, empty = (ampkit.float64, ampkit.bfloat16, ampkit.int64), ampkit.zeros(0, 2).share_memory_()
    found = [ampkit.zeros(3, 4, dtype=dtype).share_memory_() for dtype in dtypes]
    in_a_process(add_one, *(whole[1:] for whole in found), empty)
    assert [whole.tolist() for whole in found] == [[[0] * 4, [1] * 4, [1] * 4]] * 3
    assert empty.shape == (0, 2)


def test_what_it_gives_is_the_tensor_itself_and_copies_are_not_shared():
    leaf = ampkit.tensor([1.0, 2.0], requires_grad=True)
    assert leaf.share_memory_() is leaf and leaf.is_shared() and leaf.requires_grad and leaf.tolist() == [1, 2]
    memory = leaf.array
    assert leaf.share_memory_().array is memory
    for other in (leaf.clone(), copy.deepcopy(leaf), pickle.loads(pickle.dumps(leaf))):
        assert not other.is_shared() and other.tolist() == [1, 2]
    assert not ampkit.zeros(2).is_shared()


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(StateError, match="share_memory_: needs a leaf, got the result"):
        (ampkit.ones(2, requires_grad=True) * 2).share_memory_()
    low = nn.Linear(2, 2).bfloat16().share_memory()
    with pytest.raises(StateError, match="shared parameters as contiguous float32 or float64, got bfloat16"):
        optim.SGD([{"params": [first := nn.Parameter(ampkit.ones(2))]}, {"params": low.parameters()}], lr=0.1)
    assert first._arena_segment is None  # nothing has moved
    held = nn.Linear(2, 2)
    optimizer = optim.SGD(held.parameters(), lr=0.1)
    held.share_memory()
    held(ampkit.ones(1, 2)).sum().backward()
    before = held.weight.tolist()
    optimizer.step()  # which follows the weights into the shared memory
    assert held.weight.is_shared() and held.weight.tolist() != before
