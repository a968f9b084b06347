"""Compare one model's first training steps on the GPU, eager and recorded, with the CPU's; for `first_run.py`.

    python tests/bench/device_steps.py MODEL DTYPE [--device cuda]     prints the result as one line of JSON

From the same weights, batches and random numbers: the distance of losses and first gradients from the CPU's in float64,
beside that of the CPU in the same precision, which bounds it where a model amplifies rounding; whether recorded steps
are bit-identical to eager ones, peak memory, the ops that ran without a kernel, and the calls for which cublasLt and
cuDNN had no algorithm.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import gpu_facts
import numpy as np

import ampkit
from ampkit import models, ops, optim

STEPS = 6  # eager ones of a compiled step first, then recorded ones
DTYPES = ("float32", "bfloat16", "float16")
LOSS = {"float32": 1e-3, "bfloat16": 3e-2, "float16": 3e-2}
# A ReLU whose input changes sign by rounding makes gradients jump, in any library; a wrong kernel is further off.
GRADIENT = {"float32": 0.02, "bfloat16": 0.7, "float16": 0.3}
AMPLIFIED = 3  # the GPU's distance over the CPU's, where that exceeds these bounds
# Relative to the largest gradient norm: a smaller gradient is rounding error, such as that of a bias of keys.
SMALL = {"float32": 1e-6, "bfloat16": 1e-2, "float16": 1e-3}
VIEWS = {"reshape", "reshape_backward", "permute", "permute_backward", "split", "unbind"}  # move nothing


class Model(NamedTuple):
    """A model's arguments and its batch shape, of `classes` tokens or of images."""

    options: dict[str, Any]
    batch: tuple[int, ...]
    classes: int = 10
    tokens: bool = False
    builder: str = ""  # its name in ampkit.models, if different


_GPT = {"vocab_size": 257, "block_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 128}
_BERT = {"preset": "tiny", "vocab_size": 256, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_CIFAR = {"num_classes": 10, "stem": "cifar"}
MODELS = {
    "mlp": Model({"hidden": [32, 32], "dropout": 0.1}, (16, 64)),
    "gpt": Model(_GPT, (4, 64), 257, tokens=True),
    "gpt_dropout": Model({**_GPT, "dropout": 0.1}, (4, 64), 257, tokens=True, builder="gpt"),
    "cnn": Model({"width": 8}, (8, 1, 8, 8)),
    "resnet18": Model(_CIFAR, (4, 3, 32, 32)),
    "bert": Model(_BERT, (4, 64), 256, tokens=True),
    "vit": Model({"num_layers": 2}, (4, 3, 32, 32)),
    "convmixer": Model({}, (4, 3, 32, 32)),
    "lenet5": Model({}, (8, 1, 28, 28)),
    "resnet50": Model({"num_classes": 10}, (4, 3, 64, 64)),
    "vgg11_bn": Model({"num_classes": 10}, (2, 3, 64, 64)),
    "efficientnet_b0": Model({"num_classes": 10}, (4, 3, 64, 64)),
}


class Result(NamedTuple):
    """The losses of STEPS steps, the state dict after them, and whether the steps were recorded."""

    losses: list[float]
    state: dict[str, np.ndarray]
    recorded: bool


class Run:
    """A model, optimizer and data on `device`."""

    def __init__(self, name: str, dtype: str, device: str, compiled: bool = False):
        ampkit.manual_seed(0)
        ampkit.set_default_device("cpu")  # the same weights everywhere
        spec = MODELS[name]
        self.model = getattr(models, spec.builder or name)(**spec.options).to(device)
        if dtype == "float64":
            self.model.double()
        ampkit.set_default_device(device)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = ampkit.GradScaler(enabled=dtype == "float16", init_scale=1024.0)
        mixed = dtype in ("bfloat16", "float16")
        self.region = ampkit.autocast(device, dtype=dtype if mixed else "bfloat16", enabled=mixed)
        wide = np.float64 if dtype == "float64" else np.float32
        batches = [[a.astype(wide) if a.dtype == np.float32 else a for a in _batch(spec, i)] for i in range(STEPS)]
        self.data = [tuple(ampkit.tensor(a, device=device) for a in batch) for batch in batches]
        self.step = ampkit.compile(self._step) if compiled else self._step

    def _loss(self, x: Any, y: Any) -> Any:
        with self.region:
            out = self.model(x)
            return ops.cross_entropy(out.flatten(0, -2), y.flatten())

    def _step(self, x: Any, y: Any) -> Any:
        loss = self._loss(x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def gradients(self) -> dict[str, np.ndarray]:
        """The gradients of the first batch, without loss scaling and without a step."""
        ampkit.manual_seed(1)
        self._loss(*self.data[0]).backward()
        found = {name: _host(p.grad).astype(np.float64) for name, p in self.model.named_parameters()}
        self.optimizer.zero_grad()
        return found

    def steps(self) -> Result:
        ampkit.manual_seed(1)
        losses = [float(self.step(*pair)) for pair in self.data]
        kinds = list(getattr(self.step, "_variants", {}).values())
        recorded = bool(kinds) and all(kind.graph.recording is not None for kind in kinds)
        return Result(losses, {name: _host(value) for name, value in self.model.state_dict().items()}, recorded)


def _host(value: Any) -> Any:
    return value.to("cpu").numpy()


def _batch(spec: Model, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    if spec.tokens:
        tokens = rng.integers(1, spec.classes, (spec.batch[0], spec.batch[1] + 1))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()
    return rng.standard_normal(spec.batch).astype(np.float32), rng.integers(0, spec.classes, spec.batch[0])


def measure(name: str, dtype: str) -> dict[str, Any]:
    """Compare one model in one precision. wrong: messages about results outside the bounds."""
    truth, expected = Run(name, "float64", "cpu").steps().losses, Run(name, "float64", "cpu").gradients()
    cpu, gradients = Run(name, dtype, "cpu").steps().losses, Run(name, dtype, "cpu").gradients()
    eager, memory = _with_peak(lambda: Run(name, dtype, "cuda").steps())
    found = {
        "loss": _loss_distance(truth, eager.losses),
        "loss of the CPU": _loss_distance(truth, cpu),
        "gradient": _distance(expected, Run(name, dtype, "cuda").gradients(), SMALL[dtype]),
        "gradient of the CPU": _distance(expected, gradients, SMALL[dtype])[0],
        "references": _references(Run(name, dtype, "cuda")),
        "memory": {"eager": memory},
        "losses": {"float64": truth, "cpu": cpu, "eager": eager.losses},
        **_recorded(name, dtype, eager),
    }
    found["memory"]["recorded"] = found.pop("peak")
    found["refused"] = gpu_facts.refused()
    return found | {"wrong": _wrong(found, dtype)}


def _recorded(name: str, dtype: str, eager: Result) -> dict[str, Any]:
    # differs: the first difference of recorded from eager steps, or why there are no recorded ones.
    try:
        recorded, peak = _with_peak(lambda: Run(name, dtype, "cuda", compiled=True).steps())
    except ampkit.AmpkitError as error:
        return {"recorded": False, "differs": f"an error: {str(error).splitlines()[0]}", "peak": None}
    return {"recorded": recorded.recorded, "differs": _differs(eager, recorded), "peak": peak}


def _with_peak(work: Callable[[], Result]) -> tuple[Result, dict[str, int]]:
    gc.collect()
    ampkit.cuda.empty_cache()
    ampkit.cuda.reset_peak_memory_stats()
    done = work()
    return done, {"allocated": ampkit.cuda.max_memory_allocated(), "reserved": ampkit.cuda.memory_reserved()}


def _references(run: Run) -> list[str]:
    with ampkit.profile() as found:
        run.step(*run.data[0])
    return sorted(
        {row.name for row in found.rows if row.kernel and row.name not in VIEWS and "_cuda" not in row.kernel}
    )


def _loss_distance(left: list[float], right: list[float]) -> float:
    return max(abs(a - b) / max(abs(a), 1e-6) if np.isfinite(b) else np.inf for a, b in zip(left, right, strict=True))


def _distance(left: dict[str, np.ndarray], right: dict[str, np.ndarray], small: float) -> tuple[float, str]:
    # The largest relative distance (by norms) of a parameter's gradient, and the parameter's name.
    norms = {name: float(np.linalg.norm(g)) for name, g in left.items()}
    floor = small * max(norms.values()) or 1.0
    far = {name: float(np.linalg.norm(right[name] - g)) / max(norms[name], floor) for name, g in left.items()}
    worst = max(far, key=lambda name: far[name] if np.isfinite(far[name]) else np.inf)
    return far[worst], worst


def _differs(eager: Result, recorded: Result) -> str:
    # The first difference in bits of recorded from eager steps, "" if there is none.
    for i, pair in enumerate(zip(eager.losses, recorded.losses, strict=True)):
        if pair[0] != pair[1] and not np.isnan(pair).all():
            return f"the loss of step {i}: {pair[0]} and {pair[1]}"
    left, right = eager.state, recorded.state
    return next((name for name in left if left[name].tobytes() != right[name].tobytes()), "")


def _wrong(found: dict[str, Any], dtype: str) -> list[str]:
    said = []
    (gradient, name), (of_loss, of_gradient) = (
        found["gradient"],
        (found["loss of the CPU"], found["gradient of the CPU"]),
    )
    if not found["loss"] <= max(LOSS[dtype], AMPLIFIED * of_loss):
        said.append(f"losses are {found['loss']:.1e} from float64's, the CPU's {of_loss:.1e}")
    if not gradient <= max(GRADIENT[dtype], AMPLIFIED * of_gradient):
        said.append(f"the gradient of {name} is {gradient:.1e} from float64's, the CPU's {of_gradient:.1e}")
    if not found["recorded"]:
        said.append("its step was not recorded")
    if found["differs"]:
        said.append(f"recorded steps differ from eager ones in {found['differs']}")
    return said


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The results of all models as Markdown; distances are relative, memory in MB."""
    lines = ["| model, precision | loss, CPU's | gradient, CPU's | recorded | allocated: eager, recorded | problems |"]
    return "\n".join([*lines, "|---|---|---|---|---|---|", *(_line(name, row) for name, row in rows.items())]) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    wrong = "; ".join(row["wrong"]).replace("|", "/")
    if "loss" not in row:
        return f"| {name} | | | | | {wrong} |"
    held = [f"{peak['allocated'] / 1e6:.1f}" if peak else "none" for peak in row["memory"].values()]
    bits = "bit-identical" if row["recorded"] and not row["differs"] else "different"
    loss = f"{row['loss']:.1e}, {row['loss of the CPU']:.1e}"
    gradient = f"{row['gradient'][0]:.1e}, {row['gradient of the CPU']:.1e}"
    return f"| {name} | {loss} | {gradient} | {bits} | {', '.join(held)} | {wrong} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("dtype", choices=DTYPES)
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    args = parser.parse_args()
    gpu_facts.use(args.device)
    print(json.dumps(measure(args.model, args.dtype)), flush=True)


if __name__ == "__main__":
    main()
