"""PyTorch's arguments that choose among its implementations are taken; those that would change a result are refused."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError


def parameter():
    p = nn.Parameter(np.array([1.0, -2.0], np.float32))
    p.grad = ampkit.tensor([0.5, 0.25])
    return p


def stepped(kind, **options):
    p = parameter()
    kind([p], lr=0.1, **options).step()
    return p.tolist()


@pytest.mark.cpu
@pytest.mark.parametrize(("kind", "words"), [
    (optim.SGD, {"foreach": True, "fused": False}),
    (optim.Adam, {"foreach": False, "fused": True, "capturable": True}),
    (optim.AdamW, {"foreach": None, "fused": None, "capturable": False, "differentiable": False}),
])  # fmt: skip
def test_optimizers_take_the_words_for_pytorchs_implementations(kind, words):
    assert stepped(kind, **words) == stepped(kind)
    with pytest.raises(StateError, match=f"{kind.__name__}.step: needs tensors of a graph with differentiable=True"):
        stepped(kind, differentiable=True)


@pytest.mark.cpu
def test_adam_with_decoupled_decay_is_adamw():
    decayed = stepped(optim.Adam, weight_decay=0.5, decoupled_weight_decay=True)
    assert decayed == stepped(optim.AdamW, weight_decay=0.5) != stepped(optim.Adam, weight_decay=0.5)


@pytest.mark.cpu
def test_clipping_takes_foreach():
    assert optim.clip_grad_norm_([parameter()], 0.1, 2.0, False, True) == optim.clip_grad_norm_([parameter()], 0.1)
    optim.clip_grad_value_([parameter()], 0.1, foreach=True)


@pytest.mark.cpu
@pytest.mark.parametrize(("where", "name", "call"), [
    ("autocast", "enabled", lambda word: ampkit.autocast(enabled=word)),
    ("autocast", "cache_enabled", lambda word: ampkit.autocast(cache_enabled=word)),
    ("GradScaler", "enabled", lambda word: ampkit.GradScaler(enabled=word)),
    ("set_grad_enabled", "mode", ampkit.set_grad_enabled),
    ("inference_mode", "mode", ampkit.inference_mode),
    ("clip_grad_norm_", "error_if_nonfinite", lambda word: optim.clip_grad_norm_([parameter()], 1.0, 2.0, word)),
    ("get_total_norm", "error_if_nonfinite", lambda word: nn.utils.get_total_norm([parameter()], 2.0, word)),
    ("OneCycleLR", "three_phase", lambda word: optim.lr_scheduler.OneCycleLR(sgd(), 1.0, 9, three_phase=word)),
    ("OneCycleLR", "cycle_momentum", lambda word: optim.lr_scheduler.OneCycleLR(sgd(), 1.0, 9, cycle_momentum=word)),
    ("CyclicLR", "cycle_momentum", lambda word: optim.lr_scheduler.CyclicLR(sgd(), 0.1, 1.0, cycle_momentum=word)),
])  # fmt: skip
def test_a_switch_is_not_given_by_text_which_would_always_be_true(where, name, call):
    with pytest.raises(ArgumentError, match=f"^{where}: needs {name} True or False, got 'no'$"):
        call("no")
    with pytest.raises(ArgumentError, match=f"got 'false'\nhelp: write {name}=False, without quotes$"):
        call("false")
    before = ampkit.is_grad_enabled()
    call(np.True_), call(1)
    ampkit.set_grad_enabled(before)


def sgd():
    return optim.SGD([parameter()], lr=0.1, momentum=0.9)


def test_load_state_dict_with_assign_takes_the_dtypes_of_the_state():
    layer = nn.Linear(2, 2)
    state = {k: v + 1 for k, v in layer.state_dict().items()}
    assert layer.load_state_dict(state, assign=True) == ([], [])
    assert np.array_equal(layer.weight.array, state["weight"].array)
    layer.load_state_dict({k: v.half() for k, v in state.items()}, assign=True)
    assert layer.weight.dtype == layer.bias.dtype == ampkit.float16 and layer.weight.requires_grad
    with pytest.raises(DTypeError, match="with assign: needs a floating-point dtype as 'bias', got int64"):
        layer.load_state_dict({**state, "bias": ampkit.tensor([1, 2])}, assign=True)
    assert layer.weight.dtype == ampkit.float16


def test_modules_take_the_words_of_moving_and_hooking():
    layer = nn.Linear(2, 2).to("cpu", non_blocking=True, memory_format=ampkit.channels_last)
    layer.register_forward_hook(lambda *args: None, always_call=False)
    table = nn.Embedding.from_pretrained(ampkit.ones(3, 2), True, None, None, 2.0, False, False)
    assert table.weight.requires_grad is False


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.CrossEntropyLoss, nn.BCEWithLogitsLoss])
def test_losses_take_size_average_and_reduce(loss):
    assert loss(size_average=False).reduction == "sum"
    assert loss(reduce=False).reduction == "none"
    assert loss(size_average=True, reduction="sum").reduction == "mean"


def test_tensor_methods_take_pytorchs_words():
    x = ampkit.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert (x.stride(0), x.stride(-1), x.stride()) == (2, 1, (2, 1))
    assert x.numpy(force=True).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert x.is_contiguous(memory_format=ampkit.contiguous_format)
    assert x.half(memory_format=ampkit.preserve_format).dtype == ampkit.float16
    assert x.type(ampkit.float64).dtype == ampkit.float64
    assert x.cpu().type() == "torch.FloatTensor"
    assert x.view(size=(4,)).shape == (4,)
    assert x.new_zeros((2,), pin_memory=False).tolist() == [0.0, 0.0]
    assert x.std(False) == x.std(unbiased=False) == x.std(correction=0)
    assert x.detach().copy_(x.detach(), non_blocking=True) is not None
    assert x.where(x > 2, 0.0).tolist() == [[0.0, 0.0], [3.0, 4.0]]
    assert x.outer is not None and x.swapaxes(0, 1).tolist() == x.T.tolist()


def test_view_reads_the_same_bits_as_another_dtype():
    x = ampkit.tensor([1.0, -2.0])
    bits = x.view(ampkit.int32)
    assert bits.tolist() == [0x3F800000, 0xC0000000 - 2**32]
    x.zero_()
    assert bits.tolist() == [0, 0]
    assert x.view(dtype=ampkit.int16).shape == (4,)
    assert x.view(ampkit.float64).shape == (1,)
    with pytest.raises(DTypeError, match="view: needs a shape, or a dtype"):
        ampkit.ones(3).view(ampkit.float64)


def test_changes_in_place_exist_for_what_fits_the_tensor():
    x = ampkit.tensor([4.0, 9.0])
    assert x.sqrt_().log_().exp_().floor_() is x
    x.scatter_(0, ampkit.tensor([1]), 7.0)
    assert x.tolist() == [2.0, 7.0]
    x.scatter_(0, ampkit.tensor([0, 0]), ampkit.tensor([1.0, 1.0]), reduce="add")
    assert x.tolist() == [4.0, 7.0]
    assert x.addmm is not None and x.sigmoid_().tolist()[0] == pytest.approx(1 / (1 + np.exp(-4)))


def test_ranges_and_repeats_take_names_and_tensors():
    assert ampkit.arange(end=3).tolist() == [0, 1, 2]
    assert ampkit.randint(high=1, size=(2,)).tolist() == [0, 0]
    assert ampkit.full_like(ampkit.zeros(2), fill_value=3.0).tolist() == [3.0, 3.0]
    x = ampkit.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    out = x.repeat_interleave(ampkit.tensor([1, 2]), dim=0)
    assert out.tolist() == [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    out.sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert ampkit.repeat_interleave(ampkit.tensor([0, 2, 1])).tolist() == [1, 1, 2]
    assert ampkit.max(x, other=x * 2).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    for call in (
        lambda: ampkit.arange(),
        lambda: x.scatter(0, ampkit.tensor([[0, 0]])),
        lambda: x.repeat_interleave(-1),
    ):
        with pytest.raises(ArgumentError):
            call()


@pytest.mark.cpu
def test_a_tensor_answers_what_scripts_ask():
    x = ampkit.ones(2, 3)
    assert (x.is_cpu, x.is_cuda, x.is_sparse, x.is_quantized, x.is_meta, x.layout) == (
        True, False, False, False, False, ampkit.strided,
    )  # fmt: skip
    assert (x.nelement(), x.ndimension(), x.get_device(), x.is_complex(), x.is_signed()) == (6, 2, -1, False, True)
    assert x.is_same_size(x.T) is False
    assert x.pin_memory() is x
    assert not x.is_pinned()
    assert ampkit.tensor(2).is_nonzero()
    assert x.data_ptr() == x.view(-1).data_ptr() == x[0].data_ptr() == x[1].data_ptr() - 12
    y = ampkit.ones(2, requires_grad=True) * 2
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad


@pytest.mark.cpu
def test_random_numbers_are_written_in_place():
    ampkit.manual_seed(0)
    x = ampkit.zeros(4000)
    assert x.bernoulli_(0.25).mean().item() == pytest.approx(0.25, abs=0.03)
    assert set(x.tolist()) == {0.0, 1.0}
    assert x.bernoulli_(ampkit.tensor([1.0])).sum().item() == 4000
    assert x.exponential_(2.0).mean().item() == pytest.approx(0.5, abs=0.05)
    assert set(x.random_(3).tolist()) == {0.0, 1.0, 2.0}
    assert set(x.random_(5, 7).tolist()) == {5.0, 6.0}
    assert 0 <= x.half().random_().min().item() <= x.half().random_().max().item() <= 2048
    assert ampkit.zeros(9, dtype=ampkit.bool).random_().dtype == ampkit.bool
    for call in (lambda: x.bernoulli_(1.5), lambda: x.exponential_(0), lambda: x.random_(3, 3)):
        with pytest.raises(ArgumentError):
            call()


def test_a_diagonal_is_filled_in_place():
    assert ampkit.zeros(2, 3).fill_diagonal_(5).tolist() == [[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    assert ampkit.zeros(4, 2).fill_diagonal_(1, wrap=True).tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    with pytest.raises(ShapeError, match="two axes, or more of equal lengths"):
        ampkit.zeros(2).fill_diagonal_(1)
