"""Time training steps of ampkit or PyTorch, one variant per process; for `gpu.py`.

    python tests/bench/gpu_steps.py WORK VARIANT [--device cuda] [--tiny]      prints the results as one line of JSON

A variant is a library, a precision (mixed, float32, or tf32: float32 whose products may use TF32) and a mode:
`compiled` is ampkit.compile; for PyTorch `compile`, `reduce-overhead` and `max-autotune` are modes of torch.compile
over model and loss, and `graph` is a whole step captured as one CUDA graph. PyTorch runs with fused AdamW,
channels-last convolutions and cuDNN's benchmark mode, and, like ampkit, without TF32 unless the variant says so and
without 16-bit accumulation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gpu_facts
import numpy as np

import ampkit
from ampkit import backends, models, ops, optim

BATCHES = 4
WARM_UP = 6  # steps that compile, warm up and record


class Work(NamedTuple):
    """A model, its batch, the 16-bit dtype of mixed precision, and the unit in which a step is counted."""

    model: str
    options: dict[str, Any]
    batch: tuple[int, ...]
    classes: int
    dtype: str
    unit: str
    steps: int  # in a block

    @property
    def per_step(self) -> int:
        return self.batch[0] * (self.batch[1] if self.unit == "tokens" else 1)


_GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
_NANO = {"vocab_size": 65, "block_size": 256, "n_layer": 6, "n_head": 6, "n_embd": 384}
WORK = {
    "gpt2": Work("gpt", _GPT2, (16, 1024), 50257, "bfloat16", "tokens", 5),
    "resnet50": Work("resnet50", {}, (256, 3, 224, 224), 1000, "float16", "images", 5),
    "mlp": Work("mlp", {"in_features": 64, "hidden": [256, 256]}, (64, 64), 10, "float16", "samples", 200),
    "nano": Work("gpt", _NANO, (8, 256), 65, "bfloat16", "tokens", 50),
}
_TINY_GPT = {"vocab_size": 50, "block_size": 16, "n_layer": 1, "n_head": 2, "n_embd": 16}
_TINY = WORK["gpt2"]._replace(options=_TINY_GPT, batch=(2, 16), classes=50, steps=1)
TINY = {
    "gpt2": _TINY,
    "resnet50": WORK["mlp"]._replace(steps=1),
    "mlp": WORK["mlp"]._replace(batch=(4, 64), steps=2),
    "nano": _TINY,
}
MODES = {"compile": None, "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune"}


def batches(work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    if work.unit == "tokens":
        tokens = [rng.integers(0, work.classes, (work.batch[0], work.batch[1] + 1)) for _ in range(BATCHES)]
        return [(x[:, :-1].copy(), x[:, 1:].copy()) for x in tokens]
    labels = [rng.integers(0, work.classes, work.batch[0]) for _ in range(BATCHES)]
    return [(rng.standard_normal(work.batch).astype(np.float32), y) for y in labels]


def built(work: Work) -> Any:
    """Build the model on the CPU, always with the same weights."""
    before = ampkit.get_default_device()
    ampkit.set_default_device("cpu")
    ampkit.manual_seed(0)
    model = getattr(models, work.model)(**work.options)
    ampkit.set_default_device(before)
    return model


class Ours:
    """Training steps of ampkit on the default device."""

    def __init__(self, work: Work, flags: list[str]):
        ampkit.set_float32_matmul_precision("high" if "tf32" in flags else "highest")
        self.device = ampkit.get_default_device()
        self.model = built(work).to(self.device)
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-4)
        mixed = "mixed" in flags
        self.scaler = ampkit.GradScaler(enabled=mixed and work.dtype == "float16")
        self.region = ampkit.autocast(self.device.type, dtype=work.dtype, enabled=mixed)
        self.data = [tuple(ampkit.tensor(a, device=self.device) for a in pair) for pair in batches(work)]
        self.step = ampkit.compile(self._step) if "compiled" in flags else self._step

    def _step(self, x: Any, y: Any) -> Any:
        with self.region:
            loss = ops.cross_entropy(self.model(x).flatten(0, -2), y.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def time(self, count: int, first: int) -> tuple[float, list[float]]:
        """Time `count` steps; return seconds per step and the losses."""
        there: Any = backends.get()
        start = there.record_event("block")
        losses = [self.step(*self.data[(first + i) % BATCHES]) for i in range(count)]
        seconds = there.elapsed_time(start, there.record_event())
        return seconds / count, [float(loss) for loss in losses]

    def memory(self, count: int) -> dict[str, int]:
        """Peak bytes during `count` steps: live arrays, pools, the whole card. A graph's pool counts in full."""
        gpu: Any = backends.get()
        ampkit.cuda.synchronize()
        ampkit.cuda.empty_cache()
        ampkit.cuda.reset_peak_memory_stats()  # from now on an allocation takes a microsecond longer
        self.time(count, 0)
        free, whole = gpu.xp.cuda.Device().mem_info
        held = ampkit.cuda.max_memory_allocated(), ampkit.cuda.memory_reserved()
        return {"allocated": held[0], "reserved": held[1], "card": whole - free}

    def refused(self) -> list[str]:
        """The calls for which cublasLt and cuDNN had no algorithm."""
        return gpu_facts.refused()


class Theirs:
    """Training steps of PyTorch on a GPU, or, in tests, on the CPU."""

    def __init__(self, work: Work, flags: list[str], device: str = "cuda"):
        import pytorch_models
        import torch

        set_precision(torch, tf32="tf32" in flags)
        self.torch, self.work, self.device, self.mixed = torch, work, device, "mixed" in flags
        order = torch.channels_last if len(work.batch) == 4 else torch.preserve_format
        model = getattr(pytorch_models, work.model)(**work.options)
        self.model = pytorch_models.load(model, built(work)).to(device, memory_format=order)
        mode = next((flag for flag in flags if flag in MODES), None)
        self.loss = self._loss if mode is None else torch.compile(self._loss, mode=MODES[mode])
        given = {"lr": 3e-4, "fused": True, "capturable": "graph" in flags}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **given)
        self.scaler = torch.amp.GradScaler(device, enabled=self.mixed and work.dtype == "float16")
        pairs = ((torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in batches(work))
        self.data = [(x.to(memory_format=order) if x.ndim == 4 else x, y) for x, y in pairs]
        self.step: Callable[..., Any] = Captured(torch, self._step) if "graph" in flags else self._step

    def _loss(self, x: Any, y: Any) -> Any:
        torch = self.torch
        with torch.autocast(self.device, dtype=getattr(torch, self.work.dtype), enabled=self.mixed):
            return torch.nn.functional.cross_entropy(self.model(x).flatten(0, -2), y.flatten())

    def _step(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()  # the next launch of the graph overwrites its results

    def time(self, count: int, first: int) -> tuple[float, list[float]]:
        start = self._mark()
        losses = [self.step(*self.data[(first + i) % BATCHES]) for i in range(count)]
        seconds = self._between(start, self._mark())
        return seconds / count, [float(loss) for loss in losses]

    def _mark(self) -> Any:
        if self.device != "cuda":
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, end: Any) -> float:
        if self.device != "cuda":
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def memory(self, count: int) -> dict[str, int]:
        """As Ours.memory; the private pools of CUDA graphs count in full."""
        cuda = self.torch.cuda
        if self.device != "cuda":
            return {"allocated": 0, "reserved": 0, "card": 0}
        cuda.synchronize()
        cuda.empty_cache()
        cuda.reset_peak_memory_stats()
        self.time(count, 0)
        private = [s for s in cuda.memory_snapshot() if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0)]
        spare = sum(s["total_size"] - s["allocated_size"] for s in private)
        free, whole = cuda.mem_get_info()
        peak = int(cuda.max_memory_allocated()) + spare
        return {"allocated": peak, "reserved": int(cuda.max_memory_reserved()), "card": whole - free}

    def refused(self) -> list[str]:
        return []


def set_precision(torch: Any, tf32: bool = False) -> None:
    """Set PyTorch to ampkit's precision: TF32 or not, 16-bit products accumulated in float32."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True


class Captured:
    """A PyTorch step captured as one CUDA graph after three eager calls, as ampkit.compile does."""

    def __init__(self, torch: Any, step: Callable[..., Any]):
        self.torch, self.step, self.calls = torch, step, 0
        self.stream, self.graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def __call__(self, x: Any, y: Any) -> Any:
        self.calls += 1
        if self.calls <= 3:
            return self._eagerly(x, y)
        if self.calls == 4:
            self.inputs = x.clone(), y.clone()
            with self.torch.cuda.graph(self.graph, stream=self.stream):
                self.out = self.step(*self.inputs)
        for held, new in zip(self.inputs, (x, y), strict=True):
            held.copy_(new)
        self.graph.replay()
        return self.out.clone()

    def _eagerly(self, x: Any, y: Any) -> Any:
        outside = self.torch.cuda.current_stream()
        self.stream.wait_stream(outside)
        with self.torch.cuda.stream(self.stream):
            out = self.step(x, y)
        outside.wait_stream(self.stream)
        return out


def measure(name: str, variant: str, tiny: bool, device: str) -> dict[str, Any]:
    """Measure one variant. blocks: milliseconds per step, for each block of steps."""
    work, (library, *flags) = (TINY if tiny else WORK)[name], variant.split()
    if library == "ampkit":
        gpu_facts.use(device)
    begun = time.perf_counter()
    steps: Any = Ours(work, flags) if library == "ampkit" else Theirs(work, flags, "cpu" if tiny else "cuda")
    _, losses = steps.time(WARM_UP, 0)
    ready, times = time.perf_counter() - begun, []
    while len(times) < (1 if tiny else 7) and (len(times) < 3 or sum(times) * work.steps < 12):
        times.append(steps.time(work.steps, WARM_UP)[0])
    figures = {"blocks": [t * 1e3 for t in times], "rate": work.per_step / statistics.median(times), "ready": ready}
    return {**figures, **steps.memory(BATCHES), "losses": losses[:3], "refused": steps.refused()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=WORK)
    parser.add_argument("variant")
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measure(args.work, args.variant, args.tiny, args.device)), flush=True)


if __name__ == "__main__":
    main()
