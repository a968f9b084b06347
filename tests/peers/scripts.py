"""Run training scripts written for PyTorch on ampkit, unedited, and compare their losses with PyTorch's.

    python -m tests.peers.scripts [--examples DIR] [--nanogpt DIR] [--mingpt DIR] [--cifar DIR] [--repositories DIR]
                                  [--only NAME ...] [--python PYTHON] [--pytorch PYTHON] [--report FILE.json]

DIR: checkouts of pytorch/examples, karpathy/nanoGPT, karpathy/minGPT and kuangliu/pytorch-cifar; for --repositories the
folder that has those of repositories.py. The patterns of the AMP documentation run without one. PYTHON: an interpreter
with ampkit's dependencies and without PyTorch (default: this one); one with PyTorch, without which nothing is compared.
tests/peers/stand_ins takes the place of torchvision, gymnasium and matplotlib, but for the scripts of repositories.py,
which use the libraries themselves. Nothing is downloaded, and checkouts are copied before a script runs in them.
Exit status 1 if a script fails or its losses differ.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import pty
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .repositories import REPOSITORIES
from .script import Script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ALIAS = ("-m", "ampkit.as_torch")


def words(folder: Path) -> None:
    """A corpus of random words."""
    draw = np.random.default_rng(0)
    (folder / "data/wikitext-2").mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        lines = [" ".join(f"word{n}" for n in row) for row in draw.integers(0, 40, (60, 20))]
        (folder / f"data/wikitext-2/{name}.txt").write_text("\n".join(lines))


def characters(folder: Path) -> None:
    """Token files as nanoGPT's prepare.py writes them, and a text for minGPT's chargpt."""
    letters = "\n !'OGodabcefghi,"
    draw = np.random.default_rng(0)
    (folder / "data/tiny").mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        draw.integers(0, len(letters), 2000).astype(np.uint16).tofile(folder / f"data/tiny/{name}.bin")
    names = {
        "vocab_size": len(letters),
        "itos": dict(enumerate(letters)),
        "stoi": {c: i for i, c in enumerate(letters)},
    }
    (folder / "data/tiny/meta.pkl").write_bytes(pickle.dumps(names))


def text(folder: Path) -> None:
    """A text for minGPT's chargpt, beside the script."""
    letters = np.array(list("O God,!abc\n"))
    (folder / "input.txt").write_text("O God, O God!" + "".join(np.random.default_rng(0).choice(letters, 400)))


def pictures(folder: Path) -> None:
    """Images where super_resolution looks for BSDS300."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for part in ("train", "test"):
        (folder / f"dataset/BSDS300/images/{part}").mkdir(parents=True, exist_ok=True)
        for n in range(2):
            image = Image.fromarray(draw.integers(0, 256, (260, 300, 3), np.uint8))
            image.save(folder / f"dataset/BSDS300/images/{part}/{n}.png")


WORDS = "--emsize 16 --nhid 16 --nlayers 1 --epochs 1 --batch_size 4 --bptt 8 --dropout 0 --lr 0.5"
NANO = "--dataset=tiny --device=cpu --compile=False --eval_iters=2 --eval_interval=4 --log_interval=1 --block_size=16"
NANO += " --batch_size=4 --n_layer=2 --n_head=2 --n_embd=16 --max_iters=6 --dropout=0.0 --gradient_accumulation_steps=2"
MINI = "--model.model_type=None --model.n_layer=2 --model.n_head=2 --model.n_embd=16 --trainer.max_iters=6"
MINI += " --trainer.batch_size=4"
SCRIPTS = [
    Script("amp", "recipe.py", losses=0, tolerance=0.02),
    Script("amp", "examples.py", losses=0, tolerance=0.02),
    Script("examples", "mnist/main.py", "--epochs 2 --batch-size 16 --test-batch-size 32 --lr 0.1 --save-model"),
    Script("examples", "vae/main.py", "--epochs 2 --batch-size 16"),
    Script(
        "examples", "dcgan/main.py", "--dataset cifar10 --dataroot . --batchSize 16 --ngf 4 --ndf 4 --niter 2 --outf ."
    ),
    Script("examples", "siamese_network/main.py", "--epochs 1 --batch-size 16 --test-batch-size 32 --lr 0.1 --dry-run"),
    Script("examples", "mnist_rnn/main.py", "--epochs 2 --batch-size 16 --test-batch-size 32 --lr 0.01 --save-model"),
    *[
        Script("examples", "word_language_model/main.py", f"{WORDS} --model {kind}", words)
        for kind in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU", "Transformer --nhead 2", "LSTM --tied --use-optimizer")
    ],
    Script("examples", "word_language_model/generate.py", "--words 20", words, f"main.py {WORDS}", 0),
    Script("examples", "imagenet/main.py", ". -a resnet18 --epochs 2 -b 4 -j 0 --lr 0.01 -p 1"),
    Script(
        "examples",
        "imagenet/main.py",
        ". -a resnet50 -b 4 -j 0 --resume checkpoint.pth.tar --epochs 3 -p 1",
        None,
        "main.py . -a resnet50 --epochs 2 -b 4 -j 0 --lr 0.01 -p 1",
    ),
    Script("examples", "time_sequence_prediction/train.py", "--steps 1", None, "generate_sine_wave.py", 20),
    Script("examples", "mnist_forward_forward/main.py", "--epochs 2 --train_size 32 --test_size 32"),
    Script(
        "examples", "mnist_hogwild/main.py", "--epochs 1 --batch-size 16 --test-batch-size 32 --save_model", losses=0
    ),
    Script("examples", "reinforcement_learning/reinforce.py", "--log-interval 2"),
    Script("examples", "reinforcement_learning/actor_critic.py", "--log-interval 2"),
    Script(
        "examples", "super_resolution/main.py", "--upscale_factor 4 --batchSize 1 --nEpochs 2 --threads 0", pictures
    ),
    Script(
        "examples",
        "super_resolution/super_resolve.py",
        "--input_image dataset/BSDS300/images/test/0.png --model model_epoch_1.pth --output_filename out.png",
        pictures,
        "main.py --upscale_factor 4 --batchSize 1 --nEpochs 1 --threads 0",
        0,
    ),
    Script("examples", "regression/main.py", losses=20),
    Script("nanogpt", "train.py", f"{NANO} --decay_lr=False", characters),
    Script("nanogpt", "train.py", f"{NANO} --init_from=resume --dtype=bfloat16", characters, f"train.py {NANO}"),
    Script(
        "nanogpt",
        "sample.py",
        "--out_dir=out --device=cpu --num_samples=2 --max_new_tokens=8",
        characters,
        f"train.py {NANO}",
        0,
    ),
    Script(
        "nanogpt", "bench.py", "--device=cpu --compile=False --real_data=False --batch_size=1 --block_size=16", losses=0
    ),
    Script("mingpt", "projects/adder/adder.py", f"{MINI} --data.ndigit=1"),
    Script("mingpt", "projects/chargpt/chargpt.py", f"{MINI} --data.block_size=16", text),
    # SimpleDLA amplifies rounding: the float32 losses of either library are as far from those of float64.
    Script("cifar", "main.py", "--lr 0.01", losses=3, tolerance=0.02),
]


def run(script: Script, checkout: Path, start: Sequence[str], limit: int) -> dict[str, Any]:
    """Run in a copy of the checkout; return the seconds, the losses and the last lines of a failure."""
    with tempfile.TemporaryDirectory() as copied:
        top = Path(copied) / "checkout"
        shutil.copytree(checkout, top, ignore=shutil.ignore_patterns(".git", "*.jpg", "docs"))
        place, losses = (top / script.path).parent, Path(copied) / "losses.json"
        if script.data is not None:
            script.data(place)
        stand_ins = Path(copied) / "stand_ins"
        stand_ins.mkdir()
        for name in script.stand_ins.split():
            (stand_ins / name).symlink_to(HERE / "stand_ins" / name)
        began = time.monotonic()
        commands = [
            [
                *start,
                str(HERE / "same_start.py"),
                str(losses),
                str(script.losses),
                Path(script.path).name,
                *script.arguments.split(),
            ]
        ]
        if script.before:
            commands.insert(0, [*commands[0][: -2 - len(script.arguments.split())], "0", *script.before.split()])
        for command in commands:
            rc, said = _in_terminal(command, place, limit, [str(stand_ins), str(ROOT), str(top)], script.environment)
            if rc:
                break
        found = json.loads(losses.read_text()) if losses.exists() else []
        return {"seconds": time.monotonic() - began, "losses": found, "error": "" if rc == 0 else said}


def _in_terminal(
    command: Sequence[str], folder: Path, limit: int, path: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str]:
    # Some scripts ask the size of their terminal.
    main, terminal = pty.openpty()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        )
        return done.returncode, "\n".join(done.stdout.splitlines()[-6:])
    except subprocess.TimeoutExpired:
        return 124, f"no end after {limit} s"
    finally:
        os.close(main), os.close(terminal)


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The largest relative difference of two lists of losses; None if there is nothing to compare."""
    if not ours or len(ours) != len(theirs):
        return None if not ours and not theirs else float("inf")
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs, strict=True))


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.scripts", description=(__doc__ or "").split("\n")[0])
    for name in ("examples", "nanogpt", "mingpt", "cifar", "repositories"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", nargs="+", help="parts of names")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pytorch")
    parser.add_argument("--limit", type=int, default=300, help="seconds of one script")
    parser.add_argument("--report", type=Path)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run the scripts of the checkouts that are given, print the table, return the exit status."""
    options = arguments(given)
    rows, failed = [], 0
    for script in [*SCRIPTS, *(REPOSITORIES if options.repositories else ())]:
        checkout = HERE / "patterns" if script.source == "amp" else getattr(options, script.source, None)
        if script in REPOSITORIES:
            checkout = options.repositories / script.source
        if checkout is None or (options.only and not any(part in script.name for part in options.only)):
            continue
        ours = run(script, checkout, [options.python, *ALIAS], options.limit)
        theirs = run(script, checkout, [options.pytorch, "-P"], options.limit) if options.pytorch else None
        difference = None if theirs is None else largest_difference(ours["losses"], theirs["losses"])
        good = not ours["error"] and (difference is None or difference <= script.tolerance)
        failed += not good
        shown = "-" if difference is None else f"{difference:.1e}"
        counts = f"{len(ours['losses']):3} {shown:>8} {ours['seconds']:6.1f} s"
        print(f"{script.name:50} {'runs' if good else 'FAILS':6} {counts}", flush=True)
        for side, result in (("ampkit", ours), ("PyTorch", theirs)):
            if result and result["error"]:
                print(f"    {side}: " + result["error"].replace("\n", "\n    "), flush=True)
        rows.append({"name": script.name, "good": good, "difference": difference, "ampkit": ours, "pytorch": theirs})
    print(f"{len(rows) - failed} of {len(rows)} scripts run")
    if options.report:
        options.report.write_text(json.dumps(rows, indent=1))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
