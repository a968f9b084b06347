"""state_dict and load_state_dict."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import Tensor, nn, ops, tensor
from ampkit.base import dtypes
from ampkit.base.errors import DTypeError, ShapeError, StateError
from ampkit.nn import BatchNorm1d, Linear, Module, Parameter, Sequential
from ampkit.serialization.foreign_tensor import ForeignTensor


class Tied(Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = Linear(2, 3, bias=False), Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


def test_state_dict_shares_memory_and_is_off_the_tape():
    layer = Linear(2, 3)
    state = layer.state_dict()
    assert list(state) == ["weight", "bias"]
    assert state["weight"].array is layer.weight.array
    assert not state["weight"].requires_grad
    assert layer.state_dict(keep_vars=True)["weight"] is layer.weight
    assert list(layer.state_dict(prefix="a.")) == ["a.weight", "a.bias"]


def test_state_dict_keeps_buffers_unless_they_are_not_persistent():
    norm = BatchNorm1d(2)
    norm.register_buffer("scratch", tensor([1.0]), persistent=False)
    assert list(norm.state_dict()) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]


def test_loading_copies_values_into_the_same_parameters_and_counts_as_a_change():
    source, target = Linear(2, 3), Linear(2, 3)
    weight, version = target.weight, target.weight._version_counter[0]
    keys = target.load_state_dict(source.state_dict())
    assert keys.missing_keys == []
    assert keys.unexpected_keys == []
    assert target.weight is weight
    assert weight._version_counter[0] > version
    assert np.array_equal(weight.array, source.weight.array)
    assert weight.array is not source.weight.array


def test_loading_casts_to_the_dtype_of_the_module_and_takes_arrays():
    layer = Linear(2, 1).bfloat16()
    layer.load_state_dict({"weight": np.array([[1.0, 2.0]]), "bias": tensor([3])})
    assert layer.weight.dtype == dtypes.bfloat16
    assert layer.weight.tolist() == [[1.0, 2.0]]
    assert layer.bias.tolist() == [3.0]


def test_loading_takes_arrays_of_other_libraries_also_bfloat16():
    class Foreign:
        def __init__(self, held):
            self.held = held

        def __dlpack__(self, **options):
            return self.held.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.held.__dlpack_device__()

    layer = Linear(2, 1, bias=False)
    layer.load_state_dict({"weight": Foreign(tensor([[1.0, -2.0]], dtype=dtypes.bfloat16))})
    assert layer.weight.tolist() == [[1.0, -2.0]]


def test_a_misfit_lists_every_key_and_changes_nothing():
    model = Sequential(Linear(2, 3), Linear(3, 4), Linear(5, 1))
    before = {name: value.array.copy() for name, value in model.state_dict().items()}
    state = {name: Tensor(value + 1) for name, value in before.items()}
    state["0.wieght"] = state.pop("0.weight")
    state["extra"] = tensor([1.0])
    state["1.weight"] = Tensor(before["1.weight"].T)
    state["2.bias"] = tensor([1.0, 2.0])
    with pytest.raises(StateError) as caught:
        model.load_state_dict(state)
    assert str(caught.value) == (
        "Sequential.load_state_dict: "
        "needs the names and shapes of the module, got 1 missing, 2 unexpected, 2 misshapen\n"
        "  missing: 0.weight\n"
        "  unexpected: 0.wieght (did you mean '0.weight'?)\n"
        "  unexpected: extra\n"
        "  misshapen: 1.weight needs [4, 3], got [3, 4] (transposed)\n"
        "  misshapen: 2.bias needs [1], got [2]\n"
        "help: strict=False leaves out what has no counterpart"
    )
    assert all(np.array_equal(value.array, before[name]) for name, value in model.state_dict().items())


def test_strict_false_loads_what_fits_and_reports_the_rest():
    layer = Linear(1, 1)
    keys = layer.load_state_dict({"weight": [[5.0]], "other": [1.0]}, strict=False)
    assert layer.weight.item() == 5.0
    assert keys.missing_keys == ["bias"]
    assert keys.unexpected_keys == ["other"]
    with pytest.raises(StateError, match="got 1 misshapen"):
        layer.load_state_dict({"weight": [5.0]}, strict=False)


def test_a_common_prefix_is_pointed_out():
    state = {f"module.{name}": value for name, value in Linear(1, 1).state_dict().items()}
    with pytest.raises(StateError, match=r"every name begins with 'module\.': take that off"):
        Linear(1, 1).load_state_dict(state)


def test_a_tied_tensor_may_come_under_one_of_its_names():
    model = Tied()
    keys = model.load_state_dict({"embed.weight": np.full((3, 2), 7.0)})
    assert keys.missing_keys == []
    assert model.head.weight is model.embed.weight
    assert model.head.weight.array[0, 0] == 7


def test_values_that_are_no_tensors_are_refused_by_name():
    with pytest.raises(DTypeError, match="numbers as 'weight', got a str"):
        Linear(1, 1).load_state_dict({"weight": "x", "bias": [1.0]})
    with pytest.raises(DTypeError, match="needs state_dict as a mapping, got a Parameter"):
        Linear(1, 1).load_state_dict(Parameter(np.ones(1)))


class Counting(Module):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(np.ones(1, np.float32))
        self.seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_extra_state_is_saved_and_loaded_under_pytorchs_name():
    model, other = Sequential(Counting(), Linear(1, 1)), Sequential(Counting(), Linear(1, 1))
    model[0].seen = 7
    state = model.state_dict()
    assert list(state) == ["0.weight", "0._extra_state", "1.weight", "1.bias"]
    assert other.load_state_dict(state) == ([], [])
    assert other[0].seen == 7
    del state["0._extra_state"]
    assert other.load_state_dict(state, strict=False).missing_keys == ["0._extra_state"]
    with pytest.raises(StateError, match="missing: 0._extra_state"):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="unexpected: _extra_state"):
        Linear(1, 1).load_state_dict({**Linear(1, 1).state_dict(), "_extra_state": 1})


# hooks


def test_hooks_around_state_dict_run_for_each_module_with_its_prefix():
    seen, model = [], nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0].register_state_dict_pre_hook(lambda module, prefix, keep_vars: seen.append((prefix, keep_vars)))
    model[0].register_state_dict_post_hook(lambda module, state, prefix, metadata: state.pop(prefix + "bias"))
    model._register_state_dict_hook(lambda module, state, prefix, metadata: dict(state, more=1))
    assert list(model.state_dict()) == ["0.weight", "more"]
    assert seen == [("0.", False)]


def test_a_hook_before_loading_renames_keys_and_leaves_the_caller_s_dict_alone():
    model = nn.Sequential(nn.Linear(2, 2))

    def rename(module, state, prefix, metadata, strict, missing, unexpected, errors):
        state[prefix + "weight"] = state.pop(prefix + "kernel")

    model[0].register_load_state_dict_pre_hook(rename)
    handle = model[0]._register_load_state_dict_pre_hook(lambda state, prefix, *rest: seen.append(prefix))
    state, seen = {"0.kernel": ampkit.ones(2, 2), "0.bias": ampkit.zeros(2)}, []
    model.load_state_dict(state)
    handle.remove()
    model.load_state_dict(state)
    assert model[0].weight.tolist() == [[1, 1], [1, 1]]
    assert list(state) == ["0.kernel", "0.bias"]
    assert seen == ["0."]


def test_errors_that_a_hook_adds_refuse_the_state_with_nothing_changed():
    layer = nn.Linear(2, 2)
    before = layer.weight.tolist()
    layer.register_load_state_dict_pre_hook(lambda *given: given[-1].append("of version 3"))
    with pytest.raises(StateError, match="got 1 refused\n  refused: of version 3"):
        layer.load_state_dict({"weight": ampkit.ones(2, 2), "bias": ampkit.zeros(2)}, strict=False)
    assert layer.weight.tolist() == before


def test_a_hook_after_loading_may_forgive_missing_keys():
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    layer.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    assert layer.load_state_dict({"weight": ampkit.ones(2, 2)}).missing_keys == []
    other.register_load_state_dict_post_hook(lambda module, keys: None)
    with pytest.raises(StateError, match="got 1 missing"):
        other.load_state_dict({"weight": ampkit.ones(2, 2)})


def test_overrides_of_pytorch_s_own_methods_for_saving_and_loading_are_called():
    class Counted(nn.Linear):
        count = 3

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "count"] = self.count

        def _load_from_state_dict(self, state_dict, prefix, *rest):
            self.count = state_dict.pop(prefix + "count")
            super()._load_from_state_dict(state_dict, prefix, *rest)

    saved, model = nn.Sequential(Counted(1, 1)).state_dict(), nn.Sequential(Counted(1, 1))
    assert saved["0.count"] == 3
    model.load_state_dict(saved | {"0.count": 5})
    assert model[0].count == 5


class Doubled(Module):
    """Saves twice its value under a name of its own, and loads it without the base class."""

    def __init__(self, value=1.0):
        super().__init__()
        self.value, self.below = Parameter(tensor([value])), Linear(1, 1)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}twice"] = self.value.detach() * 2

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.value.data = state_dict[f"{prefix}twice"] / 2


def test_an_override_that_does_not_call_the_base_loads_what_the_module_itself_holds():
    state = Sequential(Doubled(3.0)).state_dict()
    assert list(state) == ["0.twice", "0.below.weight", "0.below.bias"]
    model = Sequential(Doubled())
    assert model.load_state_dict(state) == ([], [])
    assert model[0].value.item() == 3
    assert (model[0].below.weight == state["0.below.weight"]).all()
    with pytest.raises(StateError, match="1 missing, 1 unexpected"):
        model.load_state_dict({"0.twice": tensor([1.0]), "0.below.weight": state["0.below.weight"], "1.twice": 1})


class Filtered(Linear):
    """Loads from a dict that it makes of what it is given."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        given = {name: value + 1 for name, value in state_dict.items() if name.startswith(prefix)}
        super()._load_from_state_dict(given, prefix, *rest)


def test_an_override_may_give_the_base_another_dict():
    model, state = Sequential(Filtered(1, 1), Linear(1, 1)), Sequential(Linear(1, 1), Linear(1, 1)).state_dict()
    model.load_state_dict(state)
    assert model[0].weight.item() == state["0.weight"].item() + 1
    assert model[1].weight.item() == state["1.weight"].item()


def test_the_version_of_each_module_is_beside_the_entries_and_reaches_hooks_and_files(tmp_path):
    model, seen = Sequential(Linear(1, 2), BatchNorm1d(2)), []
    wanted = {"": {"version": 1}, "0": {"version": 1}, "1": {"version": 2}}
    state = model.state_dict()
    assert dict(state._metadata) == wanted
    ampkit.save(state, tmp_path / "w.pt")
    assert dict(ampkit.load(tmp_path / "w.pt")._metadata) == wanted
    model[1].register_load_state_dict_pre_hook(lambda module, state, prefix, metadata, *rest: seen.append(metadata))
    model.load_state_dict(state)
    model.load_state_dict(dict(state))
    assert seen == [{"version": 2}, {}]


def test_states_of_batch_norms_from_before_they_counted_batches_load():
    norm = BatchNorm1d(2)
    norm(ops.ones(3, 2))
    state = norm.state_dict()
    del state["num_batches_tracked"]
    with pytest.raises(StateError, match="missing"):
        norm.load_state_dict(state)
    state._metadata[""]["version"] = 1
    for older in (state, dict(state)):
        assert norm.load_state_dict(older) == ([], [])
    assert norm.num_batches_tracked.item() == 1


def test_help_for_a_state_that_does_not_fit_works_when_it_is_followed():
    layer = Linear(2, 2)
    whole = {"model": layer.state_dict(), "epoch": 3}
    with pytest.raises(StateError, match=r"help: .* load_state_dict\(state\['model'\]\)"):
        layer.load_state_dict(whole)
    layer.load_state_dict(whole["model"])
    with pytest.raises(StateError) as caught:  # strict=False would load nothing
        layer.load_state_dict({"other": tensor([1.0])})
    assert "help:" not in str(caught.value)
    halves = np.full((2, 2), 0.5).astype(ml_dtypes.float8_e4m3fn)
    foreign = {"weight": ForeignTensor(halves, "float8_e4m3fn", (2, 2)), "bias": tensor([1.0, 2.0])}
    with pytest.raises(DTypeError, match=r"(?s)dict of .weight.*help: convert it: x\.to\(ampkit\.float32\)"):
        layer.load_state_dict(foreign)
    layer.load_state_dict({**foreign, "weight": foreign["weight"].to("float32")})
    assert layer.weight.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_help_for_labels_and_indices_works_when_it_is_followed():
    logits, one_hot = tensor([[2.0, 1.0, 0.0]] * 2), tensor([[0, 1, 0], [1, 0, 0]])
    with pytest.raises(ShapeError, match=r"help: of one-hot labels pass target\.argmax\(1\)"):
        ops.cross_entropy(logits, one_hot)
    found, of_probabilities = (ops.cross_entropy(logits, t) for t in (one_hot.argmax(1), one_hot.float()))
    assert found.item() == pytest.approx(of_probabilities.item())
    with pytest.raises(DTypeError, match=r"cast them with \.long\(\)"):
        ops.embedding(tensor([1.0]), logits)
    with pytest.raises(DTypeError, match="the indices come first"):
        ops.embedding(logits, tensor([[1]]))
