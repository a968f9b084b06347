"""Modules with hooks, computed weights and wrappers are freed when they are dropped, without Python's collector."""

from __future__ import annotations

import io
import pickle
from typing import Any

import garbage

import ampkit
from ampkit import distributed, nn
from ampkit.nn.utils import parametrizations, parametrize, prune

WORKS: dict[str, Any] = {}


def work(function: Any) -> Any:
    WORKS[function.__name__] = function
    return function


def leaf() -> ampkit.Tensor:
    return ampkit.ones(3, 4, requires_grad=True)


def new_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())


@work
def hooks_of_modules() -> None:
    model = new_model()
    model.register_forward_pre_hook(lambda *given: None)
    model.register_forward_hook(lambda *given: None).remove()
    model[0].register_forward_hook(lambda *given: None)
    model.register_full_backward_hook(lambda *given: None)
    model[1].register_full_backward_pre_hook(lambda *given: None)
    model.register_load_state_dict_post_hook(lambda *given: None)
    model(leaf()).sum().backward()
    model.load_state_dict(model.state_dict())


class Remembers(nn.Module):
    """A module that holds a tensor of its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: ampkit.Tensor) -> ampkit.Tensor:
        self.features = self.layer(x)
        return self.features


@work
def a_module_that_holds_a_tensor_of_its_graph() -> None:
    with ampkit.autocast(policy=ampkit.Policy("float16", modules={"layer": "float32"})):
        Remembers()(leaf()).sum().backward()


@work
def computed_weights() -> None:
    for make in (parametrizations.orthogonal, parametrizations.weight_norm, parametrizations.spectral_norm):
        layer = make(nn.Linear(4, 4))
        with parametrize.cached():
            layer(leaf()).sum().backward()
        layer.state_dict()
        parametrize.remove_parametrizations(layer, "weight")
    layer = nn.utils.spectral_norm(nn.utils.weight_norm(nn.Linear(4, 4), "bias", None))
    layer(leaf()).sum().backward()
    prune.l1_unstructured(layer := nn.Linear(4, 4), "weight", 0.5)
    layer(leaf()).sum().backward()


@work
def copies_and_files() -> None:
    model, file = new_model(), io.BytesIO()
    ampkit.save(model.state_dict(), file)
    file.seek(0)
    ampkit.load(file)
    pickle.loads(pickle.dumps(model))
    model.half().float().requires_grad_(False)


@work
def replicas() -> None:
    distributed.init_process_group()
    try:
        model = nn.parallel.DistributedDataParallel(new_model())
        model(leaf()).sum().backward()
        with model.no_sync():
            model(leaf()).sum().backward()
    finally:
        distributed.destroy_process_group()


def test_what_modules_make_is_freed_with_them():
    assert not garbage.left_behind(WORKS)
