"""Tokenizers of text: their files, their parts, and runs whose tokens they make."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import ampkit
from ampkit import config, models
from ampkit.base.errors import ConfigError, FileError
from ampkit.cli import main
from ampkit.data import text
from ampkit.run.export import export
from ampkit.run.loop import fit
from ampkit.run.trained import load_run

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra text")
pytestmark = pytest.mark.cpu
WORDS = "the quick brown fox jumps over the lazy dog, and zürich is no fox.\nA line\n\n  an indented one done\n"
SMALL = ["model={name='gpt', n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=400}", "amp.dtype=float32"]
SMALL += ["train={steps=4, eval_every=2, log_every=1, eval_batches=2, threads=1}", "optimizer={name='adamw', lr=0.01}"]
SMALL += ["schedule={name='constant'}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level BPE as GPT-2's, as tokenizer.json and, in `pair`, as vocab.json and merges.txt; and a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=sorted(alphabet), special_tokens=["<|endoftext|>"], show_progress=False
    )
    made.train_from_iterator([WORDS] * 4, trainer)
    found = tmp_path_factory.mktemp("tokenizer")
    made.save(str(found / "tokenizer.json"))
    (found / "pair").mkdir()
    made.model.save(str(found / "pair"))
    (found / "words.txt").write_text(WORDS * 40, encoding="utf-8")
    return found


def recipe(folder, *overrides):
    data = f"data={{name='text', path='{folder}/words.txt', tokenizer='{folder}', batch_size=2}}"
    return config.load("text_gpt", [data, *SMALL, *overrides])


@pytest.mark.parametrize("name", ["tokenizer.json", "", "pair", "pair/vocab.json", "pair/merges.txt"])
def test_every_form_of_its_files_gives_the_same_tokens(folder, name):
    found = text.load_tokenizer(folder / name)
    wanted = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(WORDS).ids
    assert found.encode(WORDS).tolist() == wanted
    assert found.decode(wanted) == WORDS
    assert (found.size, found.end) == (300, 0)
    assert text.Tokenizer.from_state(found.state).encode(WORDS).tolist() == wanted


def test_parts_have_the_tokens_of_the_whole(folder, monkeypatch):
    found = text.load_tokenizer(folder)
    whole = found.encode(WORDS * 5)
    monkeypatch.setattr("ampkit.data.text.tokenizer._PART", 7)
    assert found.encode(WORDS * 5).tolist() == whole.tolist()
    assert found.encode("").tolist() == []


def test_a_truncating_tokenizer_does_not_cut_the_corpus(folder, tmp_path):
    settings = json.loads((folder / "tokenizer.json").read_text())
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings | {"truncation": cut}))
    assert len(text.load_tokenizer(tmp_path).encode(WORDS)) > 3


def test_a_run_learns_tokens_resumes_bit_for_bit_and_keeps_its_tokenizer(folder, tmp_path):
    whole = fit(recipe(folder), tmp_path / "whole" / "checkpoints")
    assert "tokens of" in whole.notes[0] and whole.unit == "tokens"
    inputs, _ = whole.first_batch()
    assert 255 < int(inputs.max()) < 300
    list(whole)
    half = fit(recipe(folder), tmp_path / "half" / "checkpoints")
    for _ in range(3):
        half.advance()
    half.save()
    again = fit(recipe(folder), tmp_path / "half" / "checkpoints", resume=True)
    list(again)
    for name, value in whole.model.state_dict().items():
        assert np.array_equal(value.numpy(), again.model.state_dict()[name].numpy())
    found = load_run(tmp_path / "half")
    assert found.tokenizer.state == text.load_tokenizer(folder).state
    export(found, tmp_path / "export")
    pieces = "".join(found.text("the quick", 9, seed=3))
    assert "".join(load_run(tmp_path / "export").text("the quick", 9, seed=3)) == pieces
    assert found.tokenizer.decode(found.generate("the quick", 9, seed=3)) == pieces


def test_a_character_of_several_tokens_comes_whole(folder, tmp_path):
    run = fit(recipe(folder), tmp_path / "checkpoints")
    list(run)
    found = load_run(tmp_path)
    tokens = found.tokenizer.encode("a 水 b").tolist()
    found.generate = lambda *arguments: iter(tokens)
    pieces = list(found.text("", 0))
    assert "".join(pieces) == "a 水 b" and all("\ufffd" not in piece for piece in pieces)
    assert len(pieces) < len(tokens) + 1


def test_generate_continues_a_prompt_by_the_tokenizer_of_the_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["train", "text_gpt", f"data={{name='text', path='{folder}/words.txt', tokenizer='{folder}/pair'}}"]
    assert main([*options, *SMALL, "--run-dir", "run"]) == 0
    assert "ampkit generate run" in capsys.readouterr().out
    for prompt in ("the fox", ""):
        assert main(["generate", "run", "--prompt", prompt, "--count", "5"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(prompt) and len(said) > len(prompt) + 1


def test_gpt2s_weights_go_on_to_learn_a_text_of_ones_own(folder, tmp_path):
    ampkit.manual_seed(4)
    model = models.gpt(vocab_size=300, block_size=16, n_layer=1, n_head=2, n_embd=16)
    transposed = ("c_attn.weight", "c_fc.weight", "c_proj.weight")  # as Hugging Face's Conv1D has them
    state = {
        name: value.detach().T.contiguous() if name.endswith(transposed) else value
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    ampkit.save(state, tmp_path / "model.safetensors")
    sizes = {"model_type": "gpt2", "n_head": 2, "n_layer": 1, "n_embd": 16, "n_positions": 16, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    own = ["model.vocab_size=300", "model.block_size=16", f"model.weights={tmp_path}"]
    run = fit(recipe(folder, *own), tmp_path / "run")
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    for name, value in run.model.state_dict().items():
        assert np.array_equal(value.numpy(), before[name])
    rows = list(run)
    assert rows[-1].val_loss < np.log(300)
    assert isinstance("".join(load_run(tmp_path / "run").text("the", 4)), str)


def test_another_tokenizer_is_refused_on_resume(folder, tmp_path):
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "tokenizer.json"
    own.write_text((folder / "tokenizer.json").read_text())
    wanted = recipe(folder, f"data.tokenizer={tmp_path}/own")
    list(fit(wanted, tmp_path / "run"))
    settings = json.loads(own.read_text())
    settings["model"]["merges"] = settings["model"]["merges"][:-1]
    own.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="resume: needs the tokenizer that the run began with"):
        fit(recipe(folder, f"data.tokenizer={tmp_path}/own", "train.steps=6"), tmp_path / "run", resume=True)


def test_a_vocabulary_that_is_too_small_is_named(folder):
    with pytest.raises(ConfigError, match="model.vocab_size: needs at least 300, the tokens of .*, got 299"):
        fit(recipe(folder, "model.vocab_size=299"))


def test_raw_bytes_have_no_tokens(folder):
    with pytest.raises(ConfigError, match="data.encoding: needs one of text, for data.tokenizer, got 'bytes'"):
        fit(recipe(folder, "data.encoding=bytes"))


def test_files_that_are_no_tokenizer_are_named(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "vocab.json").write_text("{}")
    for name, said in (("", "tokenizer.json: needs a tokenizer of the package"), ("pair", "got no .*merges.txt")):
        with pytest.raises(FileError, match=said):
            text.load_tokenizer(tmp_path / name)
    with pytest.raises(
        FileError, match=r"data.tokenizer: needs a tokenizer.json, .* got 'nowhere', which is not there"
    ):
        text.load_tokenizer("nowhere")


def test_a_name_of_the_hub_without_network_says_what_helps(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub, of the extra hub")
    asked = []

    def absent(name, file, local_files_only):
        assert local_files_only  # with the network it would try for half a minute
        raise hub.errors.LocalEntryNotFoundError("not in the cache")

    def away(url, timeout):
        asked.append(url)
        raise ConnectionError("no route")

    monkeypatch.setattr(hub, "hf_hub_download", absent)
    monkeypatch.setattr(hub, "get_hf_file_metadata", away)
    with pytest.raises(FileError, match=r"'openai-community/gpt2', which is neither .* without network \(no route\)"):
        text.load_tokenizer("gpt2")
    assert [url.endswith("openai-community/gpt2/resolve/main/tokenizer.json") for url in asked] == [True]


def test_the_extra_is_named_where_the_package_is_missing(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ConfigError, match=r"needs the package tokenizers, got none\nhelp: pip install 'ampkit\[text\]'"
    ):
        fit(recipe(folder))
