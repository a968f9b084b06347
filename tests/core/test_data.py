"""`x.data = y`: the tensor gets the memory, the dtype and the shape of another; each answer is PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import DTypeError, ShapeError, StateError, nn, ops, optim


def numbers(*values):
    return ampkit.tensor([float(v) for v in values])


def test_data_that_was_kept_and_given_back_is_as_it_was():
    p, average = nn.Parameter(numbers(1, 2)), numbers(7, 8)
    kept, p.data = p.data, average
    assert (p.tolist(), kept.tolist()) == ([7, 8], [1, 2])
    p.data = kept
    assert (p.tolist(), average.tolist()) == ([1, 2], [7, 8])


def test_data_is_shared_and_not_copied():
    p, other = nn.Parameter(numbers(1, 2)), numbers(3, 4)
    p.data = other
    other[0] = 9
    assert p.tolist() == [9, 4]
    with ampkit.no_grad():
        p.mul_(2)
    assert other.tolist() == [18, 8]
    p.data, other.data = other.data, p.data
    assert p.data.data_ptr() == other.data_ptr()


def test_data_swaps_in_a_tuple():
    p, q = nn.Parameter(numbers(1)), nn.Parameter(numbers(2, 3))
    p.data, q.data = q.data, p.data
    assert (p.tolist(), q.tolist()) == ([2, 3], [1])
    (p.sum() * 2 + q.sum()).backward()
    assert (p.grad.tolist(), q.grad.tolist()) == ([2, 2], [1])


def test_data_takes_another_dtype_and_shape():
    layer = nn.Linear(3, 2)
    layer.weight.data = ampkit.ones(1, 3, dtype=ampkit.float64)
    layer.bias.data = ampkit.zeros(1, dtype=ampkit.float64)
    y = layer(ampkit.ones(1, 3, dtype=ampkit.float64))
    y.sum().backward()
    assert (y.tolist(), y.dtype) == ([[3]], ampkit.float64)
    assert (layer.weight.grad.shape, layer.weight.grad.dtype) == ((1, 3), ampkit.float64)


def test_views_keep_the_memory_that_they_show():
    x = numbers(1, 2, 3)
    view = x[:2]
    x.data = numbers(4, 5, 6)
    view[0] = 9
    assert (x.tolist(), view.tolist()) == ([4, 5, 6], [9, 2])
    view.data = numbers(0, 0)
    view[1] = 1
    assert (x.tolist(), view.tolist()) == ([4, 5, 6], [0, 1])


def test_the_result_of_an_operation_keeps_its_place_on_the_tape():
    x = numbers(1, 2).requires_grad_()
    y = x * 3
    y.data = numbers(10, 20)
    (y * y).sum().backward()
    assert x.grad.tolist() == [60, 120]
    with pytest.raises(ShapeError, match=r"data: needs float32 of shape \(2,\).*got float32 of shape \(1,\)"):
        y.data = numbers(1)
    with pytest.raises(DTypeError, match="where a gradient is wanted"):
        x.data = ampkit.tensor([1, 2])


def test_a_backward_through_values_that_were_replaced_raises_until_they_are_back():
    w, x = nn.Parameter(numbers(2, 3)), numbers(1, 1).requires_grad_()
    loss, kept = (w * x).sum(), w.data
    w.data = numbers(7, 7)
    with pytest.raises(StateError, match="changed"):
        ampkit.grad(loss, x, retain_graph=True)
    w.data = kept
    assert ampkit.grad(loss, x, retain_graph=True)[0].tolist() == [2, 3]
    w.data = numbers(7, 7)
    kept.mul_(2)
    w.data = kept
    with pytest.raises(StateError, match="changed"):
        ampkit.grad(loss, x)


@pytest.mark.cpu  # NumPy shares the memory of no GPU
def test_a_cast_follows_data_and_what_shares_its_memory():
    layer = nn.Linear(1, 1, bias=False)

    def out(value):
        with ampkit.autocast(dtype=ampkit.bfloat16):
            return float(layer(ampkit.ones(1, 1))) == value

    other = ampkit.full((1, 1), 3.0)
    layer.weight.data = ampkit.full((1, 1), 2.0)
    assert out(2)
    layer.weight.data = other
    assert out(3)
    other.fill_(4)
    assert out(4)
    other.numpy()[0] = 5
    assert out(5)


@pytest.mark.parametrize("kind", [ampkit.float32, ampkit.float64, ampkit.bfloat16])
def test_training_goes_on_after_weights_were_swapped_for_an_average_and_back(kind):
    def losses(swaps):
        ampkit.manual_seed(0)
        model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(kind), ampkit.ones(2, 3, dtype=kind)
        optimizer = optim.Adam(model.parameters(), lr=0.1)
        average = [p.detach().clone() for p in model.parameters()]
        for _ in range(4):
            loss = model(x).square().mean()
            yield loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if swaps:
                kept = [p.data for p in model.parameters()]
                for p, mean in zip(model.parameters(), average, strict=True):
                    mean.lerp_(p.detach(), 0.5)
                    p.data = mean
                model(x)
                for p, own in zip(model.parameters(), kept, strict=True):
                    p.data = own if swaps == "same memory" else own.clone()

    expected = list(losses(None))
    assert list(losses("same memory")) == expected
    if kind != ampkit.bfloat16:  # whose master weights stay with the memory
        assert list(losses("copies")) == expected


def test_a_gradient_that_was_given_other_memory_is_the_one_that_a_step_and_clipping_use():
    p = nn.Parameter(numbers(0, 0))
    optimizer = optim.SGD([p], lr=1.0)
    p.sum().backward()
    p.grad.data = numbers(3, 4)
    assert float(nn.utils.clip_grad_norm_([p], 100.0)) == 5
    optimizer.step()
    assert p.tolist() == [-3, -4]


def test_loading_with_assign_shares_the_memory_and_loading_without_it_copies():
    state = {"weight": ampkit.ones(1, 2, dtype=ampkit.float64)}
    layer = nn.Linear(2, 1, bias=False)
    optimizer = optim.SGD(layer.parameters(), lr=1.0)
    layer.load_state_dict(state)
    state["weight"].fill_(3)
    assert layer.weight.tolist() == [[1, 1]] and layer.weight.dtype == ampkit.float32
    layer.load_state_dict(state, assign=True)
    layer(ampkit.ones(1, 2, dtype=ampkit.float64)).sum().backward()
    optimizer.step()
    assert state["weight"].tolist() == layer.weight.tolist() == [[2, 2]]


def test_weights_of_a_vector_are_views_of_it():
    p, q = nn.Parameter(numbers(1, 2)), nn.Parameter(ampkit.ones(1, 1))
    vector = numbers(3, 4, 5)
    nn.utils.vector_to_parameters(vector, [p, q])
    vector.mul_(2)
    assert (p.tolist(), q.tolist()) == ([6, 8], [[10]])
    assert ops.allclose(nn.utils.parameters_to_vector([p, q]), vector)


WRITES = {
    "numpy": lambda w: w.detach().numpy().__setitem__(..., 5),
    "asarray": lambda w: np.copyto(np.asarray(w.detach()), 5),
    "memoryview": lambda w: memoryview(w.detach().numpy().reshape(-1).view(np.uint8)).__setitem__(
        slice(None), np.full(1, 5, w.dtype).tobytes()
    ),
    "DLPack": lambda w: np.from_dlpack(w.detach()).__setitem__(..., 5) if _writable_dlpack() else w.data.fill_(5),
    "a view's array": lambda w: w.detach()[0].numpy().fill(5),
    "out=": lambda w: np.add(2, 3, out=w.detach().numpy()),
    "the storage's array": lambda w: np.asarray(w.untyped_storage()).view(w.dtype).fill(5),
    "data": lambda w: w.data.fill_(5),
}


def _writable_dlpack():
    return np.from_dlpack(ampkit.ones(1)).flags.writeable


@pytest.mark.cpu  # NumPy shares the memory of no GPU
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", [ampkit.float32, ampkit.float16])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_a_weight_written_behind_the_librarys_back_is_what_a_16_bit_forward_and_a_step_read(write, kind, held, twice):
    layer = nn.Linear(1, 1, bias=False).to(kind)
    optimizer = optim.SGD(layer.parameters(), lr=1.0) if held else None

    def out():
        with ampkit.autocast(dtype=ampkit.bfloat16):
            return float(layer(ampkit.ones(1, 1)))

    layer.weight.data.fill_(2)
    array = layer.weight.detach().numpy()
    assert out() == 2
    WRITES[write](layer.weight)
    assert out() == 5
    if held:
        (layer.weight.sum() * 1).backward()
        optimizer.step()
        assert (layer.weight.item(), out()) == (4, 4)
    if twice:
        array.fill(7)  # a view that was taken before
        assert out() == 7


def test_a_state_dict_leaves_casts_cached_until_its_memory_is_handed_out():
    layer = nn.Linear(1, 1, bias=False)
    with ampkit.autocast(dtype=ampkit.bfloat16):
        layer(ampkit.ones(1, 1))
        cast = layer.weight.copy_in(ampkit.bfloat16, True)
        state = layer.state_dict()
        assert layer.weight.copy_in(ampkit.bfloat16, True) is cast
        np.array(state["weight"]), state["weight"].tolist(), state["weight"].clone()
        assert layer.weight.copy_in(ampkit.bfloat16, True) is cast
        state["weight"].fill_(3)
        assert float(layer(ampkit.ones(1, 1))) == 3


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_is_not_added_to_one_of_another_shape(create_graph):
    x = nn.Parameter(ampkit.ones(2, 3))
    ops.sum(x).backward()
    x.data = ampkit.ones(3)
    with pytest.raises(ShapeError, match=r"of shape \(2, 3\), as `grad` has, got \(3,\)\nhelp: set grad = None"):
        ops.sum(x * x).backward(create_graph=create_graph)
    x.grad = None
    ops.sum(x * 2).backward()
    assert x.grad.tolist() == [2, 2, 2]
