"""Logits of torchvision's, Hugging Face's and timm's models beside those of ampkit's with the same weights.

    pip install -e '.[peers]' torchvision transformers timm && python -m tests.peers.pretrained

Each library builds its model in its real configuration with random weights, and writes them as it writes files; ampkit
loads the files. The table shows the largest difference of the logits in float32, and the same relative to the largest
logit. `--only NAME` takes the cases whose names begin so. `--golden` prints tests/golden/pretrained.json instead: the
logits of tiny models with weights by a formula.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import ampkit
from ampkit import models
from tests.pretrained_cases import inputs, values

BOUND = 1e-5
CASES: dict[str, Callable[[Path], tuple[np.ndarray, np.ndarray]]] = {}


def case(name: str) -> Callable[[Callable], Callable]:
    def add(make: Callable) -> Callable:
        CASES[name] = make
        return make

    return add


def varied(model: torch.nn.Module) -> torch.nn.Module:
    """The model with values for what starts as zeros and ones, so that a tensor in another's place would show."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (torch.nn.BatchNorm2d, torch.nn.LayerNorm)):
                module.weight.uniform_(0.8, 1.2)
                module.bias.normal_(std=0.1)
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.8, 1.2)
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                module.bias.normal_(std=0.05)
        for name, parameter in model.named_parameters():
            if name.endswith(("heads.head.weight", "class_token", "cls_token", "conv_proj.bias")):
                parameter.normal_(std=0.05)
    return model.eval()


def images(size: int, count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3, size, size)).astype(np.float32)


def tokens(size: int, length: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, size, (2, length))


def logits(found: object) -> np.ndarray:
    """The logits, or states, of either library's answer."""
    for name in ("logits", "last_hidden_state", "out"):
        found = found[name] if isinstance(found, dict) and name in found else getattr(found, name, found)
    found = found[0] if isinstance(found, tuple) else found
    return found.detach().numpy()


def answers(theirs: torch.nn.Module, ours: ampkit.nn.Module, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return logits(ours.eval()(ampkit.tensor(given))), logits(theirs(torch.from_numpy(given)))


def _torchvision(name: str, size: int, **options: object) -> None:
    @case(f"torchvision {name}")
    def make(folder: Path) -> tuple[np.ndarray, np.ndarray]:
        from torchvision import models as theirs

        kind = theirs.segmentation if hasattr(theirs.segmentation, name) else theirs
        model = varied(getattr(kind, name)(**options))
        torch.save(model.state_dict(), folder / "model.pth")
        ours = getattr(models, name)(weights=folder / "model.pth")
        return answers(model, ours, images(size))


for _name in ("resnet18", "resnet50", "vit_b_16", "efficientnet_b0", "vgg16", "vgg16_bn", "alexnet"):
    _torchvision(_name, 224)
for _name in ("fcn_resnet50", "deeplabv3_resnet50"):
    _torchvision(_name, 96, weights=None, weights_backbone=None, aux_loss=True)


def _hugging_face(name: str, kind: str, given: np.ndarray, **config: object) -> None:
    @case(f"Hugging Face {name}")
    def make(folder: Path) -> tuple[np.ndarray, np.ndarray]:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        made = getattr(transformers, kind)
        model = varied(made(made.config_class(**config)))
        model.save_pretrained(folder, max_shard_size="100MB")
        return answers(model, models.from_pretrained(folder), given)


_hugging_face("gpt2", "GPT2LMHeadModel", tokens(50257))
_hugging_face("bert-base (BertModel)", "BertModel", tokens(30522))
_hugging_face("bert-base (BertForMaskedLM)", "BertForMaskedLM", tokens(30522))
_hugging_face("vit-base-patch16-224", "ViTForImageClassification", images(224), num_labels=1000)
_hugging_face("resnet-50", "ResNetForImageClassification", images(224), num_labels=1000)
_hugging_face(
    "resnet-18", "ResNetForImageClassification", images(224),
    num_labels=1000, layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512],
)  # fmt: skip


@case("Hugging Face vit, from a state_dict")
def vit_in_memory(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    import transformers

    theirs = varied(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))
    ours = models.vit_b_16(layer_norm_eps=1e-12, weights=theirs.state_dict())
    return answers(theirs, ours, images(224))


@case("timm deit_tiny_patch16_224")
def deit(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    import timm

    theirs = varied(timm.create_model("deit_tiny_patch16_224"))
    torch.save({"model": theirs.state_dict()}, folder / "deit.pth")
    return answers(theirs, models.vit_ti_16(weights=folder), images(224))


TINY = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = {"tokens": 13, "length": 6}
VIT = {"image_size": 4, "patch_size": 2, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
# By case: the class of transformers, its configuration, its input.
SMALL = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 13, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}, WORDS),
    "bert": ("BertModel", {**TINY, "max_position_embeddings": 6}, WORDS),
    "bert for masked lm": ("BertForMaskedLM", {**TINY, "max_position_embeddings": 6}, WORDS),
    "vit": ("ViTForImageClassification", {**TINY, "image_size": 4, "patch_size": 2, "num_labels": 3}, {"images": 4}),
    "resnet, basic": (
        "ResNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [4, 8, 16, 32], "depths": [1, 2, 1, 1], "layer_type": "basic",
         "num_labels": 3},
        {"images": 32},
    ),
    "resnet, bottleneck": (
        "ResNetForImageClassification",
        {"embedding_size": 4, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1], "num_labels": 3},
        {"images": 32},
    ),
}  # fmt: skip


def golden() -> dict[str, dict]:
    found = {f"Hugging Face's {name}": _small_hugging_face(*what) for name, what in SMALL.items()}
    import timm.models.vision_transformer as by_timm
    from torchvision.models import VisionTransformer

    found["torchvision's vit"] = _small(VisionTransformer(**VIT, num_classes=3))
    options = {"img_size": 4, "patch_size": 2, "embed_dim": 8, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    found["timm's vit"] = _small(by_timm.VisionTransformer(**options, num_classes=3))
    return found


def _small_hugging_face(kind: str, config: dict, given: dict) -> dict:
    import transformers
    from safetensors.torch import load_file, save_file

    made = getattr(transformers, kind)
    with tempfile.TemporaryDirectory() as folder:
        made(made.config_class(**config)).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {name: list(value.shape) for name, value in load_file(file).items()}
        weights = {name: torch.from_numpy(values(name, shape)) for name, shape in shapes.items()}
        save_file(weights, file, {"format": "pt"})
        answer = made.from_pretrained(folder).eval()(torch.from_numpy(inputs(given)))
        written = json.loads((Path(folder) / "config.json").read_text())
    return {"config": written, "tensors": shapes, "given": given, "logits": logits(answer).tolist()}


def _small(model: torch.nn.Module) -> dict:
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(values(name, shape)) for name, shape in shapes.items()})
    answer = model.eval()(torch.from_numpy(inputs({"images": 4})))
    return {"config": {}, "tensors": shapes, "given": {"images": 4}, "logits": answer.tolist()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--golden", action="store_true")
    options = parser.parse_args()
    chosen = [name for name in CASES if name.startswith(options.only)]
    torch.manual_seed(0)
    if options.golden:
        with torch.no_grad():
            cases = ",\n".join(f" {json.dumps(name)}: {json.dumps(case)}" for name, case in golden().items())
        print(f"{{\n{cases}\n}}")
        return 0
    far = 0
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder, ampkit.no_grad(), torch.no_grad():
            ours, theirs = CASES[name](Path(folder))
        apart = float(np.abs(ours - theirs).max())
        relative = apart / float(np.abs(theirs).max())
        far += not relative <= BOUND
        print(f"{name:<38}{apart:10.1e}{relative:10.1e}  {'ok' if relative <= BOUND else 'TOO FAR'}", flush=True)
    return int(far > 0)


if __name__ == "__main__":
    raise SystemExit(main())
