"""Policies and autocast regions: what runs in which dtype, and that a region always ends where it should."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, nn, observe, ops
from ampkit.base.errors import ArgumentError, ConfigError, DeviceError, DTypeError, StateError
from ampkit.core.op import ops as registry
from ampkit.core.policy import get_autocast_dtype, is_autocast_enabled


def ones(*shape, dtype=ampkit.float32, grad=False):
    return ampkit.tensor(np.ones(shape), dtype=dtype, requires_grad=grad)


def state():
    return is_autocast_enabled(), get_autocast_dtype()


OFF = (False, ampkit.bfloat16)


# the table


def test_every_op_is_in_the_category_that_was_reviewed():
    reviewed, category = {}, ""
    for line in (Path(__file__).parents[1] / "golden" / "policy_float16.txt").read_text().splitlines():
        if line and line[0] not in " #":
            category = line
        elif line.startswith(" "):
            reviewed |= dict.fromkeys(line.split(), category)
    policy = Policy("float16")
    own = [name for name, op in registry.items() if op.forward.reference.run.__module__.startswith("ampkit.ops.")]
    found = {name: policy.category(name).value for name in own}
    differ = {name: found.get(name) for name in found.keys() | reviewed.keys() if found.get(name) != reviewed.get(name)}
    assert not differ, f"tests/golden/policy_float16.txt has these ops in other categories, or not at all: {differ}"


def test_the_five_lines_at_the_top_of_the_policy_page_say_what_ops_return():
    names = {}
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    exec(compile(page.partition("```python\n")[2].partition("```")[0], "docs/policy.md", "exec"), names)
    calls = {"linear": ops.linear, "mul": ops.mul, "mse_loss": ops.mse_loss, "cat": lambda x, y: ops.cat([x, y])}
    calls |= {"relu": lambda x, _: ops.relu(x), "softmax": lambda x, _: ops.softmax(x, -1)}
    floats = (ampkit.float32, ampkit.float16, ampkit.bfloat16)
    policies = (Policy("float16"), Policy("bfloat16", linear="widest", mul="low", relu="float32", softmax="keep"))
    for policy, name, *dtypes in product(policies, calls, floats, floats):
        with autocast(policy=policy):
            result = calls[name](*(ones(2, 2, dtype=dtype) for dtype in dtypes))
        assert result.dtype == names["dtype_of"](name, dtypes, policy), (name, dtypes)


# the policy as a value


def test_equal_policies_are_one_object_and_print_as_they_are_spelled():
    policy = Policy("float16", softmax="low", gelu="float32")
    assert policy is Policy(ampkit.float16, gelu="float32", softmax="low")
    assert repr(policy) == 'Policy("float16", gelu="float32", softmax="low")'
    assert eval(repr(policy)) is policy
    assert eval(repr(Policy.fast("bfloat16"))) is Policy.fast("bfloat16")


def test_a_policy_is_frozen_and_survives_pickle_and_copy():
    policy = Policy("bfloat16", softmax="low")
    with pytest.raises(AttributeError, match="frozen"):
        policy.dtype = ampkit.float16
    assert pickle.loads(pickle.dumps(policy)) is policy
    assert copy.deepcopy(policy) is policy


@pytest.mark.parametrize(
    ("words", "said"),
    [({"sofmax": "low"}, "did you mean 'softmax'"), ({"softmax": "fp32"}, "one of low, float32, widest, keep, banned")],
)
def test_an_unknown_op_or_word_is_refused_with_a_suggestion(words, said):
    with pytest.raises(ConfigError, match=said):
        Policy("float16", **words)


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float64, ampkit.int64, "float32", "bf16", 3])
def test_a_dtype_that_is_not_16_bit_raises_instead_of_training_on_in_float32(dtype):
    with pytest.raises(DTypeError):
        Policy(dtype)
    with pytest.raises(DTypeError):
        autocast(dtype=dtype)


def test_a_dtype_may_be_given_by_name():
    with autocast(dtype="float16"):
        assert ops.linear(ones(2, 3), ones(4, 3)).dtype == ampkit.float16


def test_overrides_change_the_category_of_one_op():
    with autocast(policy=Policy("float16", softmax="low", gelu="float32")):
        assert ops.softmax(ones(2, 3), -1).dtype == ampkit.float16
        assert ops.gelu(ones(2, 3, dtype=ampkit.float16)).dtype == ampkit.float32
        assert ops.log_softmax(ones(2, 3), -1).dtype == ampkit.float32
    with autocast(policy=Policy("float16", linear="banned")), pytest.raises(DTypeError, match="linear inside autocast"):
        ops.linear(ones(2, 3), ones(4, 3))


def test_the_fast_preset_stores_norms_and_softmax_in_16_bits():
    x, weight = ones(2, 3), ones(3)
    with autocast(policy=Policy.fast("bfloat16")):
        assert ops.layer_norm(x, (3,), weight).dtype == ampkit.bfloat16
        assert ops.softmax(x, -1).dtype == ampkit.bfloat16
        assert ops.cross_entropy(x, ampkit.tensor([0, 1])).dtype == ampkit.float32


# categories at work


def test_low_ops_run_in_16_bits_float32_ops_answer_in_float32_and_the_rest_keep():
    half = ones(2, 3, dtype=ampkit.float16)
    with autocast(dtype=ampkit.float16):
        assert ops.matmul(ones(2, 3), ones(3, 2)).dtype == ampkit.float16
        assert ops.exp(half).dtype == ampkit.float32
        assert ops.sum(half).dtype == ampkit.float32
        assert ops.relu(half).dtype == ampkit.float16
        assert (half + ones(2, 3)).dtype == ampkit.float32
        assert (half * 2.5).dtype == ampkit.float16


def test_an_explicit_dtype_wins():
    half = ones(2, 3, dtype=ampkit.float16)
    with autocast(dtype=ampkit.float16):
        assert ops.softmax(half, -1, dtype=ampkit.float64).dtype == ampkit.float64
        assert ops.sum(half, dtype=ampkit.float16).dtype == ampkit.float16


def test_a_banned_op_raises_in_a_region_and_names_the_cure():
    p, y = ampkit.tensor([0.5]), ampkit.tensor([1.0])
    with autocast(dtype=ampkit.float16), pytest.raises(DTypeError, match="binary_cross_entropy_with_logits"):
        ops.binary_cross_entropy(p, y)
    assert np.isclose(ops.binary_cross_entropy(p, y).item(), np.log(2))


def test_float64_runs_in_float64_but_does_not_meet_float32_in_a_product():
    double = ones(2, 2, dtype=ampkit.float64)
    with autocast(dtype=ampkit.float16):
        assert ops.mm(double, double).dtype == ampkit.float64
        with pytest.raises(DTypeError, match="operands of one dtype"):
            ops.mm(double, ones(2, 2))
        assert ops.mm(ampkit.tensor([[1, 2]]), ampkit.tensor([[3], [4]])).dtype == ampkit.int64


def test_two_16_bit_formats_meet_in_float32_and_cpu_ops_of_the_gpu_list_work():
    half, brain = ones(2, dtype=ampkit.float16), ones(2, dtype=ampkit.bfloat16)
    assert (half + brain).dtype == ampkit.float32
    with autocast(dtype=ampkit.float16):
        assert ops.atan2(half, brain).dtype == ampkit.float32
        assert ops.dot(half, half).dtype == ampkit.float16


def test_products_of_mixed_dtypes_outside_a_region_raise_and_say_how_to_cast():
    with pytest.raises(DTypeError, match=r"cast one: x\.to"):
        ops.matmul(ones(2, 2, dtype=ampkit.float16), ones(2, 2))


def test_default_dtype_is_bfloat16_on_a_cpu_and_float16_on_a_gpu():
    with autocast():
        assert state() == (True, ampkit.bfloat16)
        assert get_autocast_dtype("cuda") == ampkit.float16


# regions


def test_a_nested_region_wins_and_the_outer_one_comes_back():
    with autocast(dtype=ampkit.float16):
        with autocast(dtype=ampkit.bfloat16):
            assert state() == (True, ampkit.bfloat16)
            with autocast(enabled=False):
                assert not is_autocast_enabled()
                assert ops.matmul(ones(2, 2), ones(2, 2)).dtype == ampkit.float32
        assert state() == (True, ampkit.float16)
    assert state() == OFF


def test_an_exception_ends_the_region():
    with pytest.raises(KeyError), autocast(dtype=ampkit.float16):
        raise KeyError
    assert state() == OFF


def test_one_instance_may_be_entered_again_and_used_by_a_recursive_function():
    region = autocast(dtype=ampkit.float16)
    with region, region:
        assert is_autocast_enabled()
    assert state() == OFF

    @region
    def down(n):
        return down(n - 1) if n else state()

    assert down(20) == (True, ampkit.float16)
    assert state() == OFF


def test_blocks_may_end_in_any_order():
    first, second = autocast(dtype=ampkit.float16), autocast(dtype=ampkit.bfloat16)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert state() == (True, ampkit.bfloat16)
    second.__exit__()
    assert state() == OFF
    with pytest.raises(StateError):
        second.__exit__()


def test_a_decorated_generator_runs_inside_and_its_caller_outside():
    @autocast(dtype=ampkit.float16)
    def steps():
        try:
            got = yield state()
        except KeyError:
            got = yield ("caught", *state())
        yield (got, *state())
        return "end"

    it = steps()
    assert next(it) == (True, ampkit.float16)
    assert state() == OFF
    assert it.throw(KeyError()) == ("caught", True, ampkit.float16)
    assert it.send(5) == (5, True, ampkit.float16)
    with pytest.raises(StopIteration) as end:
        next(it)
    assert end.value.value == "end" and state() == OFF


def test_closing_a_decorated_generator_runs_its_cleanup_inside():
    seen = []

    @autocast(dtype=ampkit.float16)
    def steps():
        try:
            yield
        finally:
            seen.append(state())

    it = steps()
    next(it)
    it.close()
    assert seen == [(True, ampkit.float16)] and state() == OFF


def test_a_block_across_a_yield_stays_visible_to_the_caller_as_context_managers_need():
    from contextlib import contextmanager

    @contextmanager
    def mixed():
        with autocast(dtype=ampkit.float16):
            yield

    with mixed():
        assert is_autocast_enabled()
    assert state() == OFF


def test_coroutines_keep_their_own_regions():
    @autocast(dtype=ampkit.float16)
    async def on():
        await asyncio.sleep(0.001)
        return state()

    async def off():
        with autocast(enabled=False):
            await asyncio.sleep(0.002)
            return state()

    async def both():
        return await asyncio.gather(on(), off(), on())

    first, second, third = asyncio.run(both())
    assert first == third == (True, ampkit.float16)
    assert not second[0]
    assert state() == OFF


def test_a_new_thread_starts_outside_and_threads_do_not_meet():
    with autocast(dtype=ampkit.float16), ThreadPoolExecutor(1) as pool:
        assert pool.submit(state).result() == OFF

    barrier, seen = threading.Barrier(2), {}

    def work(dtype):
        with autocast(dtype=dtype):
            barrier.wait()
            seen[dtype] = get_autocast_dtype()
            barrier.wait()

    threads = [threading.Thread(target=work, args=(d,)) for d in ("float16", "bfloat16")]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == {"float16": ampkit.float16, "bfloat16": ampkit.bfloat16}


# what it takes


def test_a_device_type_restricts_the_region_and_a_missing_device_raises():
    with autocast("cpu", dtype=ampkit.float16):
        assert is_autocast_enabled("cpu") and not is_autocast_enabled("cuda")
    with autocast("cuda", enabled=False, dtype=ampkit.float16):
        assert not is_autocast_enabled("cpu")
    with pytest.raises(DeviceError, match="'tpu'"):
        autocast("tpu")


def test_a_missing_gpu_raises_instead_of_training_on_in_float32():
    from ampkit import backends

    try:
        backends.get("cuda")
    except DeviceError:
        with pytest.raises(DeviceError, match="cuda: needs"):
            autocast("cuda", dtype=ampkit.float16)
    else:
        autocast("cuda", dtype=ampkit.float16)


def test_a_region_on_one_device_type_leaves_an_outer_region_on_another_alone():
    with autocast(dtype=ampkit.float16), autocast("cuda", enabled=False):
        assert state() == (True, ampkit.float16)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: autocast(ampkit.float16), DTypeError, r"autocast\(dtype=..., "),
        (lambda: autocast(True), DTypeError, r", enabled=...\)"),
        (lambda: autocast(policy="float16"), ArgumentError, "a Policy"),
        (lambda: autocast(dtype="float16", policy=Policy("float16")), ArgumentError, "no dtype beside it"),
        (lambda: autocast("cpu")(ones(2)), DTypeError, "a callable"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_an_async_generator_is_refused_rather_than_run_outside():
    async def numbers():
        yield 1

    with pytest.raises(DTypeError, match="async generator"):
        autocast()(numbers)


# backward


@pytest.mark.cpu
def test_gradients_do_not_depend_on_a_region_around_backward():
    def gradient(region):
        w = nn.Parameter(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
        with autocast(dtype=ampkit.float16):
            loss = ops.linear(ones(2, 3), w).float().pow(2).sum()
        with region:
            loss.backward()
        return w.grad

    plain = gradient(autocast(enabled=False))
    inside = gradient(autocast(dtype=ampkit.bfloat16))
    assert plain.dtype == ampkit.float32
    np.testing.assert_array_equal(plain.array, inside.array)


@pytest.mark.cpu
def test_autocast_is_off_inside_backward():
    seen = []
    w = nn.Parameter(np.ones((2, 2), np.float32))
    with autocast(dtype=ampkit.float16):
        loss = ops.linear(ones(2, 2), w).sum()
        with observe.watch(lambda name, inputs, output: seen.append((name, is_autocast_enabled()))):
            loss.backward()
    assert ("linear_backward", False) in seen


@pytest.mark.cpu
def test_a_parameter_s_gradient_is_never_rounded_to_16_bits():
    w = nn.Parameter(np.ones((1, 1), np.float32))
    x = ampkit.tensor([[60000.0], [60000.0]], dtype=ampkit.float16)
    with autocast(dtype=ampkit.float16):
        y = ops.linear(x, w)
    y.backward(ones(2, 1, dtype=ampkit.float16))
    assert w.grad.dtype == ampkit.float32
    assert w.grad.item() == 2 * float(np.float16(60000))


# weight copies


def casts(run):
    seen = []
    with observe.watch(lambda name, inputs, output: seen.append(output.dtype) if name == "cast" else None):
        run()
    return len(seen)


def test_a_weight_is_cast_once_as_long_as_it_does_not_change():
    layer, x = nn.Linear(3, 3), ones(2, 3, dtype=ampkit.float16)

    def twice():
        for _ in range(2):
            with autocast(dtype=ampkit.float16):
                layer(layer(x))

    assert casts(twice) == 2  # the weight and the bias, over four uses in two regions
    assert casts(twice) == 0
    with ampkit.no_grad():
        layer.weight.mul_(2.0)
    assert casts(twice) == 1


def test_cache_enabled_false_casts_at_each_use():
    layer, x = nn.Linear(3, 3, bias=False), ones(2, 3, dtype=ampkit.float16)

    def twice():
        with autocast(dtype=ampkit.float16, cache_enabled=False):
            layer(layer(x))

    assert casts(twice) == 2


@pytest.mark.cpu
def test_a_copy_made_in_no_grad_does_not_lose_the_weight_s_gradient():
    layer, x = nn.Linear(3, 1), ones(2, 3)
    with autocast(dtype=ampkit.float16):
        with ampkit.no_grad():
            layer(x)
        loss = layer(x).sum()
    loss.backward()
    assert np.array_equal(layer.weight.grad.array, np.full((1, 3), 2.0))


def test_a_nested_region_of_another_dtype_gets_a_copy_in_its_own():
    layer, x = nn.Linear(3, 3), ones(2, 3)
    with autocast(dtype=ampkit.float16):
        assert layer(x).dtype == ampkit.float16
        with autocast(dtype=ampkit.bfloat16):
            assert layer(x).dtype == ampkit.bfloat16
        assert layer(x).dtype == ampkit.float16


def test_a_weight_changed_inside_a_region_is_used_as_changed():
    layer, x = nn.Linear(3, 1, bias=False), ones(1, 3)
    with autocast(dtype=ampkit.float16):
        layer(x)
        with ampkit.no_grad():
            layer.weight.zero_()
        assert layer(x).item() == 0


def test_changes_through_data_and_views_are_seen_too():
    layer, x = nn.Linear(3, 1, bias=False), ones(1, 3)
    with autocast(dtype=ampkit.float16):
        for change in (
            lambda w: setattr(w, "data", ampkit.tensor([[1.0, 1.0, 1.0]])),
            lambda w: w.data.mul_(2.0),
            lambda w: w.detach().view(-1).mul_(2.0),
        ):
            change(layer.weight)
            assert layer(x).item() == pytest.approx(layer.weight.data.sum().item(), abs=1e-2)


def test_in_place_ops_are_not_autocast():
    x = ones(2, 2)
    with autocast(dtype=ampkit.float16):
        x.add_(1.0)
    assert x.dtype == ampkit.float32


@pytest.mark.cpu
def test_memory_that_numpy_holds_is_cast_anew_each_time():
    shared = np.ones((2, 2), np.float32)
    x, layer = ampkit.from_numpy(shared), nn.Linear(2, 2, bias=False)
    for value in (1.0, 5.0):
        shared[...] = value
        layer.weight.detach().numpy()[...] = value
        with ampkit.autocast(dtype=ampkit.float16), ampkit.no_grad():
            assert layer(x).tolist() == [[2 * value * value] * 2] * 2


def test_a_parameter_notices_a_change_of_the_tensor_it_was_made_from():
    source = ampkit.ones(2, 2)
    weight = nn.Parameter(source)
    for value in (1.0, 0.0):
        source.fill_(value)
        with ampkit.autocast(dtype=ampkit.float16):
            assert (ampkit.ones(1, 2) @ weight).tolist() == [[2 * value] * 2]
