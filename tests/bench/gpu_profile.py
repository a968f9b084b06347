"""List the CUDA kernels of a training step, with their times; for a variant of `gpu_steps.py`.

    python tests/bench/gpu_profile.py gpt2 "ampkit mixed compiled"      microseconds per step, calls per step, kernel

The times are CUPTI's, which PyTorch's profiler records for all kernels of the process. `busy` is the time in which at
least one kernel runs, `step` the time from the first kernel of a step to that of the next.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import gpu_facts  # noqa: E402
from gpu_steps import WARM_UP, WORK, Ours, Theirs  # noqa: E402

KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
SHORT = 110  # characters of a kernel's name


def recorded(steps: Any, count: int) -> list[dict[str, Any]]:
    """The kernels, copies and fills of `count` steps: name, ts and dur in microseconds."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        steps.time(count, 0)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text("utf-8"))["traceEvents"]
    return [e for e in events if e.get("cat") in KINDS]


def table(events: list[dict[str, Any]], count: int) -> str:
    """The kernels by their total time."""
    total, calls = Counter[str](), Counter[str]()
    for event in events:
        name = _short(event["name"])
        total[name] += event["dur"]
        calls[name] += 1
    lines = [f"{us / count:10.1f} us {calls[name] / count:7.1f}  {name}" for name, us in total.most_common()]
    busy, until = 0.0, 0.0
    for event in sorted(events, key=lambda e: e["ts"]):
        end = event["ts"] + event["dur"]
        busy += max(0.0, end - max(event["ts"], until))
        until = max(until, end)
    whole = until - min(event["ts"] for event in events)
    return "\n".join([f"busy {busy / count:.0f} us of a step of {whole / count:.0f} us", *lines])


def _short(name: str) -> str:
    return re.sub(r"void |at::native::|\(anonymous namespace\)::|<unnamed>::", "", name)[:SHORT]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", choices=WORK)
    parser.add_argument("variant")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    work, (library, *flags) = WORK[args.work], args.variant.split()
    if library == "ampkit":
        gpu_facts.use("cuda")
    steps: Any = Ours(work, flags) if library == "ampkit" else Theirs(work, flags)
    steps.time(WARM_UP, 0)
    print(f"{args.work} {args.variant}: {table(recorded(steps, args.steps), args.steps)}")


if __name__ == "__main__":
    main()
