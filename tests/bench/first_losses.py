"""Compare ampkit's first losses and gradients with PyTorch's, from the same initial weights and batches, on the CPU.

    pip install torch && python tests/bench/first_losses.py [--steps 20] [--models mlp cnn resnet18 gpt vit bert]
    python tests/bench/first_losses.py --lockstep       each step from PyTorch's weights of that step

Both train with SGD (momentum 0.9), PyTorch in float32, ampkit in float32, bfloat16 and float16 (with a GradScaler). The
table shows, per model and precision, the largest relative difference of a loss from PyTorch's float32 loss, and for
comparison that of PyTorch's own float64 loss. The learning rates are low enough for the latter to stay below the
bound: where rounding changes the sign of a ReLU's input, later steps amplify the difference, in any library.

Gradients, of the first and the last step: per parameter, the norm of the difference from PyTorch's float32 gradient
relative to that gradient's norm; the table shows the largest. A gradient that is zero in exact arithmetic, such as that
of attention's key bias, is rounding error in both: a norm below 1e-6 of the step's largest is replaced by that.
Where rounding changes the sign of a ReLU's input, gradients jump, in any library: PyTorch's own float32 and float64
gradients then differ by more than the bound. Therefore ampkit also runs in float64 and is compared with PyTorch in
float64, where this hardly happens and the bound holds for all models. --lockstep loads PyTorch's weights into ampkit
before each step, so that differences do not accumulate, and counts the steps in which all gradients are within the
bound; resnet18 takes 8 images of 16 pixels there, for which in most steps no ReLU is affected.
"""

from __future__ import annotations

import argparse
import copy
from contextlib import nullcontext

import numpy as np
import pytorch_models
import torch

import ampkit
from ampkit import models, ops, optim

GRADIENTS = 1e-4  # of float32; for 16 bits they are shown
NOTHING = 1e-6
BOUND = {"float32": 1e-4, "bfloat16": 0.03, "float16": 0.03}
LR = {"mlp": 0.05, "cnn": 0.01, "resnet18": 0.0002, "gpt": 0.02, "vit": 0.01, "bert": 0.02}


def make(name: str, few: bool = False):
    """An ampkit model, the same model in PyTorch, and a function that draws a batch; few: small images for resnet18."""
    rng = np.random.default_rng(0)
    if name == "gpt":
        sizes = {"vocab_size": 256, "block_size": 64, "n_layer": 2, "n_head": 4, "n_embd": 64}
        ours, twin = models.gpt(**sizes), pytorch_models.GPT(**sizes)
        return ours, twin, lambda: tuple(rng.integers(0, 256, (8, 65))[:, s] for s in (slice(64), slice(1, 65)))
    if name == "bert":
        off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        ours, twin = models.bert("tiny", vocab_size=256, **off), pytorch_models.bert("tiny", vocab_size=256)
        return ours, twin, lambda: (rng.integers(1, 256, (8, 64)), rng.integers(0, 256, (8, 64)))
    shape, classes = {
        "mlp": ((64,), 10),
        "cnn": ((1, 8, 8), 10),
        "resnet18": ((3, 32, 32), 10),
        "vit": ((3, 32, 32), 10),
    }[name]
    options = {"resnet18": {"num_classes": classes, "stem": "cifar"}, "vit": {"num_layers": 2}}.get(name, {})
    ours = getattr(models, name)(**options)
    twin = pytorch_models.CNN() if name == "cnn" else getattr(pytorch_models, name)(**options)
    batch = 16 if name in ("resnet18", "vit") else 64
    if few and name == "resnet18":
        batch, shape = 8, (3, 16, 16)

    def draw():
        return rng.standard_normal((batch, *shape)).astype(np.float32), rng.integers(0, classes, batch)

    return ours, twin, draw


def torch_losses(twin, batches, lr: float, dtype: torch.dtype = torch.float32) -> tuple[np.ndarray, list[dict]]:
    """The loss of each step, and the gradients of the first and the last step."""
    gradients = []
    twin = copy.deepcopy(twin).to(dtype)
    optimizer, losses = torch.optim.SGD(twin.parameters(), lr=lr, momentum=0.9), []
    for x, y in batches:
        values = torch.from_numpy(x)
        out = twin(values.to(dtype) if values.is_floating_point() else values)
        out = out[0] if isinstance(out, tuple) else out
        loss = torch.nn.functional.cross_entropy(out.flatten(0, -2), torch.from_numpy(y).flatten())
        optimizer.zero_grad()
        loss.backward()
        if len(losses) in (0, len(batches) - 1):
            gradients.append({name: p.grad.double().numpy() for name, p in twin.named_parameters()})
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), gradients


def our_losses(model, batches, lr: float, dtype: str) -> tuple[np.ndarray, list[dict]]:
    gradients = []
    optimizer, losses = optim.SGD(model.parameters(), lr=lr, momentum=0.9), []
    scaler = ampkit.GradScaler(init_scale=1024.0, enabled=dtype == "float16")
    for x, y in batches:
        with nullcontext() if dtype in ("float32", "float64") else ampkit.autocast(dtype=dtype):
            out = model(ampkit.tensor(x))
            out = out[0] if isinstance(out, tuple) else out
            loss = ops.cross_entropy(out.flatten(0, -2), ampkit.tensor(y).flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if len(losses) in (0, len(batches) - 1):
            gradients.append({name: p.grad.numpy().astype(np.float64) for name, p in model.named_parameters()})
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return np.array(losses), gradients


def lockstep(name: str, steps: int) -> None:
    """Print the distance of each step's loss and gradients from PyTorch's, from the same weights, in float32."""
    ampkit.manual_seed(0)
    ours, twin, draw = make(name, few=True)
    pytorch_models.load(twin, ours)
    optimizer, rows = torch.optim.SGD(twin.parameters(), lr=LR[name], momentum=0.9), []
    for x, y in (draw() for _ in range(steps)):
        ours.load_state_dict({k: ampkit.tensor(v.numpy().copy()) for k, v in twin.state_dict().items()})
        exact = torch_losses(twin, [(x, y)], 0.0, torch.float64)
        loss, gradients = torch_losses(twin, [(x, y)], 0.0)
        found = our_losses(ours, [(x, y)], 0.0, "float32")
        distances = (gradients_apart(each[1][0], gradients[0])[0] for each in (exact, found))
        rows.append((apart(found[0], loss), *distances))
        values = torch.from_numpy(x)
        out = twin(values)
        out = out[0] if isinstance(out, tuple) else out
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(out.flatten(0, -2), torch.from_numpy(y).flatten()).backward()
        optimizer.step()
    losses, theirs, mine = (np.array(column) for column in zip(*rows, strict=True))
    print(f"{name:<10}loss: at most {losses.max():.1e} apart")
    for who, found in (("torch f64", theirs), ("float32", mine)):
        within = f"{(found <= GRADIENTS).sum()} of {steps} steps within {GRADIENTS:g}"
        print(f"{name:<10}{who:<10} gradients: median {np.median(found):.1e}, worst {found.max():.1e}, {within}")


def apart(losses: np.ndarray, truth: np.ndarray) -> float:
    """The largest relative difference."""
    return float(np.max(np.abs(losses - truth) / np.abs(truth)))


def gradients_apart(found: dict, truth: dict) -> tuple[float, str]:
    """The largest norm of a gradient's difference relative to the true gradient's norm, and the parameter's name."""
    least = NOTHING * max(map(np.linalg.norm, truth.values()))
    rows = [(np.linalg.norm(found[n] - g) / max(np.linalg.norm(g), least), n) for n, g in truth.items()]
    worst, name = max(rows)
    return float(worst), name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=list(LR))
    parser.add_argument("--precisions", nargs="*", default=list(BOUND), choices=BOUND)
    parser.add_argument("--lockstep", action="store_true", help="each step from PyTorch's weights of that step")
    args = parser.parse_args()
    if args.lockstep:
        for name in args.models:
            lockstep(name, args.steps)
        return 0
    print(
        f"torch {torch.__version__}, numpy {np.__version__}, {args.steps} steps: greatest relative difference of a loss"
    )
    failed = False
    for name in args.models:
        ampkit.manual_seed(0)
        ours, twin, draw = make(name)
        pytorch_models.load(twin, ours)
        start = {k: v.detach().clone() for k, v in ours.state_dict().items()}
        batches = [draw() for _ in range(args.steps)]
        truth, gradients = torch_losses(twin, batches, LR[name])
        exact, exact_gradients = torch_losses(twin, batches, LR[name], torch.float64)
        print(f"{name:<10}{'torch f64':<10}{apart(exact, truth):10.2e} first {truth[0]:.4f}, last {truth[-1]:.4f}")
        kinks = max(show(name, "torch f64", exact_gradients, gradients)) > GRADIENTS
        for dtype, bound in ((d, BOUND[d]) for d in args.precisions):
            ours.load_state_dict(start)
            found, found_gradients = our_losses(ours, batches, LR[name], dtype)
            worst = apart(found, truth)
            failed |= not worst <= bound
            result = "ok" if worst <= bound else "TOO FAR"
            print(f"{name:<10}{dtype:<10}{worst:10.2e} last {found[-1]:.4f}  bound {bound:g}  {result}", flush=True)
            if max(show(name, dtype, found_gradients, gradients)) > GRADIENTS and dtype == "float32" and not kinks:
                failed = True
                print(f"{name:<10}{dtype:<10} gradients TOO FAR")
        wide = make(name)[0]
        wide.load_state_dict(start)
        wide_batches = [(x.astype(np.float64) if x.dtype == np.float32 else x, y) for x, y in batches]
        found, found_gradients = our_losses(wide.to(dtype=ampkit.float64), wide_batches, LR[name], "float64")
        print(f"{name:<10}{'float64':<10}{apart(found, exact):10.2e} beside PyTorch's float64")
        if max(show(name, "float64", found_gradients, exact_gradients)) > GRADIENTS:
            failed = True
            print(f"{name:<10}{'float64':<10} gradients TOO FAR")
    return int(failed)


def show(name: str, dtype: str, found: list[dict], truth: list[dict]) -> list[float]:
    """Print and return the gradient distances of the first and the last step."""
    rows = [gradients_apart(ours, theirs) for ours, theirs in zip(found, truth, strict=True)]
    ends = zip(("first", "last"), rows, strict=True)
    parts = ", ".join(f"{where} {worst:.2e} ({whose})" for where, (worst, whose) in ends)
    print(f"{name:<10}{dtype:<10} gradients {parts}", flush=True)
    return [worst for worst, _ in rows]


if __name__ == "__main__":
    raise SystemExit(main())
