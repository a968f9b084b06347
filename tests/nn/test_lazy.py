"""Lazy layers: what the first batch makes of them, and what they refuse before it."""

from __future__ import annotations

import copy
import pickle

import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.nn.modules.lazy import LazyModuleMixin

# the layer, its arguments, the shape of a batch with 3 inputs
KINDS = [
    ("Linear", (4,), (2, 3)), ("Conv1d", (4, 2), (2, 3, 5)), ("Conv2d", (4, 2), (3, 5, 5)),
    ("Conv3d", (4, 2), (1, 3, 2, 2, 2)), ("ConvTranspose1d", (4, 2), (3, 5)), ("ConvTranspose2d", (4, 2), (2, 3, 2, 2)),
    ("ConvTranspose3d", (4, 2), (1, 3, 2, 2, 2)), ("BatchNorm1d", (), (4, 3)), ("BatchNorm2d", (), (2, 3, 2, 2)),
    ("BatchNorm3d", (), (2, 3, 2, 2, 2)), ("InstanceNorm1d", (), (3, 5)), ("InstanceNorm2d", (), (2, 3, 2, 2)),
    ("InstanceNorm3d", (), (3, 2, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "args", "shape"), KINDS)
def test_the_first_batch_makes_it_the_layer_that_it_stands_for(kind, args, shape):
    layer, plain = getattr(nn, f"Lazy{kind}")(*args), getattr(nn, kind)
    assert isinstance(layer, plain)
    y = layer(ops.randn(*shape))
    wanted = plain(3, *args, affine=True, track_running_stats=True) if kind.startswith("Instance") else plain(3, *args)
    assert type(layer) is plain
    assert repr(layer) == repr(wanted)
    assert vars(layer).keys() == vars(wanted).keys()
    assert y.shape == wanted(ops.randn(*shape)).shape
    layer.load_state_dict(wanted.state_dict())


def model():
    return nn.Sequential(nn.LazyConv2d(4, 2), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def test_a_model_of_lazy_layers_trains_after_its_first_batch():
    made, x = model(), ops.randn(3, 1, 4, 4)
    with ampkit.no_grad():
        made.eval()(x)
    assert not made[1].training
    made.train()
    optimizer = optim.SGD(made.parameters(), lr=0.1)
    before = made[4].weight.tolist()
    made(x).square().sum().backward()
    optimizer.step()
    assert made[4].weight.shape == (2, 36)
    assert made[4].weight.tolist() != before


@pytest.mark.parametrize("use", [
    lambda m: optim.SGD(m.parameters()),
    lambda m: nn.init.zeros_(m[0].weight),
    lambda m: m[0].weight + 1,
    lambda m: m[0].weight.shape,
    lambda m: m[0].bias.numel(),
    lambda m: nn.utils.spectral_norm(m[0]),
    lambda m: ops.empty_like(m[0].weight),
])  # fmt: skip
def test_what_needs_a_shape_before_the_first_batch_says_so(use):
    with pytest.raises(ShapeError, match=r"UninitializedParameter: needs a shape, got .*\nhelp: run a batch through"):
        use(model())


def test_before_the_first_batch_parameters_are_uninitialized_ones():
    layer, norm = nn.LazyLinear(3), nn.LazyBatchNorm1d()
    assert type(layer.weight) is nn.UninitializedParameter and isinstance(layer.bias, nn.Parameter)
    assert type(norm.running_mean) is nn.UninitializedBuffer and norm.num_batches_tracked == 0
    assert (layer.in_features, layer.out_features) == (0, 3)
    assert layer.has_uninitialized_params() and norm.has_uninitialized_params()
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert repr(layer.weight) == "<UninitializedParameter>"
    assert repr(layer) == "LazyLinear(in_features=0, out_features=3, bias=True)"
    weight = layer.requires_grad_(False).weight
    layer(ops.ones(1, 2))
    assert layer.weight is weight and type(weight) is nn.Parameter and not weight.requires_grad


def test_a_lazy_layer_draws_no_numbers_before_its_first_batch():
    ampkit.manual_seed(0)
    layer = nn.LazyLinear(3)
    layer(ops.ones(1, 2))
    ampkit.manual_seed(0)
    assert (layer.weight == nn.Linear(2, 3).weight).all()


def test_materialize_makes_the_same_object_a_parameter_of_that_shape():
    weight = nn.UninitializedParameter(dtype=ampkit.float64)
    assert (weight.dtype, weight.requires_grad) == (ampkit.float64, True)
    weight.materialize((2, 3), dtype="float32")
    assert type(weight) is nn.Parameter and weight.shape == (2, 3) and weight.dtype == ampkit.float32
    (weight * 2).sum().backward()
    assert weight.grad.tolist() == [[2.0] * 3] * 2
    buffer = nn.UninitializedBuffer()
    buffer.materialize(4)
    assert type(buffer) is nn.Buffer and not buffer.requires_grad


def test_a_state_dict_gives_a_lazy_layer_its_sizes_and_none_can_be_loaded_without():
    full, layer = nn.Linear(5, 2), nn.LazyLinear(2)
    layer.load_state_dict(full.state_dict())
    assert not layer.has_uninitialized_params() and layer.weight.shape == (2, 5)
    x = ops.ones(3, 5)
    assert (layer(x) == full(x)).all() and type(layer) is nn.Linear
    with pytest.raises(StateError, match="needs tensors with a shape, got an uninitialized one as 'weight'\nhelp: run"):
        full.load_state_dict(nn.LazyLinear(2).state_dict())
    lazy = nn.LazyLinear(2)
    lazy.load_state_dict(nn.LazyLinear(2).state_dict())
    assert lazy.has_uninitialized_params()


class Scale(LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            self.scale.materialize(x.shape[-1])
            nn.init.ones_(self.scale)

    def forward(self, x):
        return x * self.scale


def test_a_lazy_layer_of_ones_own():
    layer = Scale().half()
    assert layer(ops.ones(2, 3, dtype=ampkit.float16)).shape == (2, 3)
    assert layer.scale.dtype == ampkit.float16
    assert type(layer) is Scale and not layer.has_uninitialized_params()


def test_a_layer_that_leaves_parameters_uninitialized_is_named(monkeypatch):
    monkeypatch.setattr(Scale, "initialize_parameters", lambda self, x: None)
    with pytest.raises(StateError, match="Scale.initialize_parameters: needs to initialize all parameters"):
        Scale()(ops.ones(2, 3))


def test_hooks_the_mode_and_attributes_stay():
    layer, seen = nn.LazyLinear(2), []
    layer.register_forward_hook(lambda *args: seen.append(1))
    layer.name = "head"
    layer.eval()
    layer(ops.ones(1, 3))
    assert (seen, layer.name, layer.training) == ([1], "head", False)


def test_a_model_that_was_moved_before_its_first_batch_is_made_there():
    made = model().to("cpu").double()
    made.zero_grad()
    made(ops.ones(2, 1, 4, 4, dtype=ampkit.float64, device="cpu"))
    assert {p.dtype for p in made.parameters()} == {ampkit.float64}
    assert {str(p.device) for p in made.parameters()} == {"cpu"}


def test_without_a_device_the_parameters_are_made_where_the_batch_is():
    layer, x = nn.LazyLinear(2), ops.ones(1, 3, device="cpu")
    layer(x)
    assert layer.weight.device == x.device


def test_a_copy_of_a_lazy_layer_is_lazy():
    layer = nn.LazyLinear(2)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin(ops.ones(1, 5))
        assert twin.in_features == 5
    assert layer.has_uninitialized_params()


def test_recompute_and_a_region_may_come_with_the_first_batch():
    layer = nn.LazyLinear(2)
    with ampkit.autocast(dtype=ampkit.bfloat16):
        ampkit.recompute(layer, ops.ones(1, 3)).sum().backward()
    assert layer.weight.dtype == ampkit.float32
    assert layer.weight.grad.tolist() == [[1.0] * 3] * 2


def test_a_first_batch_that_does_not_fit_leaves_the_layer_as_it_was():
    layer = nn.LazyConv2d(4, 2, groups=2)
    with pytest.raises(ShapeError, match=r"LazyConv2d: needs input of 3 or 4 axes, got shape \(2, 3\)"):
        layer(ops.ones(2, 3))
    with pytest.raises(DTypeError, match="LazyConv2d: needs a Tensor for `input`, got list"):
        layer([1.0])
    with pytest.raises(ValueError, match="Conv2d: needs channels that groups divides"):
        layer(ops.ones(1, 3, 4, 4))
    assert layer(ops.ones(1, 2, 4, 4)).shape == (1, 4, 3, 3)


def test_arguments_are_those_of_the_layer_but_the_one_that_is_found():
    with pytest.raises(TypeError, match="^LazyLinear: missing a required argument: 'out_features'"):
        nn.LazyLinear()
    with pytest.raises(TypeError, match="^LazyConv1d: got an unexpected keyword argument 'in_channels'"):
        nn.LazyConv1d(4, 3, in_channels=2)
    made = nn.LazyConv1d(4, 3, 2, bias=False)
    made(ampkit.ones(1, 2, 9))
    assert (made.in_channels, made.out_channels, made.stride, made.bias) == (2, 4, (2,), None)


class Tagged(nn.UninitializedParameter):
    def __new__(cls, tag, **options):
        return object.__new__(cls)

    def __init__(self, tag, **options):
        super().__init__(**options)
        self.tag = tag


def test_a_class_of_uninitialized_parameters_may_have_a_new_of_its_own():
    made = Tagged("a", dtype=ampkit.float64)
    assert (made.tag, made.dtype, made.requires_grad) == ("a", ampkit.float64, True)
    made.materialize((2, 3))
    assert made.shape == (2, 3)
