"""Random trainings, compiled on a CPU beside eager ones, bit for bit: `python -m tests.fuzz.trainings`.

    python -m tests.fuzz.trainings [--trials 300] [--seed 0] [--trial N]

A few layers, a dtype, an optimizer, and a mode of `ampkit.compile` for the step, its loss or the model. Between the
steps something changes: sizes, modes, hooks, parameters and what of them is trained. Launches of any size wait, and
results of any size are computed anew. Exit status 1 if something differs.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.launch_queue import queue
from ampkit.core.capture import anew
from ampkit.ops.nn import fused

WIDTH, CLASSES, STEPS = 32, 5, 7
Found = list[tuple[str, Any]]


class Of(nn.Module):
    """A function of its modules and the input."""

    def __init__(self, function: Callable[..., Any], *modules: Any):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x: Any) -> Any:
        return self.function(x, *self.parts)


def _linear(inputs: int = 1, outputs: int = 1, bias: bool = True) -> Any:
    return nn.Linear(inputs * WIDTH, outputs * WIDTH, bias=bias)


def _gated(x: Any, both: Any, out: Any) -> Any:
    a, b = both(x).chunk(2, -1)
    return out(ops.silu(a) * b)


def _fused_layer(x: Any, a: Any, b: Any) -> Any:
    return ops.linear_gelu_linear(x, a.weight, a.bias, b.weight, b.bias)


def _attention(x: Any, three: Any, out: Any) -> Any:
    q, k, v = (y.reshape(*y.shape[:2], 4, -1).transpose(1, 2) for y in three(x).chunk(3, -1))
    seen = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + out(seen.transpose(1, 2).reshape(*x.shape))


def _sum_and_norm(x: Any, linear: Any, norm: Any) -> Any:
    total, normed = ops.add_layer_norm(x, linear(x).to(x.dtype), WIDTH, norm.weight, norm.bias)
    return total + normed


def _in_place(x: Any) -> Any:
    y = x * 1.0
    y.mul_(0.5)
    y += x
    return y


def _plain_norm(x: Any, scale: Any) -> Any:
    return scale(x * ampkit.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))


def _convolution(x: Any, convolution: Any, norm: Any) -> Any:
    return ops.relu(norm(convolution(x.transpose(1, 2)))).transpose(1, 2)


LAYERS: list[Callable[[], Any]] = [
    _linear,
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.RMSNorm(WIDTH),
    lambda: nn.Sequential(_linear(), nn.GELU(), _linear()),
    lambda: nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.1, batch_first=True),
    nn.PReLU,
    nn.Hardswish,
    nn.Tanh,
    lambda: nn.Softmax(-1),
    lambda: nn.Dropout(0.2),
    lambda: Of(_gated, _linear(outputs=2), _linear(bias=False)),
    lambda: Of(lambda x, a, b: x + _fused_layer(x, a, b), _linear(outputs=4), _linear(4)),
    lambda: Of(_fused_layer, _linear(outputs=4), _linear(4)),
    lambda: Of(_attention, _linear(outputs=3), _linear()),
    lambda: Of(_sum_and_norm, _linear(), nn.LayerNorm(WIDTH)),
    lambda: Of(_in_place),
    lambda: Of(_plain_norm, _linear()),
    lambda: Of(_convolution, nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm1d(WIDTH)),
    lambda: Of(lambda x, join: join(ampkit.cat([x, -x.roll(1, -1)], -1)), _linear(2)),
    lambda: Of(lambda x, *parts: ampkit.recompute(nn.Sequential(*parts), x), nn.LayerNorm(WIDTH), _linear(), nn.SiLU()),
]
OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda parameters: optim.AdamW(parameters, lr=1e-2),
    lambda parameters: optim.SGD(parameters, lr=1e-2, momentum=0.9),
    lambda parameters: optim.Adam(parameters, lr=1e-2),
]


class Training:
    """One training. Its choices depend on the seed alone; compiled: whether `ampkit.compile` wraps what they say."""

    def __init__(self, seed: int, compiled: bool):
        self.random = np.random.default_rng(seed)
        ampkit.manual_seed(seed)
        layers = [self.pick(LAYERS)() for _ in range(self.random.integers(2, 7))]
        self.model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
        self.parameters = list(self.model.parameters())
        for parameter in self.parameters if self.chance(4) else ():
            parameter.requires_grad_(not self.chance(3))
        self.train_some()
        self.optimizer = self.pick(OPTIMIZERS)(self.parameters)
        self.dtype = self.pick([None, ampkit.bfloat16, ampkit.float16])
        self.scaler = ampkit.GradScaler("cpu", enabled=self.dtype is ampkit.float16)
        self.clips, self.batches = self.chance(3), int(self.random.integers(1, 4))
        self.zeroes = self.chance(2) or self.dtype is ampkit.float16
        self.size, self.handles, self.seen = (4, 8), list[Any](), list[float]()
        options = {"mode": self.pick([None, "default", "reduce-overhead"]), "dynamic": self.pick([None, True, False])}
        parts = self.random.integers(1, 8)  # of three, at least one

        def wrap(part: int, function: Any) -> Any:
            return ampkit.compile(function, **options) if compiled and parts & part else function

        self.call, self.loss, self.step = wrap(1, self.model), wrap(2, self._loss), wrap(4, self._step)

    def pick(self, choices: list[Any]) -> Any:
        return choices[self.random.integers(len(choices))]

    def chance(self, of: int) -> bool:
        return bool(self.random.integers(of) == 0)

    def train_some(self) -> None:
        """Train the last parameter if no other is."""
        if not any(parameter.requires_grad for parameter in self.parameters):
            self.parameters[-1].requires_grad_(True)

    def batch(self) -> tuple[Any, Any]:
        x = self.random.normal(size=(*self.size, WIDTH)).astype(np.float32)
        return ampkit.tensor(x), ampkit.tensor(self.random.integers(0, CLASSES, self.size))

    def _loss(self, x: Any, y: Any) -> Any:
        with ampkit.autocast("cpu", dtype=self.dtype or ampkit.bfloat16, enabled=self.dtype is not None):
            out = self.call(x)
            return ops.cross_entropy(out.flatten(0, 1), y.flatten()) / self.batches

    def _step(self, batches: list[Any]) -> Any:
        total: Any = 0
        for x, y in batches:
            loss = self.loss(x, y)
            self.scaler.scale(loss).backward()
            total = total + loss.detach()
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            optim.clip_grad_norm_(self.parameters, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.zeroes:
            self.optimizer.zero_grad()
        return total

    # what happens between steps

    def nothing(self) -> None:
        """Nothing changes."""

    def resize(self) -> None:
        self.size = int(self.random.integers(2, 6)), int(self.random.integers(1, 20))

    def evaluate(self) -> None:
        self.model.eval()
        with ampkit.no_grad():
            self.seen.append(float(self.call(self.batch()[0]).float().sum()))
        self.model.train()

    def change_in_place(self) -> None:
        with ampkit.no_grad():
            self.pick(self.parameters).mul_(0.9)

    def assign_data(self) -> None:
        parameter = self.pick(self.parameters)
        parameter.data = parameter.data * 1.1 if self.chance(2) else parameter.data.clone()

    def freeze(self) -> None:
        parameter = self.pick(self.parameters)
        parameter.requires_grad_(not parameter.requires_grad)
        self.train_some()

    def hook_forward(self) -> None:
        module = self.pick(list(self.model.modules()))
        self.handles.append(module.register_forward_hook(lambda module, given, out: self.see(out)))

    def hook_backward(self) -> None:
        module = self.pick(list(self.model))
        self.handles.append(module.register_full_backward_hook(lambda module, dx, dy: self.see(dy[0])))

    def hook_gradient(self) -> None:
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        self.handles.append(self.pick(trained).register_hook(lambda gradient: gradient * 0.5))

    def unhook(self) -> None:
        if self.handles:
            self.handles.pop(int(self.random.integers(len(self.handles)))).remove()

    def lower_rate(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = float(group["lr"]) * 0.7

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.chance(2))

    def see(self, tensor: Any) -> None:
        if isinstance(tensor, ampkit.Tensor):
            self.seen.append(float(tensor.detach().float().abs().sum()))

    EVENTS = (
        nothing, resize, evaluate, change_in_place, assign_data, freeze, hook_forward, hook_backward, hook_gradient,
        unhook, lower_rate, drop_gradients,
    )  # fmt: skip

    def run(self) -> Found:
        """What each step leaves."""
        found: Found = []
        for step in range(STEPS):
            event = self.EVENTS[self.random.integers(len(self.EVENTS))]
            event(self)
            batches = [self.batch() for _ in range(self.batches)]
            if self.chance(5):
                batches = [(x.requires_grad_(), y) for x, y in batches]
            where = f"step {step} after {event.__name__}"
            found.append((f"loss of {where}", _bits(self.step(batches))))
            found += [(f"gradient of the input of {where}", _bits(x.grad)) for x, _ in batches]
            for i, parameter in enumerate(self.parameters):
                found += [(f"{name} {i} of {where}", _bits(t)) for name, t in _parts(parameter)]
        found += [("buffer", _bits(buffer)) for buffer in self.model.buffers()]
        return [*found, ("what hooks and evaluations saw", repr(self.seen))]


def _parts(parameter: Any) -> list[tuple[str, Any]]:
    return [("gradient", parameter.grad), ("parameter", parameter)]


def _bits(tensor: Any) -> bytes | None:
    return None if tensor is None else tensor.numpy(force=True).tobytes()


@contextmanager
def any_size() -> Iterator[None]:
    """Within the block launches of any size wait, and results of any size are computed anew."""
    with patch.object(anew, "MIN_BYTES", 256), patch.object(fused, "_PIECE", 256), patch.object(queue, "fills", True):
        if not available():
            yield
            return
        from ampkit.kernels.cpu.pointwise import chain, elementwise

        with patch.object(elementwise, "MIN_WAITING", 1), patch.object(chain, "MIN_WAITING", 1):
            yield


def outcome(seed: int, compiled: bool) -> Found:
    """What a training leaves, or its error."""
    try:
        return Training(seed, compiled).run()
    except Exception as error:
        return [("error", f"{type(error).__name__}: {error}")]


def difference(seed: int) -> str:
    """What the compiled training leaves otherwise than the eager one; empty if nothing."""
    with any_size(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager, compiled = outcome(seed, False), outcome(seed, True)
    if eager == compiled:
        return ""
    errors = [found[-1][1] for found in (eager, compiled) if found[-1][0] == "error"]
    first = errors or [one[0] for one, other in zip(eager, compiled, strict=True) if one != other]
    return f"trial {seed}: {first[0]}"


def main() -> None:
    """Try trainings, and print those that differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first trial")
    parser.add_argument("--trial", type=int, help="only this one")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.trials) if args.trial is None else [args.trial]
    found = 0
    for seed in seeds:
        if said := difference(seed):
            found += 1
            print(said, flush=True)
    print(f"{len(seeds)} trials, {found} findings")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
