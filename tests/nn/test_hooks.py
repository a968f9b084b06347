"""Hooks of modules: on what goes in and comes out, and on the gradients that come back."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ampkit
from ampkit import nn, tensor
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError


class Scale(nn.Module):
    """x w, and 2 x; other arguments pass through."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(tensor([3.0, 5.0]))

    def forward(self, x, count=0, *, more=None):
        return x * self.weight, count, x * 2


def leaf(*values):
    return tensor(values, requires_grad=True)


def plain(gradients):
    return [None if g is None else g.tolist() for g in gradients]


def test_a_backward_hook_sees_what_comes_in_and_what_goes_out_by_place():
    layer, x, seen = Scale(), leaf(1.0, 2.0), []
    layer.register_full_backward_pre_hook(lambda module, out: seen.append(("before", module is layer, plain(out))))
    layer.register_full_backward_hook(lambda module, into, out: seen.append(("after", plain(into), plain(out))))
    y, count, _ = layer(x, 4)
    assert count == 4
    y.sum().backward()
    ones = [[1.0, 1.0], None, None]
    assert seen == [("before", True, ones), ("after", [[3.0, 5.0], None], ones)]
    assert (x.grad.tolist(), layer.weight.grad.tolist()) == ([3.0, 5.0], [1.0, 2.0])


def test_backward_hooks_replace_gradients_and_can_be_taken_away():
    layer, x = nn.Linear(2, 2, bias=False), leaf(1.0, 2.0)
    layer.weight.data = np.eye(2, dtype=np.float32)
    first = layer.register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))
    second = layer.register_full_backward_hook(lambda module, into, out: into[0] + out[0])
    layer(x).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]
    assert layer.weight.grad.tolist() == [[2.0, 4.0]] * 2
    first.remove()
    second.remove()
    x.grad = None
    layer(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_hooks_are_called_in_order_and_the_prepended_first():
    layer, seen = nn.Identity(), []
    for name, prepend in (("b", False), ("c", False), ("a", True)):
        layer.register_forward_hook(lambda *_, name=name: seen.append(name), prepend=prepend)
        layer.register_full_backward_hook(lambda *_, name=name: seen.append(name), prepend=prepend)
    layer(leaf(1.0)).backward()
    assert seen == ["a", "b", "c"] * 2


def test_without_an_input_that_requires_grad_the_hook_is_called_for_the_outputs():
    layer, seen = Scale(), []
    layer.register_full_backward_hook(lambda module, into, out: seen.append((plain(into), plain(out))))
    layer(tensor([1.0, 2.0]), 3)[0].sum().backward()
    assert seen == [([None, None], [[1.0, 1.0], None, None])]
    with ampkit.no_grad():
        layer(leaf(1.0, 2.0))


def test_backward_hooks_are_differentiated_too():
    layer, x = nn.Identity(), leaf(2.0)
    layer.register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    (dx,) = ampkit.grad(layer(x) ** 3, x, create_graph=True)
    assert dx.tolist() == [36.0]
    assert ampkit.grad(dx, x)[0].tolist() == [108.0]


def test_outputs_in_a_dict_are_seen_in_order():
    class Named(nn.Module):
        def forward(self, x):
            return {"a": x * 2, "rest": ["word", x * 3]}

    layer, x, seen = Named(), leaf(1.0), []
    layer.register_full_backward_hook(lambda module, into, out: seen.append((plain(into), plain(out))))
    out = layer(x)
    assert out["rest"][0] == "word"
    (out["a"] + out["rest"][1] * 10).backward()
    assert seen == [([[32.0]], [[1.0], [10.0]])]


def test_a_pre_hook_with_kwargs_replaces_both_and_must_return_both():
    layer = Scale()
    handle = layer.register_forward_pre_hook(lambda module, args, kwargs: ((args[0], 9), kwargs), with_kwargs=True)
    assert layer(leaf(1.0, 2.0), more=1)[1] == 9
    handle.remove()
    for wrong in ((leaf(1.0),), [1, 2], ((1,), 2)):
        handle = layer.register_forward_pre_hook(lambda *_, wrong=wrong: wrong, with_kwargs=True)
        with pytest.raises(DTypeError, match="Scale: needs None or"):
            layer(leaf(1.0, 2.0))
        handle.remove()


def test_hooks_work_with_scaled_gradients_of_wide_parameters():
    layer = nn.Linear(2, 1, bias=False).half()
    layer.weight.data = np.ones((1, 2), np.float16)
    seen = []
    layer.register_full_backward_hook(lambda module, into, out: seen.append(out[0].dtype))
    layer.weight.register_hook(lambda g: seen.append(g.dtype))
    optimizer, scaler = ampkit.optim.SGD(layer.parameters(), lr=1.0), ampkit.GradScaler(init_scale=8.0)
    scaler.scale(layer(tensor([[1.0, 2.0]], dtype=ampkit.float16)).sum()).backward()
    assert seen == [ampkit.float16, ampkit.float32]
    scaler.step(optimizer)
    assert layer.weight.tolist() == [[0.0, -1.0]]


@pytest.mark.parametrize(("answer", "error", "line"), [
    (lambda into: into + into, ArgumentError, "full backward hook: needs None or 1 gradients from the hook, got 2"),
    (lambda into: 3.0, DTypeError, "full backward hook: needs Tensors or None from the hook, got a float"),
    (lambda into: ampkit.ones(5), ShapeError, r"needs a gradient of the input's shape \(2,\), got \(5,\)"),
])  # fmt: skip
def test_a_backward_hook_that_answers_wrongly_gives_one_clear_line(answer, error, line):
    layer = nn.Identity()
    layer.register_full_backward_hook(lambda module, into, out: answer(into))
    with pytest.raises(error, match=line):
        layer(leaf(1.0, 2.0)).sum().backward()
    with pytest.raises(DTypeError, match="needs hook as a function, got 3"):
        layer.register_full_backward_hook(3)


# of all modules, and after errors


def test_hooks_of_all_modules_run_before_those_of_a_module_until_they_are_removed():
    seen, layer = [], nn.Linear(2, 2)
    of_all = nn.modules.module
    handles = [
        of_all.register_module_forward_pre_hook(lambda module, args: seen.append("all before")),
        of_all.register_module_forward_hook(lambda module, args, out: seen.append("all after")),
        of_all.register_module_full_backward_pre_hook(lambda module, dy: seen.append("all pre-backward")),
        of_all.register_module_full_backward_hook(lambda module, dx, dy: seen.append("all backward")),
        layer.register_forward_hook(lambda module, args, out: seen.append("own after")),
    ]
    layer(ampkit.ones(1, 2, requires_grad=True)).sum().backward()
    assert seen == ["all before", "all after", "own after", "all pre-backward", "all backward"]
    for handle in handles:
        handle.remove()
    nn.Sequential(nn.Linear(2, 2), nn.ReLU())(ampkit.ones(1, 2)).sum().backward()
    assert len(seen) == 5


def test_a_hook_of_all_modules_sees_those_that_would_run_fused():
    seen, model = [], nn.Sequential(nn.BatchNorm2d(2), nn.ReLU())
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(type(module)))
    model(ampkit.ones(1, 2, 3, 3))
    handle.remove()
    assert seen == [nn.BatchNorm2d, nn.ReLU, nn.Sequential]


def test_hooks_see_each_parameter_buffer_and_module_that_any_module_gets_and_may_replace_it():
    of_all, seen = nn.modules.module, []
    other = nn.ReLU()

    def note(module, name, value):
        seen.append((type(module).__name__, name))
        return other if name == "act" else None

    handles = [
        of_all.register_module_parameter_registration_hook(note),
        of_all.register_module_buffer_registration_hook(note),
        of_all.register_module_module_registration_hook(note),
    ]
    outer = nn.Module()
    outer.norm = nn.BatchNorm1d(2, affine=False)
    outer.act = nn.Tanh()
    outer.register_parameter("none", None)
    outer.scale = nn.Parameter(ampkit.ones(2))
    outer.norm.running_mean = ampkit.ones(2)
    nn.Sequential(nn.Tanh())
    buffers = [("BatchNorm1d", name) for name in ("running_mean", "running_var", "num_batches_tracked")]
    assert seen == [*buffers, *[("Module", name) for name in ("norm", "act", "scale")], buffers[0], ("Sequential", "0")]
    assert outer.act is other
    for handle in handles:
        handle.remove()
    outer.last = nn.Linear(2, 2)
    assert len(seen) == 8
    with pytest.raises(DTypeError, match="hook: needs a callable"):
        of_all.register_module_buffer_registration_hook(None)


def test_a_hook_that_is_always_called_runs_after_an_error_with_no_output():
    seen, layer = [], nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, args, out: seen.append(out), always_call=True)
    layer.register_forward_hook(lambda module, args, out: seen.append("never"))
    layer.register_forward_hook(lambda module, args, kwargs, out: 1 / 0, with_kwargs=True, always_call=True)
    with pytest.raises(ampkit.ShapeError):
        layer(ampkit.ones(1, 3))
    assert seen == [None]


def test_a_backward_hook_leaves_arguments_and_outputs_as_they_are():
    class Two(nn.Module):
        def forward(self, x, mask):
            assert x.requires_grad and not mask.requires_grad
            return x * mask, mask * 2

    layer, seen = Two(), []
    layer.register_full_backward_hook(lambda module, into, out: seen.append((plain(into), plain(out))))
    y, mask = layer(leaf(1.0, 2.0), tensor([0.0, 1.0]))
    assert not mask.requires_grad
    y.sum().backward()
    assert seen == [([[0.0, 1.0], None], [[1.0, 1.0], None])]


def test_a_handle_names_its_table_and_its_place_in_it():
    layer = nn.Linear(2, 2)
    first, second = (layer.register_backward_hook(lambda *given: None) for _ in range(2))
    assert list(first.hooks_dict_ref()) == [first.id, second.id]
    first.remove()
    assert list(second.hooks_dict_ref()) == [second.id]


def test_the_tables_of_a_module_hold_its_hooks_themselves_and_copies_know_their_options():
    seen, layer = [], nn.Linear(2, 2)
    before = layer.register_forward_pre_hook(Recorder(seen), with_kwargs=True)
    layer.register_forward_hook(after := Recorder(seen))
    assert isinstance(layer._forward_pre_hooks[before.id], Recorder)
    assert list(layer._forward_hooks.values()) == [after]
    copied = copy.deepcopy(layer)
    copied(input=tensor(np.ones((1, 2), np.float32)))
    pre, post = [next(iter(table.values())).seen for table in (copied._forward_pre_hooks, copied._forward_hooks)]
    assert pre is post and [len(given) for given in pre] == [3, 3]  # (module, args, kwargs), (module, args, output)
    layer._forward_hooks.clear()
    layer(tensor(np.ones((1, 2), np.float32)))
    assert len(seen) == 1


class Recorder:
    def __init__(self, seen):
        self.seen = seen

    def __call__(self, *given):
        self.seen.append(given)


def test_backward_hooks_are_not_called_by_second_derivatives():
    loss, calls = nn.MSELoss(), []
    loss.register_full_backward_hook(lambda module, grad_input, grad_output: calls.append(len(grad_input)))
    x = ampkit.ones(2, requires_grad=True)
    (dx,) = ampkit.grad(loss(x, ampkit.zeros(2)), x, create_graph=True)
    assert calls == [2]
    assert ampkit.grad(dx.sum(), x)[0].tolist() == [1.0, 1.0]
    assert calls == [2]
