"""Ranges: what each layer's values are, what a format would lose of them, and what is said about it."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.amp.exponents import FORMATS
from ampkit.base import observe
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.debug import Ranges
from ampkit.debug.range_rows import ACTIVATION, GRADIENT, PARAMETER, PARAMETER_GRADIENT, sample_of

NUMPY = {"float16": np.float16, **{name: getattr(ml_dtypes, name) for name in [*FORMATS][1:]}}


class Times(nn.Module):
    """Its input times a constant."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def mlp():
    ampkit.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def train(model, dtype="float32", steps=1, every=1, factor=1.0, scale=None, lr=1e-3, inputs=1.0):
    """The Ranges of `steps` steps, on the same batches whatever else."""
    optimizer = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    scaler = ampkit.GradScaler(enabled=scale is not None, init_scale=scale or 1.0)
    rng, ranges = np.random.default_rng(0), Ranges(model, every)
    for _ in range(steps):
        x = ampkit.tensor((inputs * rng.standard_normal((200, 16))).astype(np.float32))
        target = ampkit.tensor(rng.integers(0, 5, 200))
        device = ampkit.get_default_device().type
        with ranges.step():
            with ampkit.autocast(device, dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
                loss = ops.cross_entropy(model(x), target)
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return ranges


def by_layer(ranges, *kinds):
    return {(r.of, r.path, r.op): r for r in ranges.ranges() if r.of in kinds and r.op != "cast"}


def shares(found, dtype):
    """Of all values, those that are inf or NaN, subnormal and zero in `dtype`: stored in it, or as they would be."""
    lost = found.would_lose(dtype) if found.dtype != dtype else (0, found.lost().subnormal, 0)
    return np.array([lost[0] + found.inf + found.nan, lost[1], lost[2] + found.zero]) / found.count


def products_flush_subnormals(dtype):
    """Whether products in `dtype` of subnormals are 0, as those of a CPU with units for bfloat16."""
    tiny = ampkit.full((200, 16), float(ampkit.finfo(dtype).tiny) / 4, dtype=getattr(ampkit, dtype))
    return not (tiny @ ampkit.eye(16, dtype=tiny.dtype)).numpy(force=True).any()


def results_flush_subnormals(dtype):
    """Whether elementwise arithmetic rounds subnormal results to 0, as by instructions for bfloat16."""
    tiny = ampkit.full((8192,), float(ampkit.finfo(dtype).tiny) / 4, dtype=getattr(ampkit, dtype))
    return not (tiny * 1.0).numpy(force=True).any()


@pytest.mark.parametrize(
    ("dtype", "factor"), [("float16", 2.0**-4), ("float16", 2.0**-6), ("float16", 2.0**-8), ("bfloat16", 2.0**-118)]
)
def test_what_16_bits_would_lose_of_gradients_is_what_they_lose_in_a_run(dtype, factor):
    wide, low = (by_layer(train(mlp(), each, factor=factor), GRADIENT) for each in ("float32", dtype))
    met = [key for key, found in low.items() if found.dtype == dtype and shares(found, dtype).any()]
    assert len(met) >= 3
    for key in met:
        expected = shares(wide[key], dtype)
        flushes = results_flush_subnormals(dtype) or products_flush_subnormals(dtype)
        if flushes and not shares(low[key], dtype)[1]:  # other ops, which move numbers or round in software, keep them
            expected = np.array([expected[0], 0.0, expected[1] + expected[2]])
        np.testing.assert_allclose(shares(low[key], dtype), expected, atol=0.01, err_msg=key)


@pytest.mark.parametrize(
    ("low", "weights", "inputs", "lost"),
    [("float16", 1.0, 2.0**-13, 1), ("float16", 20.0, 1e4, 0), ("bfloat16", 1.0, 2.0**-125, 1)],
    ids=["small", "large", "small in bfloat16"],
)
def test_what_16_bits_would_lose_of_activations_is_what_they_lose_in_a_run(low, weights, inputs, lost):
    found = []
    for dtype in ("float32", low):
        model = mlp()
        with ampkit.no_grad():
            model[0].weight.mul_(weights), model[0].bias.fill_(0.0)
        found.append(by_layer(train(model, dtype, inputs=inputs), ACTIVATION)[ACTIVATION, "0", "linear"])
    wide, met = (shares(each, low) for each in found)
    assert 0.1 < wide[lost] < 0.9
    if products_flush_subnormals(low):  # each partial sum, so that more is lost than in rounding the sum
        assert met[1] == 0
        assert met[2] > wide[1] + wide[2]
    else:
        np.testing.assert_allclose(wide, met, atol=0.01)


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_would_lose_is_what_its_cast_of_the_values_loses(name):
    model, seen = mlp(), []
    with observe.watch(lambda op, inputs, output: seen.append(output) if op == "layer_norm" else None):
        ranges = train(model, inputs=1e-3)
    found = by_layer(ranges, ACTIVATION)[ACTIVATION, "2", "layer_norm"]
    values = ampkit.Tensor(seen[0]).numpy(force=True)
    with ignore_fp_errors():
        stored = values.astype(NUMPY[name]).astype(np.float64)
    small = np.abs(stored) < float(ml_dtypes.finfo(NUMPY[name]).smallest_normal)
    truth = ~np.isfinite(stored), small & (stored != 0), (stored == 0) & (values != 0)
    assert found.would_lose(name) == tuple(int(lost.sum()) for lost in truth)
    assert found.count == values.size and found.largest == np.abs(values).max()


def test_gradients_are_reported_without_the_loss_scale_and_what_they_lose_with_it():
    one, scaled = (by_layer(train(mlp(), scale=scale), PARAMETER_GRADIENT, GRADIENT) for scale in (1.0, 1024.0))
    for key, found in one.items():
        assert (found.scale, scaled[key].scale) == (1.0, 1024.0)
        assert found.exponents() == scaled[key].exponents(), key
        assert scaled[key].largest == 1024 * found.largest
    key = GRADIENT, "3", "linear"
    assert sum(one[key].would_lose("float16")) > 20 * sum(scaled[key].would_lose("float16"))


def test_exponents_count_the_values_by_powers_of_two():
    model = mlp()
    found = by_layer(train(model), PARAMETER)
    weight = mlp()[3].weight.detach().numpy(force=True)
    first, counts = found[PARAMETER, "3.weight", ""].exponents()
    exponents = np.frexp(weight[weight != 0])[1] - 1
    assert first == exponents.min()
    np.testing.assert_array_equal(counts, np.bincount((exponents - first).reshape(-1)))


def test_a_cast_tells_exactly_what_it_flushes():
    ranges = train(mlp(), "float16", inputs=2.0**-24)
    (found,) = [r for r in ranges.ranges() if (r.path, r.op, r.of) == ("0", "cast", ACTIVATION)]
    assert (found.dtype, found.stored) == ("float32", "float16")
    x = (2.0**-24 * np.random.default_rng(0).standard_normal((200, 16))).astype(np.float32)
    assert found.lost() == (0, int((x.astype(np.float16) != 0).sum()), int((x.astype(np.float16) == 0).sum()))


def test_a_norm_that_runs_fused_with_its_relu_has_a_row_of_its_own():
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
    found = by_layer(train(model), ACTIVATION, GRADIENT)
    for path in ("1", "4"):
        assert (ACTIVATION, path, "batch_norm") in found and (GRADIENT, path, "batch_norm") in found


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.0), ("float16", 2.0**-20), ("bfloat16", float("inf"))])
def test_a_row_is_read_back_as_the_sample_that_wrote_it(dtype, factor):
    scale = 1024.0 if dtype == "float16" else None
    (sample,) = train(mlp(), dtype, factor=factor, scale=scale).samples
    read = sample_of(json.loads(json.dumps(sample.row())))
    assert (read.step, read.keys, read.scales, read.updates) == (
        sample.step,
        sample.keys,
        sample.scales,
        sample.updates,
    )
    np.testing.assert_array_equal(read.counts, sample.counts)


class Branches(nn.Module):
    """Two branches, of which one is 2^-12 of the sum."""

    def __init__(self):
        super().__init__()
        ampkit.manual_seed(0)
        self.stem, self.head = nn.Linear(16, 32), nn.Linear(32, 5)
        self.large, self.small = (nn.Sequential(nn.Linear(32, 32), Times(f)) for f in (1.0, 2.0**-12))

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.large(x) + self.small(x))


def test_a_branch_whose_gradients_underflow_is_named_first_with_the_scale_that_cures_it():
    said = train(Branches(), "float16", scale=4.0).recommendations()
    assert said[0].startswith("gradients of small")
    assert "float16 at scale 4" in said[0] and "raise init_scale" in said[0]
    said = train(Branches(), "float16", scale=2.0**20).recommendations()
    assert not any(line.startswith("gradients") for line in said)


def test_updates_that_a_16_bit_weight_loses_are_found_and_named():
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 5))
    ranges = train(model, steps=3, lr=1e-4)
    found = {update.path: update for update in ranges.updates()}
    norm = found["1.weight"]
    assert norm.size == 3 * 64 and norm.changed > 100
    assert norm.bfloat16 == norm.changed and norm.float16 > 0.9 * norm.changed
    # The bias begins at zero. Where products are contracted, gradients that cancel leave some updates near zero.
    assert found["1.bias"].bfloat16 < 0.05 * found["1.bias"].changed
    said = [line for line in ranges.recommendations() if line.startswith("bfloat16 weights")]
    assert len(said) == 1 and "1.weight (100 %)" in said[0] and "1.bias" not in said[0]


def test_a_skipped_step_loses_no_updates():
    ranges = train(mlp(), "float16", scale=2.0**40)
    assert {update.changed for update in ranges.updates()} == {0}


def test_masters_of_16_bit_parameters_are_what_is_compared():
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 5)).to(ampkit.bfloat16)
    found = train(model, "bfloat16", lr=1e-5)
    assert next(u for u in found.updates() if u.path == "1.weight").bfloat16 > 0
    weight = next(r for r in found.ranges() if r.path == "0.weight" and r.of == PARAMETER)
    assert (weight.dtype, weight.stored) == ("float32", "bfloat16")


def test_activations_near_the_largest_are_named():
    model = nn.Sequential(nn.Linear(16, 8), Times(4e4), Times(1e-4), nn.Linear(8, 5))
    with ampkit.no_grad():
        model[0].weight.fill_(0.0), model[0].bias.fill_(1.0)
    said = train(model, "float16", scale=1024.0).recommendations()
    assert any("activations of 1 mul reach 4e+04, 61 % of float16's largest" in line for line in said)
    with ampkit.no_grad():
        model[0].bias.fill_(2.0)
    said = train(model, "float16", scale=1024.0).recommendations()
    assert said[0].startswith("activations of 1 mul: 100 % are infinite in float16")
    said = train(model, "bfloat16").recommendations()
    assert any(line.startswith("activations of 1 mul reach 8e+04; in float16 100 % would be") for line in said)


def test_the_first_step_and_every_nth_are_sampled_and_nothing_is_observed_between_them():
    model, seen = mlp(), []
    ranges = Ranges(model, every=3)
    for _ in range(7):
        with ranges.step():
            seen.append(bool(observe.observers))
        assert not observe.observers
    assert seen == [True, False, True, False, False, True, False]
    assert [sample.step for sample in ranges.samples] == [1, 3, 6]


def test_rows_are_json_and_add_up():
    ranges = train(mlp(), "float16", steps=2, scale=64.0)
    rows = [json.loads(json.dumps(sample.row())) for sample in ranges.samples]
    assert [row["step"] for row in rows] == [1, 2]
    for sample, row in zip(ranges.samples, rows, strict=True):
        for found, layer in zip(sample.ranges, row["ranges"], strict=True):
            assert (layer["of"], layer["path"], layer["count"]) == (found.of, found.path, found.count)
            assert sum(layer["counts"]) + layer.get("zero", 0) + layer.get("inf", 0) == layer["count"]
            assert (layer["exponent"], layer["counts"]) == found.exponents()
            for name in ("of", "path", "op", "dtype", "stored", "scale", "zero", "inf", "nan", "largest"):
                assert layer.get(name, {"op": "", "stored": found.dtype, "scale": 1}.get(name, 0)) == getattr(
                    found, name
                )
            lost = {name: found.would_lose(name) for name in FORMATS} | {"present": found.lost()}
            assert all(tuple(layer.get(name, [0, 0, 0])) == values for name, values in lost.items())
    total = {found.key: found.count for found in ranges.ranges()}
    assert total == {r.key: 2 * r.count for r in ranges.samples[0].ranges}


def test_a_module_called_twice_is_one_layer_of_all_its_values():
    layer = nn.Linear(16, 16)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(16, 5))
    found = by_layer(train(model), ACTIVATION)
    assert found[ACTIVATION, "0", "linear"].count == 2 * 200 * 16


def test_what_an_op_passes_on_is_counted_where_it_was_made():
    found = by_layer(train(Branches()), GRADIENT)
    assert (GRADIENT, "(model)", "add") not in found
    assert found[GRADIENT, "head", "linear"].count == found[GRADIENT, "small.1", "mul"].count == 200 * 32


def test_gradients_of_several_batches_add_up_and_those_without_a_tag_have_no_scale():
    model = mlp()
    ranges, optimizer = Ranges(model, every=1), optim.SGD(model.parameters(), lr=0.1)
    with ranges.step():
        for _ in range(3):
            model(ampkit.ones(7, 16)).sum().backward()
        optimizer.step()
    found = by_layer(ranges, PARAMETER_GRADIENT)[PARAMETER_GRADIENT, "0.weight", ""]
    assert (found.count, found.scale) == (3 * 64 * 16, 1.0)


def test_the_table_shows_the_worst_layers_and_the_recommendations():
    text = str(train(Branches(), "float16", scale=4.0))
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["layer", "dtype", "largest", "zero"]
    assert lines[1].startswith("gradient") and "small" in lines[1]
    assert lines[-1].startswith("- ") and str(Ranges(mlp())).count("\n") == 0


def test_a_step_that_raises_leaves_no_sample():
    ranges = Ranges(mlp(), every=1)
    with pytest.raises(ZeroDivisionError), ranges.step():
        raise ZeroDivisionError
    assert not observe.observers and not ranges.samples
    with ranges.step():
        pass
    assert len(ranges.samples) == 1


def test_an_empty_batch_has_ranges_without_values():
    model = mlp()
    ranges = Ranges(model, every=1)
    with ranges.step():
        model(ampkit.zeros(0, 16)).sum().backward()
    assert by_layer(ranges, ACTIVATION)[ACTIVATION, "0", "linear"].count == 0
    assert "linear" in str(ranges) and ranges.recommendations() == []


def test_wrong_input_is_refused():
    with pytest.raises(ampkit.ArgumentError, match="Ranges: needs a module as `model`, got a int"):
        Ranges(3)
    with pytest.raises(ampkit.ArgumentError, match="`every` from 1, got 0"):
        Ranges(mlp(), every=0)
    ranges = Ranges(mlp(), every=1)
    with pytest.raises(ampkit.StateError, match="one inside another"), ranges.step(), ranges.step():
        pass
