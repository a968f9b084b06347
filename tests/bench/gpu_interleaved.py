"""Time calls of ampkit and PyTorch alternately, on one stream and with the same events; for `gpu_kernels.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gpu_steps

import ampkit
from ampkit import backends

Call = Callable[[], Any]
TURNS = 5


class PyTorchSide:
    """PyTorch on `device`. trouble: why it cannot be measured, "" if it can."""

    def __init__(self, device: str = "cuda"):
        self.device, self.torch, self.trouble = device, None, ""
        try:
            import torch
        except Exception as error:  # not installed, or broken
            self.trouble = f"no PyTorch ({last_line(error)})"
            return
        if device == "cuda" and not torch.cuda.is_available():
            self.trouble = "PyTorch sees no GPU"
            return
        self.torch = torch
        gpu_steps.set_precision(torch)

    def make(self, *shape: int, dtype: Any = ampkit.float32, grad: bool = False) -> Any:
        made = self.torch.randn(*shape, device=self.device).to(getattr(self.torch, dtype.name))
        return made.requires_grad_(grad)

    def prepared(self, prepare: Callable[[], Call] | None) -> tuple[Call | None, str]:
        """Return the call that `prepare` makes, after one warm-up call, or None and the reason."""
        if self.torch is None or prepare is None:
            return None, self.trouble or "PyTorch has no equivalent"
        try:
            call = prepare()
            call()
        except Exception as error:
            return None, last_line(error)
        return call, ""

    def free(self) -> None:
        if self.torch is not None and self.device == "cuda":
            self.torch.cuda.empty_cache()


def last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def row(ours: Call, prepare: Callable[[], Call] | None, beside: PyTorchSide, count: int) -> dict[str, Any]:
    """Seconds per call of each library, in turns; `seconds` is the median of ours, `why` PyTorch's error."""
    ours()
    theirs, why = beside.prepared(prepare)
    sides = {"ours": ours} | ({"theirs": theirs} if theirs else {})
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TURNS):
        for name, call in sides.items():
            times[name].append(_seconds(call, count))
    return {**times, "seconds": statistics.median(times["ours"])} | ({} if theirs else {"why": why})


def _seconds(call: Call, count: int) -> float:
    gpu: Any = backends.get()
    start = gpu.record_event("turn")
    for _ in range(count):
        call()
    return float(gpu.elapsed_time(start, gpu.record_event())) / count


@contextmanager
def unchecked() -> Iterator[None]:
    """Within the block labels are not checked."""
    gpu: Any = backends.get()
    gpu.raise_if = lambda *given: None
    try:
        yield
    finally:
        del gpu.raise_if


@contextmanager
def allowed(beside: PyTorchSide, used: bool) -> Iterator[None]:
    """Within the block both libraries use TF32, or neither."""
    before = ampkit.get_float32_matmul_precision()
    ampkit.set_float32_matmul_precision("high" if used else "highest")
    if beside.torch is not None:
        gpu_steps.set_precision(beside.torch, used)
    try:
        yield
    finally:
        ampkit.set_float32_matmul_precision(before)
        if beside.torch is not None:
            gpu_steps.set_precision(beside.torch)
