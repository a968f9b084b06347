"""The path of the module that is running, in forward and backward."""

import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base import observe
from ampkit.core import module_path
from ampkit.core.module_path import current_path, follow


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return ops.relu(self.inner(x)) + x


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block()))


def visited(run):
    found = []
    with follow(), observe.watch(lambda name, inputs, output: found.append((current_path(), name))):
        run()
    return found


def test_every_op_of_forward_and_backward_knows_the_module_that_called_it():
    net, x = model(), ampkit.randn(2, 4)
    names = visited(lambda: net(x).sum().backward())
    assert ("0", "linear") in names
    assert ("1.0.inner", "linear") in names
    assert ("1.1", "relu") in names
    assert (None, "sum") in names
    for path, name in names:
        if name == "linear":
            assert (path, "linear_backward") in names
    assert ("1.1", "relu_backward") in names


def test_a_module_called_alone_is_the_model():
    net = model()
    assert ("inner", "linear") in visited(lambda: net[1][0](ampkit.randn(2, 4)))


def test_a_module_outside_the_tree_is_named_by_its_type():
    class Around(nn.Module):
        def forward(self, x):
            return nn.Linear(4, 4)(x)

    assert ("0.<Linear>", "linear") in visited(lambda: nn.Sequential(Around())(ampkit.randn(2, 4)))


def test_a_recomputed_module_has_the_path_of_its_forward():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return ampkit.recompute(self.block, x)

    net, x = nn.Sequential(Checkpointed()), ampkit.randn(2, 4, requires_grad=True)
    names = visited(lambda: net(x).sum().backward())
    assert names.count(("0.block.inner", "linear")) == 2
    assert ("0.block.inner", "linear_backward") in names


def test_an_error_in_a_module_restores_the_path():
    net = model()
    with follow():
        with pytest.raises(ampkit.AmpkitError):
            net(ampkit.randn(2, 3))
        assert module_path.current() is None
        before = len(module_path.following)
    assert len(module_path.following) == before - 1


def test_without_followers_nothing_is_recorded():
    others, module_path.following[:] = module_path.following[:], []
    x = model()(ampkit.randn(2, 4))
    module_path.following[:] = others
    assert x.node.module_call is None
