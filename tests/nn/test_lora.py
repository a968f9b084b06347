"""Low-rank adaptation: its formula in float64, what is trained, merging, and PEFT's files."""

import json
import shutil

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, ConfigError, FileError, StateError
from ampkit.nn.lora import LoraConfig, inject_adapter_in_model, load_adapter, merge_and_unload, save_adapter


def values(tensor):
    return tensor.detach().cpu().numpy().copy()


def network(dtype=ampkit.float32):
    ampkit.manual_seed(0)
    conv = nn.Conv2d(2, 6, 3, stride=2, padding=1, dilation=1)
    return nn.Sequential(conv, nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5), nn.Linear(5, 3)).to(dtype)


def adapted(dtype=ampkit.float32, **options):
    config = LoraConfig(**{"r": 2, "lora_alpha": 6, "target_modules": ["0", "4"], **options})
    model = inject_adapter_in_model(config, network(dtype))
    rng = np.random.default_rng(1)
    with ampkit.no_grad():
        for each in (model[0], model[4]):
            each.lora_B.weight.copy_(ampkit.tensor(rng.standard_normal(tuple(each.lora_B.weight.shape))))
    return model


def inputs(dtype=ampkit.float32):
    return ampkit.tensor(np.random.default_rng(2).standard_normal((3, 2, 4, 4))).to(dtype)


def test_an_adapted_linear_adds_its_product_times_alpha_over_r():
    layer, x = adapted(ampkit.float64)[4], np.random.default_rng(3).standard_normal((7, 24))
    w, bias, a, b = (values(t) for t in (layer.weight, layer.bias, layer.lora_A.weight, layer.lora_B.weight))
    assert a.shape == (2, 24) and b.shape == (5, 2)
    assert np.allclose(values(layer(ampkit.tensor(x))), x @ (w + 3 * b @ a).T + bias, rtol=1e-13, atol=1e-13)


def test_an_adapted_convolution_has_the_product_of_both_kernels():
    layer, x = adapted(ampkit.float64)[0], inputs(ampkit.float64)
    a, b = values(layer.lora_A.weight), values(layer.lora_B.weight)
    whole = values(layer.weight) + 3 * np.einsum("or,rihw->oihw", b[:, :, 0, 0], a)
    wanted = ops.conv2d(x, ampkit.tensor(whole, device=x.device), layer.bias, 2, 1)
    assert np.allclose(values(layer(x)), values(wanted), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_rslora_divides_by_the_root_of_the_rank(use_rslora):
    assert adapted(r=4, lora_alpha=6, use_rslora=use_rslora)[4].scaling == (3.0 if use_rslora else 1.5)


def test_a_new_adapter_changes_nothing_and_only_it_is_trained():
    before, x = network(), inputs()
    config = LoraConfig(r=2, target_modules=["0", "4"], modules_to_save=["5"])
    model = inject_adapter_in_model(config, network())
    assert values(before.eval()(x)).tobytes() == values(model.eval()(x)).tobytes()
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "0.lora_A.weight", "0.lora_B.weight", "4.lora_A.weight", "4.lora_B.weight", "5.weight", "5.bias",
    ]  # fmt: skip
    assert set(before.state_dict()) < set(model.state_dict())
    model.train()
    assert not model[1].training and model[0].lora_dropout.training  # a frozen batch norm keeps its statistics
    ops.sum(model(x)).backward()
    assert model[4].weight.grad is None and model[4].lora_B.weight.grad is not None


def test_the_optimizer_keeps_moments_of_the_adapters_alone():
    model = inject_adapter_in_model(LoraConfig(r=1, target_modules=["4"]), network())
    optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad])
    ops.sum(model(inputs())).backward()
    optimizer.step()
    state = optimizer.state_dict()["state"].values()
    assert sum(entry["exp_avg"].numel() for entry in state) == 24 + 5


@pytest.mark.parametrize("dtype", [ampkit.float64, ampkit.float32, ampkit.float16, ampkit.bfloat16], ids=str)
def test_merging_rounds_the_sum_once_and_gives_the_layers_back(dtype):
    model = adapted(dtype)
    wanted = []
    for layer in (model[0], model[4]):
        w, a, b = (values(t).astype(np.float64) for t in (layer.weight, layer.lora_A.weight, layer.lora_B.weight))
        wanted.append(w + 3 * (b.reshape(len(b), -1) @ a.reshape(len(a), -1)).reshape(w.shape))
    merge_and_unload(model)
    assert [type(layer) for layer in (model[0], model[4])] == [nn.Conv2d, nn.Linear]
    assert set(model.state_dict()) == set(network().state_dict())
    for layer, want in zip((model[0], model[4]), wanted, strict=True):
        assert np.array_equal(values(layer.weight), values(ampkit.tensor(want).to(dtype)))


def test_a_merged_model_computes_what_the_adapted_one_did():
    model, x = adapted(ampkit.float64).eval(), inputs(ampkit.float64)
    before = values(model(x))
    assert np.allclose(values(merge_and_unload(model)(x)), before, rtol=1e-12, atol=1e-12)


def test_the_scale_of_a_merged_weight_by_a_delayed_recipe_is_that_of_its_new_values():
    model = adapted(lora_alpha=60).eval()
    x = ampkit.tensor(np.random.default_rng(3).standard_normal((8, 24)).astype("f"))
    layer, policy = model[4], ampkit.Policy("float8", recipe="delayed")
    for _ in range(2):  # the history has what the layer's own weight was
        with ampkit.autocast(policy=policy):
            layer(x).sum().backward()
    merged = merge_and_unload(model)[4]
    assert np.abs(values(merged.weight)).max() > 4 * 0.21  # 1 / 24 ** 0.5: so it would saturate
    exact = values(merged(x))
    with ampkit.no_grad(), ampkit.autocast(policy=policy):
        found = values(merged(x))
    assert np.linalg.norm(found.astype("f") - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("low", [ampkit.float16, ampkit.bfloat16], ids=str)
def test_adapters_train_under_autocast_beside_16_bit_weights(low):
    model = inject_adapter_in_model(LoraConfig(r=2, target_modules=["4"]), network(low))
    assert model[4].lora_A.weight.dtype == ampkit.float32
    assert model.eval()(inputs(low)).dtype == low
    with ampkit.autocast(dtype=low):
        loss = ops.sum(ops.square(model(inputs(low)).float()))
    loss.backward()
    assert model[4].lora_B.weight.grad.dtype == ampkit.float32


# files


def test_adapters_are_saved_alone_under_pefts_names(tmp_path):
    model = adapted(modules_to_save=["5"])
    save_adapter(model, tmp_path / "new")
    tensors = ampkit.load(tmp_path / "new" / "adapter_model.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "base_model.model.0.lora_A.weight": (2, 2, 3, 3),
        "base_model.model.0.lora_B.weight": (6, 2, 1, 1),
        "base_model.model.4.lora_A.weight": (2, 24),
        "base_model.model.4.lora_B.weight": (5, 2),
        "base_model.model.5.weight": (3, 5),
        "base_model.model.5.bias": (3,),
    }
    config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 2 and config["target_modules"] == ["0", "4"]


def test_a_fresh_model_with_the_loaded_adapters_computes_the_same(tmp_path):
    model, x = adapted(modules_to_save=["5"]).eval(), inputs()
    save_adapter(model, tmp_path)
    other = load_adapter(network(), tmp_path).eval()
    assert values(other(x)).tobytes() == values(model(x)).tobytes()
    assert not any(p.requires_grad for name, p in other.named_parameters() if "lora" not in name and name[0] != "5")


def changed(folder, **keys):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **keys}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"peft_type": "IA3"}, "load_adapter: needs an adapter of peft_type LORA, got 'IA3'"),
        ({"use_dora": True}, "load_adapter: needs use_dora False, got True"),
        ({"r": 3}, r"misshapen: 0.lora_A.weight, 0.lora_B.weight, 4.lora_A.weight, 4.lora_B.weight"),
        ({"target_modules": ["0"]}, "unexpected: 4.lora_A.weight, 4.lora_B.weight"),
        ({"target_modules": ["0", "4", "5"]}, "missing: 5.lora_A.weight, 5.lora_B.weight"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(keys, message, tmp_path):
    save_adapter(adapted(), tmp_path)
    changed(tmp_path, **keys)
    with pytest.raises(ArgumentError, match=message):
        load_adapter(network(), tmp_path)


def test_a_folder_without_adapters_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"adapter_config.json"):
        load_adapter(network(), tmp_path)
    save_adapter(adapted(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("[")
    with pytest.raises(FileError, match="load_adapter: needs a file in JSON"):
        load_adapter(network(), tmp_path)
    shutil.rmtree(tmp_path)


# misuse


@pytest.mark.parametrize(
    ("targets", "kind", "message"),
    [
        (["6"], ConfigError, "LoraConfig: needs target_modules of the model, got '6'"),
        (["1"], ArgumentError, "needs target modules that are Linear, or Conv2d with groups=1, got '1', BatchNorm2d"),
        ([], ArgumentError, "LoraConfig: needs target_modules, or 'all-linear', got none"),
        ([3], ArgumentError, r"LoraConfig: needs target_modules as names of modules, got \[3\]"),
    ],
)
def test_a_target_that_cannot_be_adapted_is_refused_and_nothing_changes(targets, kind, message):
    model = network()
    with pytest.raises(kind, match=message):
        inject_adapter_in_model(LoraConfig(target_modules=targets), model)
    assert all(p.requires_grad for p in model.parameters()) and type(model[4]) is nn.Linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r": 0}, "LoraConfig: needs r as a whole number from 1, got 0"),
        ({"lora_alpha": 0}, "LoraConfig: needs lora_alpha > 0, got 0"),
        ({"lora_dropout": 1.0}, r"LoraConfig: needs lora_dropout in \[0, 1\), got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        LoraConfig(**options)


def test_a_weight_that_two_modules_share_is_refused():
    model = ampkit.models.gpt(vocab_size=11, block_size=6, n_layer=1, n_head=1, n_embd=8)
    with pytest.raises(ArgumentError, match="needs a weight that no other module shares, got that of 'lm_head'"):
        inject_adapter_in_model(LoraConfig(target_modules=["lm_head"]), model)
    found = inject_adapter_in_model(LoraConfig(), model)  # every Linear but the output
    assert not isinstance(found.lm_head, nn.lora.LoraLinear)
    assert isinstance(found.transformer.h[0].attn.c_attn, nn.lora.LoraLinear)


def test_calls_in_the_wrong_order_are_refused(tmp_path):
    with pytest.raises(StateError, match="inject_adapter_in_model: needs a model without adapters, got one that has"):
        inject_adapter_in_model(LoraConfig(target_modules=["4"]), adapted())
    for function in (merge_and_unload, lambda model: save_adapter(model, tmp_path)):
        with pytest.raises(StateError, match="needs a model with adapters, got one without"):
            function(network())
