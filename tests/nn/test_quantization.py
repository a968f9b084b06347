"""Post-training quantization: observers, folding, conversion, what stays in codes, and what is refused."""

import copy

import numpy as np
import pytest

import ampkit
from ampkit import models, nn, ops
from ampkit.base.errors import ArgumentError, ConfigError, NonFiniteError, StateError
from ampkit.nn import quantization
from ampkit.ops.quantized.codes import QParams, QuantizedTensor

pytestmark = pytest.mark.cpu  # int8 is not there yet on a GPU
DRAW = np.random.default_rng(0)


def images(count=4, *size):
    return ampkit.tensor(DRAW.normal(size=(count, *(size or (3, 16, 16)))).astype(np.float32))


def tokens(high, *shape):
    return ampkit.tensor(DRAW.integers(0, high, shape))


def warm(model, *inputs):
    """`model` in eval mode, whose batch norms have seen `inputs`."""
    ampkit.manual_seed(0)
    for _ in range(3):
        model(*inputs)
    return model.eval()


def resnet():
    ampkit.manual_seed(0)
    return warm(models.resnet18(num_classes=5, stem="imagenet", width=8, depth=0.5), images(4, 3, 32, 32))


def distance(found, wanted):
    found, wanted = (each[0] if isinstance(each, tuple) else each for each in (found, wanted))
    return float(np.linalg.norm(found.numpy() - wanted.numpy()) / np.linalg.norm(wanted.numpy()))


MODELS = {
    "resnet": (resnet, lambda: images(4, 3, 32, 32)),
    "cnn": (lambda: warm(models.cnn(width=8), images(4, 1, 8, 8)), lambda: images(4, 1, 8, 8)),
    "gpt": (lambda: models.gpt(vocab_size=64, n_layer=2, n_embd=32).eval(), lambda: tokens(64, 2, 16)),
    "bert": (lambda: models.bert(vocab_size=64, hidden_size=32).eval(), lambda: tokens(64, 2, 16)),
    "mlp": (lambda: models.mlp(hidden=(32, 32)).eval(), lambda: images(8, 64)),
}


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_int8_is_near_the_one_in_float32_and_that_stays_as_it_was(name, observer):
    make, draw = MODELS[name]
    ampkit.manual_seed(0)
    model, batches = make(), [draw() for _ in range(3)]
    state = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    small = quantization.quantize(model, batches, observer=observer)
    with ampkit.no_grad():
        assert distance(small(batches[0]), model(batches[0])) < 0.1
    assert all(np.array_equal(state[key], value.numpy()) for key, value in model.state_dict().items())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in small.modules())


@pytest.mark.parametrize("name", MODELS)
def test_a_state_loads_into_a_restored_model_with_the_same_results(name, tmp_path):
    make, draw = MODELS[name]
    model, batch = make(), draw()
    small = quantization.quantize(model, [batch])
    ampkit.save({key: value.detach() for key, value in small.state_dict().items()}, tmp_path / "int8.safetensors")
    other = quantization.restore(copy.deepcopy(model), small.quantization)
    other.load_state_dict(ampkit.load(tmp_path / "int8.safetensors"))
    with ampkit.no_grad():
        assert distance(other(batch), small(batch)) == 0


def returns_codes(model, path):
    return model.quantization.int8[path]


def test_what_only_layers_in_int8_read_stays_in_codes():
    small = quantization.quantize(resnet(), [images(4, 3, 32, 32)])
    assert returns_codes(small, "conv1")  # through the ReLU and the max pool
    assert returns_codes(small, "layer1.0.conv1")
    assert returns_codes(small, "layer1.0.conv2")  # read by the next block, as input and as residual
    assert returns_codes(small, "layer2.0.downsample.0")
    assert not returns_codes(small, "layer4.0.conv2")  # read by the average pool
    assert not returns_codes(small, "fc")
    text = quantization.quantize(MODELS["gpt"][0](), [tokens(64, 2, 16)])
    assert returns_codes(text, "transformer.h.0.mlp.c_fc")
    assert not returns_codes(text, "transformer.h.0.attn.c_attn")
    assert not returns_codes(text, "transformer.h.0.mlp.c_proj")


def test_a_layer_whose_output_others_read_too_returns_float32():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            return self.second(x) + x

    small = quantization.quantize(Model(), [images(2, 4)])
    assert small.quantization.int8 == {"first": False, "second": False}


def test_a_norm_whose_input_is_read_elsewhere_is_not_folded():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            return self.norm(x) + x

    assert quantization.quantize(Model(), [images()]).quantization.folded == {}


def test_weights_have_a_scale_for_each_output_channel_and_a_channel_of_zeros_stays_zero():
    layer = nn.Linear(8, 4, bias=False)
    with ampkit.no_grad():
        layer.weight[2] = 0
    small = quantization.quantize(layer, [images(3, 8)])
    weight, wide = small.weight.numpy(), layer.weight.detach().numpy()
    assert np.abs(weight).max(1).tolist() == [127, 127, 0, 127]
    assert np.abs(weight * small.weight_scale.numpy()[:, None] - wide).max() <= np.abs(wide).max() / 254 + 1e-7


def test_the_result_of_a_layer_is_that_of_its_formula():
    layer, x = nn.Linear(16, 8), images(5, 16)
    small = quantization.quantize(layer, [x])
    zero, scale = int(small.input_zero_point), np.float32(float(small.input_scale))
    codes = np.clip(np.rint(x.numpy() * np.float32(1 / scale) + zero), 0, 255).astype(np.int64)
    sums = ((codes - zero) @ small.weight.numpy().astype(np.int64).T).astype(np.float32)
    wanted = sums * (small.weight_scale.numpy() * scale) + layer.bias.detach().numpy()
    assert np.allclose(small(x).numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_a_layer_reads_codes_with_the_scale_that_they_have():
    small = quantization.quantize(nn.Linear(4, 2, bias=False), [images(3, 4)])
    codes = ampkit.tensor(np.arange(8).reshape(2, 4).astype(np.uint8))
    found = [small(QuantizedTensor(codes, QParams(scale, 3))).numpy() for scale in (0.5, 1.0)]
    assert np.allclose(2 * found[0], found[1])


# what stays out


def test_skipped_layers_stay_in_float32():
    small = quantization.quantize(resnet(), [images(4, 3, 32, 32)], skip=["fc", "layer*.0.conv1"])
    assert type(small.fc) is nn.Linear
    assert type(small.layer2[0].conv1) is nn.Conv2d
    assert not returns_codes(small, "conv1")


def loss_of(model, x, t):
    return ops.cross_entropy(model(x), t)


def planted():
    """A model of two layers, of which the first has an input that 8 bits cannot hold, and its batches."""
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    x = DRAW.normal(size=(64, 8)).astype(np.float32)
    x[:, 0] = 0
    x[0, 0] = 1e5  # the range, whose steps are then wider than all other values
    with ampkit.no_grad():
        model[0].weight[:, 0] = 0
        targets = model(ampkit.tensor(x)).numpy().argmax(1)
        model[2].weight *= 20
        model[2].bias *= 20
    return model, [(ampkit.tensor(x), ampkit.tensor(targets))]


def test_a_budget_keeps_the_layer_that_loses_most_in_bfloat16():
    model, batches = planted()
    small = quantization.quantize(model, batches, loss=loss_of, budget=0.05)
    assert small.quantization.bfloat16 == ("0",)
    assert "bfloat16" in repr(small[0])
    with ampkit.no_grad():
        assert float(loss_of(small, *batches[0])) < 1.05 * float(loss_of(model, *batches[0])) + 0.01
    everything = quantization.quantize(model, batches, loss=loss_of, budget=1e9)
    assert everything.quantization.bfloat16 == ()


# observers


def test_a_percentile_leaves_out_the_ends_and_entropy_a_lone_value():
    x = np.concatenate([DRAW.normal(size=200_000), [1000]]).astype(np.float32)
    ranges = {}
    for kind in (quantization.MinMaxObserver, quantization.PercentileObserver, quantization.EntropyObserver):
        observer = kind()
        for part in np.array_split(x, 5):
            observer(part)
        ranges[kind.__name__] = 255 * observer.calculate_qparams().scale
    assert ranges["MinMaxObserver"] > 1000
    assert 6 < ranges["PercentileObserver"] < 10
    assert ranges["EntropyObserver"] < 200


def test_a_histogram_loses_no_value_where_its_bins_double():
    observer = quantization.HistogramObserver()
    for part in (np.float32([-1e-3, 1e-3]), np.float32([5, -7, 0]), np.float32([1e4])):
        observer(part)
    assert observer.counts.sum() == 6
    assert observer.counts[len(observer.counts) // 2 :].sum() == 4  # 0 and the positive ones


@pytest.mark.parametrize("values", [[0, 0], [3, 5], [-5, -3]])
def test_a_range_always_holds_zero(values):
    observer = quantization.MinMaxObserver()
    observer(np.float32(values))
    qparams = observer.calculate_qparams()
    assert 0 <= qparams.zero_point <= 255
    assert qparams.scale > 0
    high = (255 - qparams.zero_point) * qparams.scale
    assert np.isclose(high, max(*values, 0), atol=qparams.scale) or not any(values)


# what is refused


def refused(error, text, call):
    with pytest.raises(error, match=text) as caught:
        call()
    assert len(str(caught.value).splitlines()) <= 2


def test_mistakes_are_one_line_with_the_cure():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), images(2, 4)
    bad = ampkit.tensor(np.float32([[1, 2, 3, np.inf]]))
    quantize = quantization.quantize
    refused(ArgumentError, "at least one calibration batch", lambda: quantize(model, []))
    refused(ArgumentError, "observer 'minmax', 'percentile' or 'entropy'", lambda: quantize(model, [x], observer="max"))
    refused(ConfigError, "skip: the path of a module", lambda: quantize(model, [x], skip=["decoder.*"]))
    refused(ArgumentError, "a layer that `skip` leaves", lambda: quantize(model, [x], skip="0"))
    refused(ArgumentError, "a model with Linear or Conv2d layers", lambda: quantize(nn.Sequential(nn.ReLU()), [x]))
    refused(NonFiniteError, "0: needs finite activations in calibration", lambda: quantize(model, [bad]))
    refused(ArgumentError, "loss and budget, or neither", lambda: quantize(model, [x], budget=0.1))
    refused(ArgumentError, "a budget above 0", lambda: quantize(model, [x], loss=loss_of, budget=-1))
    refused(StateError, "a prepared model", lambda: quantization.calibrate(model, [x]))
    refused(StateError, "a prepared model", lambda: quantization.convert(model))
    refused(StateError, "eval mode", lambda: quantize(model, [x]).train()(x))


def test_an_observer_without_data_and_a_weight_that_is_not_finite_are_refused():
    prepared = quantization.prepare(nn.Linear(4, 4), images(2, 4))
    refused(StateError, "an observer that has seen data", lambda: quantization.convert(prepared))
    layer = nn.Sequential(nn.Linear(4, 4))
    with ampkit.no_grad():
        layer[0].weight[1, 1] = np.nan
    refused(NonFiniteError, "finite", lambda: quantization.quantize(layer, [images(2, 4)]))
