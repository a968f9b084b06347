"""The commands of README and docs run as printed, a page's one after the other, on recipes made short."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from api.test_docs_commands import BLOCK, ROOT, WITH_COMMANDS, commands

import ampkit
from ampkit import config
from ampkit.cli import main
from ampkit.config import read

SHORT = {
    "digits_cnn": ["model.width=2", "model.stages=1", "data.batch_size=720", "train.epochs=2", "train.eval_every="],
    "digits_mlp": ["model.hidden=[8]", "data.batch_size=720", "train.epochs=2", "train.eval_every="],
    "text_gpt": [
        *("model.n_layer=2", "model.n_embd=16", "model.n_head=2", "model.block_size=8", "data.batch_size=8"),
        *("data.path=text.txt", "schedule.warmup=1", "train.steps=4", "train.bench_steps=4", "train.eval_every=2"),
        *("train.eval_batches=1", "train.threads=1"),
    ],
    "finetune_images": [
        *("model.width=4", "data.shape=[3,32,32]", "data.resize=36", "data.batch_size=4", "data.workers=0"),
        *("train.epochs=", "train.steps=2", "train.eval_every=2", "train.threads=1"),
    ],
}
TEXT = "def f(x): return x\n" * 200
PAGES = [
    "README.md",
    "recipes/README.md",
    *(f"docs/{name}.md" for name in ("finetuning", "logging", "optimizers", "performance", "policy")),
    *(f"docs/{name}.md" for name in ("precision-laboratory", "quantization", "quickstart", "report")),
]
# tests/cli/test_command_line_page.py, tests/serialization/onnx/test_page.py, and the rest in test_docs.py.
ELSEWHERE = ["command-line", "onnx", "tables-and-text", "images-of-your-own", "add-a-model", "add-a-dataset"]
# Runs that a page takes as done, by the recipe they are of.
DONE = {
    "docs/quantization.md": {
        "digits_cnn": "runs/digits_cnn-bfloat16-20261129-101500",
        "finetune_images": "runs/my-run",
    },
    "docs/report.md": {"digits_cnn": "runs/digits_cnn-float16-20261123-101500"},
}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A folder with the recipes of SHORT, under the names of those that come with ampkit."""
    folder = tmp_path_factory.mktemp("short") / "recipes"
    folder.mkdir()
    for name, keys in SHORT.items():
        (folder / f"{name}.toml").write_text(config.dump(config.load(name, keys)))
    return folder


@pytest.mark.cpu
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_one_after_the_other(name, recipes, tmp_path, monkeypatch, capsys):
    if "finetune_images" in {*DONE.get(name, ()), *(word for words in commands(ROOT / name) for word in words)}:
        pytest.importorskip("PIL.Image", reason="images of other sizes are resized by Pillow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(read, "RECIPES", recipes)
    shutil.copytree(recipes, "recipes")
    Path("text.txt").write_text(TEXT)
    photos()
    for recipe, run in DONE.get(name, {}).items():
        assert main(["train", recipe, "--run-dir", run]) == 0
    for words in commands(ROOT / name):
        assert main(as_by_a_shell(words)) == 0, (words, capsys.readouterr().err)


@pytest.mark.usefixtures("gpu")
def test_the_commands_of_the_gpu_page_run(recipes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recipes, "recipes")
    for words in commands(ROOT / "docs/gpu.md"):
        assert main(words) == 0, (words, capsys.readouterr().err)


@pytest.mark.cpu
def test_the_commands_of_the_page_on_many_processes_run(recipes, tmp_path):
    shutil.copytree(recipes, tmp_path / "recipes")
    (tmp_path / "text.txt").write_text(TEXT)
    page = ROOT / "docs/distributed.md"
    (tmp_path / "script.py").write_text(
        next(block for language, block in BLOCK.findall(page.read_text()) if language == "python")
    )
    for words in commands(page):
        found = subprocess.run([sys.executable, "-m", "ampkit", *words], cwd=tmp_path, capture_output=True, text=True)
        assert found.returncode == 0, (words, found.stderr)


def test_the_commands_of_every_page_are_run():
    others = {ROOT / f"docs/{name}.md" for name in (*ELSEWHERE, "distributed", "gpu")}
    assert set(WITH_COMMANDS) - others == {ROOT / name for name in PAGES}


def as_by_a_shell(words):
    """The words, patterns replaced by the paths that there are; no browser is opened."""
    shown = (
        sorted(map(str, Path().glob(word))) if word.startswith("runs/") and "*" in word else [word] for word in words
    )
    return [word for each in shown for word in each if word != "--open"]


def photos():
    """A folder of images in two classes, and weights for them."""
    for folder in ("cat", "dog"):
        Path("photos", folder).mkdir(parents=True)
        for number in range(5):
            Path("photos", folder, f"{number}.ppm").write_bytes(b"P6 40 36 255\n" + bytes([40 * number] * 40 * 36 * 3))
    ampkit.save(ampkit.models.resnet18(width=4).state_dict(), "resnet18.pth")
