"""Where weights lie: files, folders, shards and their index, and the Hugging Face Hub."""

from __future__ import annotations

import json
import sys
import types

import pytest

import ampkit
from ampkit import models, nn
from ampkit.base.errors import DTypeError, FileError

STATE = {"weight": ampkit.tensor([[1.0, 2.0]]), "bias": ampkit.tensor([3.0])}


def loaded(weights):
    model = nn.Linear(2, 1)
    models.load_weights(model, weights)
    return [model.weight.tolist(), model.bias.tolist()]


def refused(weights):
    with pytest.raises(FileError) as caught:
        loaded(weights)
    return str(caught.value)


VALUES = [[[1.0, 2.0]], [3.0]]


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "pytorch_model.bin"])
def test_weights_are_read_from_a_file_and_from_the_folder_that_holds_it(name, tmp_path):
    ampkit.save(STATE, tmp_path / name)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert loaded(tmp_path / name) == loaded(str(tmp_path)) == VALUES


@pytest.mark.parametrize("entry", ["state_dict", "model_state_dict", "model"])
def test_weights_are_read_from_the_checkpoint_of_a_training_program(entry, tmp_path):
    ampkit.save({"epoch": 3, entry: STATE, "optimizer": {"state": {}}}, tmp_path / "checkpoint.pt")
    assert loaded(tmp_path / "checkpoint.pt") == VALUES


def sharded(folder):
    files = {"weight": "model-00001-of-00002.safetensors", "bias": "model-00002-of-00002.safetensors"}
    for name, file in files.items():
        ampkit.save({name: STATE[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


def test_shards_are_read_by_their_index(tmp_path):
    sharded(tmp_path)
    assert loaded(tmp_path) == loaded(tmp_path / "model.safetensors.index.json") == VALUES


def test_a_missing_shard_is_named(tmp_path):
    (tmp_path / sharded(tmp_path)["bias"]).unlink()
    found = refused(tmp_path)
    assert "model-00002-of-00002.safetensors" in found and "No such file" in found
    assert len(found.splitlines()) == 1


def test_a_truncated_file_is_named(tmp_path):
    ampkit.save(STATE, tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:-2])
    assert "needs a whole safetensors file" in refused(tmp_path)


def test_what_holds_no_weights_is_said_in_one_line(tmp_path):
    assert "got none" in refused(tmp_path)
    for name in ("a.pt", "b.pt"):
        ampkit.save(STATE, tmp_path / name)
    assert "got a.pt, b.pt\nhelp: name the file" in refused(tmp_path)
    ampkit.save({"epoch": 3, "loss": 0.5}, tmp_path / "a.pt")
    assert "needs tensors by name, got a dict of 'epoch', 'loss'" in refused(tmp_path / "a.pt")
    missing = str(tmp_path / "none.safetensors")
    assert f"or owner/model of the Hugging Face Hub, got {missing!r}, which is not there" in refused(missing)
    assert "which is not there" in refused("models/none.safetensors")
    with pytest.raises(DTypeError, match="needs a path, a name or a dict of tensors, got a int"):
        loaded(3)
    with pytest.raises(DTypeError, match="needs a dict of tensors by name, got one with 'epoch'"):
        loaded({"epoch": 3})


# The hub.


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for huggingface_hub: `files` of the model owner/model; `online`: whether the network is there."""
    errors = types.ModuleType("huggingface_hub.errors")
    errors.EntryNotFoundError = type("EntryNotFoundError", (Exception,), {})
    errors.LocalEntryNotFoundError = type("LocalEntryNotFoundError", (errors.EntryNotFoundError,), {})
    errors.HfHubHTTPError = type("HfHubHTTPError", (Exception,), {})
    errors.RepositoryNotFoundError = type("RepositoryNotFoundError", (errors.HfHubHTTPError,), {})
    module = types.ModuleType("huggingface_hub")
    module.errors, module.online, module.folder, module.asked, module.cached = errors, True, None, [], set()

    def hf_hub_download(name, file, local_files_only=False):
        module.asked.append((file, local_files_only))
        if file not in module.cached and (local_files_only or not module.online):
            raise errors.LocalEntryNotFoundError(file)
        if name != "owner/model":
            raise errors.RepositoryNotFoundError("404")
        if not (module.folder / file).is_file():
            raise errors.EntryNotFoundError(file)
        return str(module.folder / file)

    def get_hf_file_metadata(url, timeout):
        module.asked.append((url, timeout))
        if not module.online:
            raise ConnectionError("no route")
        raise errors.RepositoryNotFoundError("404")  # an answer

    module.hf_hub_download, module.get_hf_file_metadata = hf_hub_download, get_hf_file_metadata
    module.hf_hub_url = lambda name, file, repo_type: f"{repo_type}s/{name}/{file}"
    module.constants = types.SimpleNamespace(HF_HUB_ETAG_TIMEOUT=10)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return module


def test_a_model_of_the_hub_is_loaded_by_its_name(hub, tmp_path):
    hub.folder = tmp_path
    sharded(tmp_path)
    assert loaded("owner/model") == VALUES
    assert ("model.safetensors", False) in hub.asked and ("model-00002-of-00002.safetensors", False) in hub.asked
    assert not any("pytorch_model" in file for file, local in hub.asked if not local)


def test_without_network_a_model_in_the_cache_is_loaded_and_the_network_is_asked_once(hub, tmp_path):
    hub.folder, hub.online, hub.cached = tmp_path, False, {"pytorch_model.bin"}
    ampkit.save(STATE, tmp_path / "pytorch_model.bin")
    assert loaded("owner/model") == VALUES
    assert [each for each in hub.asked if each[1] is not True] == [("models/owner/model/config.json", 10)]


def test_the_network_is_not_asked_for_a_model_that_is_whole_in_the_cache(hub, tmp_path):
    hub.folder, hub.cached = tmp_path, {"model.safetensors", "config.json"}
    ampkit.save(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert loaded("owner/model") == VALUES
    assert all(local is True for _, local in hub.asked)


def test_without_network_and_cache_the_error_says_what_to_do(hub, tmp_path):
    hub.folder, hub.online = tmp_path, False
    found = refused("owner/model")
    assert (
        "'owner/model', which is neither a path nor whole in the cache of the hub, without network (no route)" in found
    )
    assert found.endswith("help: connect to the network once, or download the model elsewhere and pass its folder")


def test_a_model_in_the_cache_with_a_missing_shard_is_not_whole(hub, tmp_path):
    hub.folder, hub.online = tmp_path, False
    files = sharded(tmp_path)
    hub.cached = {"model.safetensors.index.json", files["weight"]}
    assert "nor whole in the cache" in refused("owner/model")


def test_a_name_that_the_hub_has_not_and_a_model_without_weights_are_said(hub, tmp_path):
    hub.folder = tmp_path
    assert "'owner/other', which is neither a path nor there" in refused("owner/other")
    assert "needs model.safetensors or pytorch_model.bin in the model 'owner/model' of the hub, got none" in refused(
        "owner/model"
    )


def test_without_its_client_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert refused("owner/model").endswith("help: pip install 'ampkit[hub]', or download it")


def test_the_clients_own_cache_is_used_offline(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "models--owner--model"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    ampkit.save(STATE, snapshot / "model.safetensors")
    assert loaded("owner/model") == VALUES
