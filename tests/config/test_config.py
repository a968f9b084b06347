"""Recipes: reading, overrides, mistakes and their cures, writing."""

from __future__ import annotations

import os
import re
from inspect import signature
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError
from traced_memory import memory_below

from ampkit.base import registry
from ampkit.base.errors import ConfigError
from ampkit.config import Recipe, dump, load, sections
from ampkit.core.policy import Cast

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.rglob("*.toml"))
SMALL = '[model]\nname = "mlp"\n[data]\nname = "digits"\n[train]\nsteps = 3\n'


@pytest.fixture
def small(tmp_path):
    return write(tmp_path, SMALL)


def write(folder, text, name="recipe.toml"):
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def mistake(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_shipped_recipe_loads_and_its_dump_loads_back_equal(path, tmp_path):
    recipe = load(path)
    assert load(write(tmp_path, dump(recipe))) == recipe


def test_a_short_recipe_takes_the_defaults(small):
    recipe = load(small)
    assert recipe.optimizer == sections.OPTIMIZERS["adamw"]()
    assert recipe.schedule == sections.SCHEDULES["constant"]()
    assert (recipe.amp.dtype, recipe.amp.init_scale, recipe.amp.growth_interval) == ("float32", 65536.0, 2000)
    assert (recipe.train.steps, recipe.train.epochs, recipe.train.grad_clip) == (3, None, None)


def test_a_recipe_and_its_sections_are_frozen(small):
    recipe = load(small)
    with pytest.raises(ValidationError):
        recipe.amp.dtype = "float16"


def test_a_dump_spells_out_every_default(small):
    text = dump(load(small))
    for name in ("model", "data", "optimizer", "schedule", "amp", "train"):
        assert f"[{name}]" in text
        section = getattr(load(small), name)
        for key, value in section:
            assert (f"\n{key} = " in text) == (value is not None)


def test_awkward_strings_and_keys_survive_a_dump(tmp_path):
    path = 'a "quoted" \\ back\\slash, tab\t, newline\n, DEL\x7f, é and 😀'
    recipe = Recipe(
        model=sections.MODELS["gpt"](),
        data=sections.DATASETS["text"](path=path),
        optimizer=sections.OPTIMIZERS["sgd"](name="sgd", lr=1e-12),
        amp=sections.Amp(
            dtype="float16",
            overrides={"softmax": "low", "odd key": "keep"},
            init_scale=1e22,
            modules={"blocks.*.attn": "float32"},
        ),
        train=sections.Train(steps=1),
    )
    assert load(write(tmp_path, dump(recipe))) == recipe


@pytest.mark.parametrize("entry", registry.SCHEDULES.values(), ids=lambda entry: entry.name)
def test_the_keys_of_a_schedule_are_the_parameters_of_its_function(entry):
    keys = [name for name in sections.SCHEDULES[entry.name].model_fields if name not in ("name", "warmup")]
    assert ["optimizer", "steps", *keys] == [*signature(entry.build).parameters]
    assert ("warmup" in sections.SCHEDULES[entry.name].model_fields) == entry.warms_up


def test_what_a_data_set_is_loaded_with_are_keys_of_its_section_or_of_the_model():
    for name, entry in registry.DATASETS.items():
        parameters = {*signature(entry.load).parameters}
        assert entry.keys <= {*sections.DATASETS[name].model_fields}
        assert parameters == entry.keys | {*entry.from_model}


def test_every_key_that_may_be_none_is_none_by_default():
    kinds = [kind for kinds in sections.SECTIONS.values() for kind in kinds.values()]
    fields = [field for kind in kinds for field in kind.model_fields.values()]
    may_be_none = [field for field in fields if type(None) in get_args(field.annotation)]
    assert len(may_be_none) >= 5
    assert all(field.default is None for field in may_be_none)


def test_a_vgg_has_a_width_for_each_stage(small):
    text = mistake(small, "model={name='vgg16', widths=[4, 4, 8, 8]}", "data={name='synthetic_images'}")
    assert "model.widths: needs 5 numbers, one for each stage, got 4" in text


def test_the_words_for_overrides_are_those_of_the_policy():
    words = get_args(get_args(sections.Amp.model_fields["overrides"].annotation)[1])
    assert set(words) == {category.value for category in Cast}


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("amp.dtype=float16", lambda r: r.amp.dtype, "float16"),
        (' amp.dtype = "float16" ', lambda r: r.amp.dtype, "float16"),
        ("model.hidden=[8, 4]", lambda r: r.model.hidden, (8, 4)),
        ("optimizer={name='sgd', lr=1, nesterov=true, momentum=0.9}", lambda r: r.optimizer.lr, 1.0),
        ("train.device=cuda:1", lambda r: r.train.device, "cuda:1"),
        ("amp.overrides.softmax=low", lambda r: r.amp.overrides, {"softmax": "low"}),
        ("amp.modules.head=float32", lambda r: r.amp.modules, {"head": "float32"}),
        ('amp.modules={"blocks.*" = "float32"}', lambda r: r.amp.modules, {"blocks.*": "float32"}),
        ("train.compile=true", lambda r: r.train.compile, True),
        ("train.grad_clip=1", lambda r: r.train.grad_clip, 1.0),
    ],
)
def test_an_override_is_toml_or_else_text(small, override, read, value):
    assert read(load(small, [override])) == value


def test_a_later_override_wins(small):
    assert load(small, ["train.seed=1", "train.seed=2"]).train.seed == 2


def test_an_override_without_a_value_unsets_its_key(small):
    assert load(small, ["train.steps=", "train.epochs=2"]).train.epochs == 2


def test_text_with_an_equals_sign_is_kept_whole(tmp_path):
    path = write(tmp_path, SMALL.replace("mlp", "gpt").replace("digits", "text"))
    assert load(path, ["data.path=a=b"]).data.path == "a=b"


def test_an_override_cannot_smuggle_in_a_second_line(small):
    assert "amp.dtype: needs one of" in mistake(small, 'amp.dtype="float16"\nother = 1')


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("amp.dtyp=float16", "amp.dtyp: needs a known key, got 'dtyp'\nhelp: did you mean 'dtype'?"),
        ("optimzer.lr=1", "optimzer: needs a known section, got 'optimzer'\nhelp: did you mean 'optimizer'?"),
        ("model.lr=1", "model.lr: needs a known key, got 'lr'\nhelp: did you mean optimizer.lr?"),
        ("lr=1", "lr: needs a known section, got 'lr'\nhelp: did you mean optimizer.lr?"),
        ("amp.dtype=fp16", "float16, float8, float4, int8, got 'fp16'\nhelp: did you mean 'float16'?"),
        ("model.name=mpl", "model.name: needs one of alexnet, bert, cnn"),
        ("model.name=", "wav2letter, got nothing"),
        ("model=3", "model: needs a table, got 3"),
        ("amp=float16", "amp: needs a table, got 'float16'"),
        ("train.seed=1.5", "train.seed: needs an integer, got 1.5"),
        ("train.seed=true", "train.seed: needs an integer, got True"),
        ("train.seed=-1", "train.seed: needs at least 0, got -1"),
        ("optimizer={name='adamw',lr='.5'}", "got '.5'\nhelp: numbers are written as 0.5 or 1e-3"),
        ("optimizer={name='adamw',lr=0}", "optimizer.lr: needs a number above 0, got 0"),
        ("optimizer={name='adamw',betas=[0.9, 1]}", "optimizer.betas[1]: needs a number below 1, got 1"),
        ("optimizer={name='adamw',betas=[0.9]}", "optimizer.betas[1]: needs a value, got nothing"),
        ("optimizer={name='rmsprop',alpha=1.0}", "optimizer.alpha: needs a number below 1, got 1.0"),
        ("optimizer={name='adafactor',beta2_decay=0.8}", "optimizer.beta2_decay: needs at most 0, got 0.8"),
        ("optimizer={name='sgd',nesterov=true}", "optimizer.momentum: needs a momentum above 0"),
        ("schedule={name='step'}", "schedule.step_size: needs a value, got nothing"),
        ("schedule={name='cosine',warmup=3}", "schedule.warmup: needs less than train.steps, 3, got 3"),
        ("train.grad_clip=nan", "train.grad_clip: needs a finite number, got nan"),
        ("train.compile=True", "train.compile: needs true or false, got 'True'"),
        ("train.device=gpu", "train.device: needs cpu, cuda or cuda:<index>, got 'gpu'"),
        ("train.epochs=1", "train: needs either steps or epochs, got both"),
        ("train.steps=", "train: needs either steps or epochs, got neither"),
        ("model.hidden=[]", "model.hidden: needs at least 1 items"),
        ("model.hidden=[0]", "model.hidden[0]: needs at least 1, got 0"),
        ("model={name='cnn', stages=5}", "model.stages: needs at most 4: each halves an image of 8 pixels, got 5"),
        ("model={name='vit', patch_size=3}", "model.patch_size: needs a divisor of the image's 8 pixels, got 3"),
        ("model={name='convmixer', patch_size=9}", "model.patch_size: needs at most the image's 8 pixels, got 9"),
        ("model={name='convmixer', kernel_size=4}", "model.kernel_size: needs an odd number, got 4"),
        ("model={name='lenet5'}", "data.shape: needs images of at least 12 pixels for lenet5, got 8"),
        ("model={name='alexnet'}", "data.shape: needs images of at least 63 pixels for alexnet, got 8"),
        ("model={name='vgg11'}", "data.shape: needs images of at least 32 pixels for vgg11, got 8"),
        ("model={name='efficientnet_b0', width=0}", "model.width: needs a number above 0, got 0"),
        ("model={name='fcn_resnet50'}", "data.name: needs 'synthetic_maps' for fcn_resnet50, got 'digits'"),
        ("model={name='wav2letter'}", "data.name: needs 'synthetic_speech' for wav2letter, got 'digits'"),
        ("model={name='bert'}", "data.name: needs 'synthetic_masked' for bert, got 'digits'"),
        ("model={name='vit', num_heads=3}", "model.num_heads: needs a divisor of hidden_dim, 128, got 3"),
        (
            "optimizer={name='adamw',momentum=0.9}",
            "needs a known key, got 'momentum'\nhelp: known: name, lr",
        ),
        ("train.monitor=rmse", "train.monitor: needs 'val_loss' or 'accuracy', got 'rmse'"),
        ("train.monitor=f1", "train.monitor: needs one of val_loss, accuracy"),
        ("model.batch_size=3", "model.batch_size: needs a known key, got 'batch_size'\nhelp: did you mean data.batch"),
        ("model.hidden=[4, 0]", "model.hidden[1]: needs at least 1, got 0"),
        ("amp.recipe=mxfp8", "amp.dtype: needs float8, or 16 bits, for the recipe mxfp8, got float32"),
        ("amp={dtype='float4', recipe='mxfp8'}", "amp.dtype: needs float8, or 16 bits, for the recipe mxfp8, got"),
        ("amp={dtype='float8', recipe='mxpf8'}", "got 'mxpf8'\nhelp: did you mean 'mxfp8'?"),
        ("amp.modules.layers=mxpf8", "got 'mxpf8'\nhelp: did you mean 'mxfp8'?"),
        ("amp.overrides.softmax=lo", "amp.overrides.softmax: needs one of low, float32"),
        ("amp.min_scale=1e6", "amp.min_scale: needs at most init_scale, 65536.0, got 1000000.0"),
        ("amp.max_scale=2", "amp.max_scale: needs at least init_scale, 65536.0, got 2.0"),
        (
            "data.name=text",
            "'images', 'mnist', 'parquet', 'synthetic_images', 'table' or 'webdataset' for mlp, got",
        ),
        ("data={name='mnist'}", "data.folder: needs a value, got nothing"),
        ("data={name='cifar10', folder='.', crop=-1}", "data.crop: needs at least 0, got -1"),
        (
            "data={name='images', folder='.', held_out='.', shape=[3, 8, 8], classes=2, std=[1.0, 2.0]}",
            "data.std: needs 1 number, or one for each of 3 channels, got 2",
        ),
        ("data={name='images', folder='.', held_out='.', shape=[8, 8], classes=2}", "data.shape[2]: needs a value"),
        ("model={name='gpt'}", "data.name: needs 'synthetic_tokens' or 'text' for gpt, got 'digits'"),
        ("float16", "override: needs key=value, as in amp.dtype=float16, got 'float16'"),
        ("amp..dtype=float16", "override: needs key=value"),
        ("model.name.first=1", "model.name.first: needs a table at model.name, got 'mlp'"),
    ],
)
def test_a_mistake_is_named_with_what_was_needed_and_what_came(small, override, expected):
    text = mistake(small, override)
    assert expected in text
    assert text.startswith(f"{small}: ")
    assert text.count("\n") <= 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.n_head=3", "model.n_head: needs a divisor of n_embd, 128, got 3"),
        ("model.vocab_size=100", "model.vocab_size: needs at least 256 for text, got 100"),
        ("train={epochs=1}", "train.epochs: needs steps instead"),
    ],
)
def test_a_gpt_that_does_not_fit_its_text_is_refused(tmp_path, override, expected):
    path = write(tmp_path, SMALL.replace("mlp", "gpt").replace("digits", "text"))
    assert expected in mistake(path, override)


@pytest.mark.parametrize("name", ["vit", "lenet5"])
def test_some_models_need_square_images(small, name):
    images = "data={name='synthetic_images', shape=[1, 16, 32]}"
    wrong = mistake(small, f"model={{name={name!r}}}", images)
    assert f"data.shape: needs square images for {name}, got 16 x 32" in wrong


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.num_attention_heads=3", "model.num_attention_heads: needs a divisor of hidden_size, 128, got 3"),
        ("model.vocab_size=5", "model.vocab_size: needs at least 6 for synthetic_masked, got 5"),
        ("data.length=600", "data.length: needs at most max_position_embeddings, 512, got 600"),
    ],
)
def test_a_bert_that_does_not_fit_its_tokens_is_refused(tmp_path, override, expected):
    path = write(tmp_path, SMALL.replace("mlp", "bert").replace("digits", "synthetic_masked"))
    assert expected in mistake(path, override)


def test_a_waveform_has_one_feature(tmp_path):
    path = write(tmp_path, SMALL.replace("mlp", "wav2letter").replace("digits", "synthetic_speech"))
    assert "model.num_features: needs 1 for a waveform, got 2" in mistake(path, "model.num_features=2")


def test_columns_of_numbers_are_a_row_unless_a_shape_is_said(tmp_path):
    text = SMALL.replace('"digits"', '"parquet"\nfiles = "a"\ninputs = ["x", "y"]\ntarget = "z"\nclasses = 2')
    path = write(tmp_path, text)
    assert load(path).data.shape == (1, 1, 2)
    assert load(path, ["data.shape=[3, 4, 4]"]).data.shape == (3, 4, 4)
    assert "data.inputs: needs at least 1 items" in mistake(path, "data.inputs=[]")


def test_all_mistakes_come_at_once_each_on_its_line(small):
    wrong = [
        "optimizer.name=adam",
        "optimizer.lr=-1",
        "train.sed=1",
        "model.hiden=[1]",
        "lr=1",
        "nothing",
        "amp.dtype=fp16",
    ]
    first, *rest = mistake(small, *wrong).split("\n")
    assert first == f"{small}: 6 mistakes"
    keys = {line.strip().split(":")[0] for line in rest}
    assert keys == {"override", "lr", "model.hiden", "optimizer.lr", "amp.dtype", "train.sed"}


def test_sections_that_are_right_are_compared_while_others_are_wrong(small):
    text = mistake(small, "amp.dtype=fp16", "data.name=text")
    assert "amp.dtype" in text
    assert "data.name" in text


def test_missing_sections_are_all_named(tmp_path):
    text = mistake(write(tmp_path, ""))
    for name in ("model", "data", "train"):
        assert f"{name}: needs a section [{name}], got none" in text


def test_a_missing_recipe_is_one_line_with_the_nearest_name(tmp_path):
    write(tmp_path, SMALL, "digits_cnn.toml")
    text = mistake(tmp_path / "digit_cnn.toml")
    assert "No such file" in text
    assert text.endswith("help: did you mean 'digits_cnn.toml'?")


def test_a_folder_and_a_fifo_are_no_recipes(tmp_path):
    assert "recipe: needs a regular file, got '" in mistake(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert mistake(tmp_path / "fifo").partition("\n")[0].endswith("fifo', which is a FIFO")


def test_a_recipe_of_megabytes_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(2**32)
    with memory_below(8 * 2**20):
        assert "recipe: needs at most 1048576 bytes" in mistake(tmp_path / "large.toml")


@pytest.mark.parametrize(
    "content",
    [
        b"model = ",
        b"\xff\xfe\x00",
        b"a = " + b"[" * 100_000,
        b"a = " + b"9" * 5000,
        b"a." * 100_000 + b"a = 1",
        b"[" + b"'a' . " * 100_000 + b"a]",
    ],
    ids=["cut", "no text", "nested", "digits", "parts", "table"],
)
def test_what_is_not_toml_is_one_line(tmp_path, content):
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    text = mistake(path)
    assert text.startswith(f"{path}: needs TOML, got text that is none")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("x=" + "[" * 100_000, "x: needs a value that TOML can hold, got one that it cannot: it is nested too deeply"),
        ("x=" + "{a=" * 100_000, "x: needs a value that TOML can hold"),
        ("x={" + "a." * 100_000 + "a=1}", "a key of more than 100 parts"),
        ("a." * 100_000 + "a=1", "override: needs key=value"),
        ("a" * 100_000 + "=1", "override: needs key=value"),
        ("train.steps=" + "9" * 5000, "train.steps: needs a value that TOML can hold, got one that it cannot: Exceeds"),
        ("train.steps=0x" + "f" * 5000, "train.steps: needs at most 2147483647, got one that is too long to be shown"),
        ("train.grad_clip=1" + "0" * 400, "train.grad_clip: needs a number, got 1000"),
        ("model.hidden=[9223372036854775808]", "model.hidden[0]: needs at most 1048576, got 9223372036854775808"),
        ("data={name='images', folder=\"a\\u0000\", held_out='', shape=[1, 8, 8], classes=2}", "without a zero byte"),
    ],
    ids=lambda value: value[:20],
)
def test_an_override_that_no_recipe_can_hold_is_one_clear_line(small, override, says):
    text = mistake(small, override)
    assert says in text
    assert len(text) < 500


def test_every_number_of_a_recipe_has_a_largest_one(small):
    for section, kinds in sections.SECTIONS.items():
        for name, kind in kinds.items():
            for key, field in kind.model_fields.items():
                if not re.search(r"\b(int|float)\b", str(field.annotation)):
                    continue
                large = f"[{'1' + '0' * 39}]" if "tuple" in str(field.annotation) else "1" + "0" * 39
                for value in (large, large.replace("0]", "0.0]") if "[" in large else large + ".0"):
                    table = f"name = '{name}', " if name else ""
                    text = mistake(small, f"{section}={{{table}{key} = {value}}}")
                    assert f"{section}.{key}" in text, (name, key, value)


def test_an_image_of_more_values_than_any_is_refused(small):
    text = mistake(small, "data={name='synthetic_images', shape=[3, 100000, 100000]}")
    assert "data.shape: needs at most 268435456 values in an image, got 30000000000" in text


def test_a_recipe_made_by_hand_is_checked_too():
    with pytest.raises(ValidationError, match="either steps or epochs"):
        Recipe(model=sections.MODELS["mlp"](), data=sections.DATASETS["digits"](), train=sections.Train())


def test_a_recipe_that_comes_with_ampkit_is_known_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("digits_mlp") == load(FOLDER / "digits_mlp.toml")
    assert load("synthetic/gpt") == load(FOLDER / "synthetic/gpt.toml")
    with pytest.raises(ConfigError, match="did you mean 'digits_cnn'"):
        load("digits_cn")
    with pytest.raises(ConfigError, match="did you mean 'synthetic/gpt'"):
        load("synthetic/gp")
    Path("digits_mlp").write_text("none of its sections")  # a file of this name comes first
    with pytest.raises(ConfigError, match="digits_mlp: needs TOML"):
        load("digits_mlp")


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("seed=1", "did you mean data.seed or train.seed?"),
        ("learning_rate=0.1", "did you mean optimizer.lr?"),
        ("optimizer.learning_rate=0.1", "did you mean optimizer.lr?"),
        ("train.max_grad_norm=1", "did you mean train.grad_clip?"),
        ("train.lr=1", "did you mean optimizer.lr?"),
        ("optimizer.name=adamW", "did you mean 'adamw'?"),
        ("data.name=csv", "did you mean 'table'?"),
        ("optimizer.beta=1", "did you mean 'betas'?"),
    ],
)
def test_a_suggestion_is_near_in_meaning_before_it_is_near_in_letters(override, cure):
    with pytest.raises(ConfigError) as caught:
        load("digits_cnn", [override])
    assert str(caught.value).endswith(f"help: {cure}")


def test_another_kind_of_a_section_keeps_what_both_kinds_know():
    made = load("digits_cnn", ["optimizer.name=sgd", "model.name=mlp", "optimizer.momentum=0.5"])
    assert (made.optimizer.name, made.optimizer.momentum, made.model.name) == ("sgd", 0.5, "mlp")
    assert made.optimizer.lr == load("digits_cnn").optimizer.lr
    with pytest.raises(ConfigError, match="optimizer.betas: needs a known key"):  # what is asked for is not dropped
        load("digits_cnn", ["optimizer.betas=[0.9, 0.9]", "optimizer.name=sgd"])
