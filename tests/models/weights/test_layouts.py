"""Weights of other libraries' layouts: the same logits as there, whatever file or folder they lie in."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pretrained_cases import golden, inputs, values

import ampkit
from ampkit import models, nn, tensor
from ampkit.base.errors import ArgumentError, DTypeError, FileError, StateError
from ampkit.models.weights import tables
from ampkit.models.weights.layout import Layout, Part, fits

CASES = golden()
VIT = {"image_size": 4, "patch_size": 2, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
GPT2 = CASES["Hugging Face's gpt2"]


def state(case):
    return {name: values(name, shape) for name, shape in case["tensors"].items()}


def write(folder, case, **config):
    """The folder as Hugging Face's libraries write it."""
    ampkit.save({name: tensor(value) for name, value in state(case).items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(case["config"] | config))
    return folder


def answer(model, case):
    found = model.eval()(tensor(inputs(case["given"])))
    return (found[0] if isinstance(found, tuple) else found).detach().numpy()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["config"]])
def test_a_model_of_hugging_face_gives_its_logits(name, tmp_path):
    model = models.from_pretrained(write(tmp_path, CASES[name]))
    np.testing.assert_allclose(answer(model, CASES[name]), CASES[name]["logits"], rtol=1e-5, atol=1e-5)
    assert not model.training
    assert model.pretrained.new == ()
    assert model.pretrained.layout.startswith("Hugging Face's")


@pytest.mark.parametrize("name", ["torchvision's vit", "timm's vit"])
def test_a_vit_of_torchvision_or_timm_gives_its_logits(name):
    model = models.vit(**VIT, num_classes=3, weights=state(CASES[name]))
    np.testing.assert_allclose(answer(model, CASES[name]), CASES[name]["logits"], rtol=1e-5, atol=1e-5)
    assert model.pretrained.layout == f"{name.split()[0]} VisionTransformer"


def test_torchvisions_published_vits_have_an_older_name_of_the_mlp():
    case = CASES["torchvision's vit"]
    older = {
        n.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v for n, v in state(case).items()
    }
    assert len(older.keys() - case["tensors"].keys()) == 8
    model = models.vit(**VIT, num_classes=3, weights=older)
    np.testing.assert_allclose(answer(model, case), case["logits"], rtol=1e-5, atol=1e-5)


def test_the_square_weights_of_conv1d_are_transposed_too():
    model = models.GPT(13, 6, 2, 2, 8)
    models.load_weights(model, state(GPT2))
    name = "transformer.h.1.attn.c_proj.weight"
    np.testing.assert_array_equal(model.state_dict()[name].numpy(), state(GPT2)[name].T)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_prefixes_of_wrappers_are_taken_off(wrapper):
    model = models.GPT(13, 6, 2, 2, 8)
    models.load_weights(model, {wrapper + name: value for name, value in state(GPT2).items()})
    np.testing.assert_allclose(answer(model, GPT2), GPT2["logits"], rtol=1e-5, atol=1e-5)


def test_a_gpt_with_linear_in_place_of_conv1d_is_not_transposed():
    source, target = models.GPT(13, 6, 2, 2, 8), models.GPT(13, 6, 2, 2, 8)
    found = models.load_weights(target, source.state_dict())
    assert found.layout == "GPT-2 with Linear"
    assert answer(target, GPT2).tolist() == answer(source, GPT2).tolist()


def test_berts_of_tensorflows_origin_call_the_weight_of_a_norm_gamma():
    case = CASES["Hugging Face's bert for masked lm"]
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    older = {}
    for name, value in state(case).items():
        end = next((end for end in names if name.endswith(end)), None)
        older[name if end is None else name.removesuffix(end) + names[end]] = value
    older |= {"cls.seq_relationship.weight": values("x", (2, 8)), "bert.pooler.dense.bias": values("x", (8,))}
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    model = models.bert(vocab_size=13, max_position_embeddings=6, **sizes, weights=older)
    np.testing.assert_allclose(answer(model, case), case["logits"], rtol=1e-5, atol=1e-5)
    assert set(model.pretrained.left_out) == {"cls.seq_relationship.weight", "bert.pooler.dense.bias"}


def test_a_bert_without_pooler_leaves_a_new_one_which_is_said(tmp_path):
    case = CASES["Hugging Face's bert for masked lm"]
    model = models.from_pretrained(write(tmp_path, case, architectures=["BertModel"]))
    assert model.pretrained.new == ("pooler.dense.weight", "pooler.dense.bias")
    assert "newly initialized: pooler.dense.weight, pooler.dense.bias" in str(model.pretrained)


def test_a_bert_of_another_task_is_built_without_its_head(tmp_path):
    case = CASES["Hugging Face's bert"]
    folder = write(tmp_path, case, architectures=["BertForSequenceClassification"])
    whole = ampkit.load(folder / "model.safetensors") | {"classifier.weight": ampkit.ones(2, 8)}
    ampkit.save(whole, folder / "model.safetensors")
    model = models.from_pretrained(folder)
    assert isinstance(model, models.BertModel)
    assert model.pretrained.left_out == ("classifier.weight",)


def test_the_weights_of_a_classifier_start_the_backbone_of_a_segmentation_model():
    classifier = models.resnet50(7, width=2)
    model = models.fcn_resnet50(3, width=2, weights=classifier.state_dict())
    found = model.pretrained
    assert model.backbone.conv1.weight.tolist() == classifier.conv1.weight.tolist()
    assert {name.split(".")[0] for name in found.new} == {"classifier"}
    assert found.left_out == ("fc.weight", "fc.bias")


def test_a_head_of_another_size_stays_new_as_a_whole():
    source = models.resnet18(7, width=2)
    model = models.resnet18(3, width=2)
    before = model.fc.weight.tolist()
    found = models.load_weights(model, source.state_dict())
    assert found.new == ("fc.weight", "fc.bias")
    assert model.fc.weight.tolist() == before
    assert model.layer4[1].conv2.weight.tolist() == source.layer4[1].conv2.weight.tolist()


def test_an_auxiliary_head_that_the_model_has_not_is_left_out():
    source = models.fcn_resnet50(3, aux_loss=True, width=2)
    model = models.fcn_resnet50(3, width=2, weights=source.state_dict())
    assert {name.split(".")[0] for name in model.pretrained.left_out} == {"aux_classifier"}
    assert model.pretrained.new == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: models.vgg11(hidden=4, widths=(2, 2, 2, 2, 2), num_classes=3, **more),
        lambda **more: models.vgg16_bn(hidden=4, widths=(2, 2, 2, 2, 2), num_classes=3, **more),
        lambda **more: models.alexnet(3, hidden=1, **more),
        lambda **more: models.efficientnet_b0(3, width=0.1, **more),
        lambda **more: models.deeplabv3_resnet50(3, width=2, **more),
        lambda **more: models.resnet34(3, width=2, **more),
        lambda **more: models.convmixer(8, 1, num_classes=3, **more),
        lambda **more: models.gpt("nano", n_layer=1, n_embd=8, **more),
    ],
)
def test_every_builder_takes_the_weights_that_its_own_model_has_saved(make, tmp_path):
    source = make()
    ampkit.save(source.state_dict(), tmp_path / "model.pt")
    model = make(weights=tmp_path / "model.pt")
    assert model.pretrained.new == model.pretrained.left_out == ()
    theirs = source.state_dict()
    assert all(np.array_equal(value.numpy(), theirs[name].numpy()) for name, value in model.state_dict().items())


def test_a_model_with_pretrained_weights_is_saved_as_a_whole_like_any_other(tmp_path):
    model = small_resnet(weights=small_resnet().state_dict())
    ampkit.save(model, tmp_path / "model.pt")
    again = ampkit.load(tmp_path / "model.pt", weights_only=False)
    assert again.pretrained == tuple(model.pretrained)
    assert again.conv1.weight.tolist() == model.conv1.weight.tolist()


def test_any_module_takes_its_own_names():
    source, target = nn.Linear(2, 3), nn.Linear(2, 3)
    assert models.load_weights(target, source.state_dict()).layout == "the model itself"
    assert target.weight.tolist() == source.weight.tolist()


# What does not fit.


def small_resnet(**changes):
    return models.resnet18(**{"num_classes": 3, "width": 2, **changes})


def small_vit(**changes):
    return models.vit(**VIT | {"num_classes": 3, **changes})


def small_bert(**changes):
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    return models.bert(**{"vocab_size": 13, "max_position_embeddings": 6, **sizes, **changes})


def test_what_does_not_fit_is_one_table_of_ten_rows_of_a_kind():
    model = small_resnet()
    before = model.conv1.weight.tolist()
    with pytest.raises(StateError) as caught:
        models.load_weights(model, models.resnet50(3, width=2).state_dict())
    first, *rows, cure = str(caught.value).splitlines()
    assert first.startswith("load_weights of ResNet: weights of torchvision's ResNet: needs the names and shapes")
    assert "unexpected" in first and "misshapen" in first
    kinds = [row.split(":")[0].strip() for row in rows]
    assert kinds.count("unexpected") == 11
    assert rows[10].startswith("  unexpected: and ")
    assert cure == "help: the weights are of 16 bottlenecks (resnet50), the model has 8 basic blocks (resnet18)"
    assert model.conv1.weight.tolist() == before


@pytest.mark.parametrize(
    ("make", "weights", "expected"),
    [
        (small_resnet, lambda: state(GPT2), "weights of a ResNet, got those of Hugging Face's GPT-2, in a dict\n"
                                            "help: ampkit.models has GPT for them"),
        (small_resnet, lambda: {"roberta.embeddings.word_embeddings.weight": values("x", (2, 2))}, "those of RoBERTa"),
        (small_resnet, lambda: {"a.weight": values("x", (2,))}, "those of another: a.weight, in a dict"),
        (lambda: small_resnet(stem="cifar"), lambda: small_resnet().state_dict(),
         "misshapen: conv1.weight needs [2, 3, 3, 3], got [2, 3, 7, 7]\n"
         "help: the weights have stem='imagenet', the model stem='cifar'; in a recipe model.stem=imagenet"),
        (lambda: models.GPT(13, 5, 2, 2, 8), lambda: state(GPT2),
         "help: the weights have block_size=6, the model block_size=5; in a recipe model.block_size=6"),
        (lambda: models.GPT(13, 6, 2, 2, 8, tie_weights=False), lambda: state(GPT2), "missing: lm_head.weight"),
        (lambda: models.GPT(13, 6, 2, 2, 8), lambda: state(GPT2) | {"lm_head.weight": values("x", (13, 8))},
         "needs one tensor as 'transformer.wte.weight' and 'lm_head.weight', which the model ties, got two"),
        (lambda: models.GPT(13, 6, 1, 2, 8), lambda: state(GPT2),
         "help: the weights have n_layer=2, the model n_layer=1; in a recipe model.n_layer=2"),
        (lambda: models.GPT(13, 6, 2, 2, 16), lambda: state(GPT2),
         "help: the weights have n_embd=8, the model n_embd=16, so all 28 tensors differ by the width; in a recipe "
         "model.n_embd=8; n_head, which no shape shows, must be theirs too"),
        (lambda: small_vit(hidden_dim=16, mlp_dim=32), lambda: small_vit().state_dict(),
         "help: the weights have hidden_dim=8 mlp_dim=16, the model hidden_dim=16 mlp_dim=32, so all 30 tensors differ "
         "by the width; in a recipe model.hidden_dim=8 model.mlp_dim=16; num_heads, which no shape shows, must be "
         "theirs too"),
        (lambda: small_vit(image_size=8, in_channels=1), lambda: small_vit().state_dict(),
         "; in a recipe data.shape for image_size=4, data.shape for in_channels=3"),
        (lambda: small_resnet(width=4), lambda: small_resnet().state_dict(),
         "help: the weights have width=2, the model width=4, so all 100 tensors differ by the width; "
         "in a recipe model.width=2"),
        (lambda: small_bert(hidden_size=16), lambda: small_bert().state_dict(),
         "differ by the width; in a recipe model.hidden_size=8; num_attention_heads"),
        (lambda: models.vgg11(num_classes=3, widths=(4, 4, 4, 4, 4), hidden=8),
         lambda: models.vgg11(num_classes=3, widths=(2, 2, 2, 2, 2), hidden=8).state_dict(),
         "tensors differ by the width: build the model with that of the weights"),
        (lambda: models.vit(**VIT, num_classes=3),
         lambda: {n: v for n, v in state(CASES["Hugging Face's vit"]).items() if "1.attention.attention.key" not in n},
         "unexpected: vit.encoder.layer.1.attention.attention.query.weight"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_with_what_to_do(make, weights, expected):
    with pytest.raises(StateError) as caught:
        models.load_weights(make(), weights())
    assert expected in str(caught.value)


def test_whole_numbers_of_a_quantized_model_are_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(DTypeError, match="floating-point values as 'weight', got int8"):
        models.load_weights(model, {"weight": np.ones((2, 2), np.int8), "bias": np.ones(2, np.float32)})


@pytest.mark.parametrize(
    ("change", "model", "expected"),
    [
        ({}, lambda: models.GPT(13, 6, 2, 4, 8), "n_head 4 in config.json, as the model has it, got 2"),
        ({"activation_function": "relu"}, lambda: models.GPT(13, 6, 2, 2, 8), "got 'relu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, lambda: models.GPT(13, 6, 2, 2, 8), "got True"),
        ({"model_type": "imagegpt"}, lambda: models.GPT(13, 6, 2, 2, 8), "model_type 'gpt2'"),
    ],
)
def test_config_json_is_checked_for_what_no_shape_shows(change, model, expected, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        models.load_weights(model(), write(tmp_path, GPT2, **change))
    assert expected in str(caught.value)


def test_a_vit_of_hugging_face_needs_its_own_epsilon_which_the_builders_take_from_config_json(tmp_path):
    case = CASES["Hugging Face's vit"]
    folder = write(tmp_path, case)
    with pytest.raises(ArgumentError, match="layer_norm_eps 1e-06 in config.json, as the model has it, got 1e-12"):
        models.vit(**VIT, num_classes=3, weights=folder)
    model = models.vit_b_16(**VIT, num_classes=3, weights=folder)
    np.testing.assert_allclose(answer(model, case), case["logits"], rtol=1e-5, atol=1e-5)


def test_from_pretrained_takes_other_arguments_and_says_what_it_cannot_build(tmp_path):
    folder = write(tmp_path, CASES["Hugging Face's vit"])
    model = models.from_pretrained(folder, num_classes=5)
    assert model.pretrained.new == ("heads.head.weight", "heads.head.bias")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(
        ArgumentError, match="a model_type 'gpt2', 'bert', 'vit' or 'resnet' in config.json, got 'mamba'"
    ):
        models.from_pretrained(folder)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileError, match="needs config.json beside the weights, got none in"):
        models.from_pretrained(folder)


def test_normalization_comes_from_preprocessor_config_json(tmp_path):
    folder = write(tmp_path, CASES["Hugging Face's vit"])
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.4, 0.3], "image_std": [1, 2, 3]}')
    found = models.from_pretrained(folder).pretrained
    assert (found.mean, found.std) == ((0.5, 0.4, 0.3), (1.0, 2.0, 3.0))
    (folder / "preprocessor_config.json").write_text('{"image_mean": ["a"], "image_std": [1, 2, 3]}')
    with pytest.raises(FileError, match="needs lists of numbers as image_mean and image_std"):
        models.from_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(FileError, match=r"config.json: needs JSON, got one that breaks"):
        models.from_pretrained(folder)


# Tables.


def test_a_layout_is_a_table_of_names():
    rules = (
        ("b.#.q", "blocks.#.qk", Part(0, 2)),
        ("b.#.k", "blocks.#.qk", Part(1, 2)),
        ("mask", None),
        ("n.*", "norm.*"),
    )
    layout = Layout("one", "Model", ("b.#.q",), rules, prefix="net.")
    state = {
        "net.b.7.k": tensor([[3.0]]),
        "net.b.7.q": tensor([[1.0]]),
        "mask": tensor(0),
        "n.a.b": tensor(2),
        "other": 1,
    }
    assert layout.describes(state)
    found = layout.convert(state)
    assert found.state["blocks.7.qk"].tolist() == [[1.0], [3.0]]
    assert found.state["norm.a.b"].item() == 2
    assert (found.left_out, found.unexpected) == (["mask"], ["other"])


def test_every_layout_is_for_a_model_that_there_is_and_its_patterns_compile():
    for layout in tables.LAYOUTS:
        assert isinstance(getattr(models, layout.model), type)
        assert all(rule[1] is None or rule[1].count("#") <= rule[0].count("#") for rule in layout.rules), layout.name
        assert all(rule[1] is None or rule[1].count("*") <= rule[0].count("*") for rule in layout.rules), layout.name
    assert fits("a.#.*", "a.12.b.c") and not fits("a.#.*", "a.x.b")
