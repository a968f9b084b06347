"""Training steps on two ranks of one thread: beside PyTorch's DDP on gloo, and beside one rank of two threads.

    pip install torch 'ampkit[mpi]' && python tests/bench/ranks.py [--work gpt] [--rounds 9] [--only ampkit] [--dtype D]
    python tests/bench/ranks.py --stage 3 --only 2x1

With --stage 3 `fully_shard` shares parameters out in both libraries, layer by layer, in place of DDP.

Each variant is a run of its own, with the same initial weights and global batch; in each round they take a few steps in
turn, while the others sleep. Figures are medians over the rounds. For ampkit's ranks the table also has steps without
communication, and with all communication after backward. Hidden is the part of the seconds in collectives during which
backward went on, not waiting at its end. The cores' time for sums and copies is not hidden by that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import peers
from processes import Worker

import ampkit
from ampkit import distributed as dist
from ampkit import ops, optim
from ampkit.distributed import reduction
from ampkit.distributed.buckets import Bucket
from ampkit.distributed.environment import launched
from ampkit.nn.parallel import DistributedDataParallel

STEPS, WARMUP = 2, 1
DURING, AFTER, NEVER = "during backward", "after backward", "never"  # when gradients are communicated
RANKS = {"ampkit 2x1": 2, "torch 2x1": 2, "ampkit 1x2": 1}  # ranks x threads


# a rank

seconds_in: dict[str, float] = {"collectives": 0.0, "waiting": 0.0}


def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args)
        finally:
            seconds_in[name] += time.perf_counter() - start

    return call


def part(values: Any) -> Any:
    """This rank's part of a batch."""
    here = launched()
    return values[len(values) * here.rank // here.world_size : len(values) * (here.rank + 1) // here.world_size].copy()


def shared_out(model: Any, fully_shard: Callable[..., Any]) -> Any:
    """A GPT with each layer shared out by itself, then the rest."""
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    return model


def our_step(work: peers.Work, dtype: str, stage: int) -> Callable[[int, str], None]:
    dist.init_process_group()
    reduction.all_reduce, Bucket.finish = timed(reduction.all_reduce, "collectives"), timed(Bucket.finish, "waiting")
    ampkit.set_num_threads(2 // dist.get_world_size())
    model: Any = peers.build(work)
    model = shared_out(model, dist.fully_shard) if stage else DistributedDataParallel(model)
    optimizer = optim.AdamW(model.parameters(), lr=3e-4)
    data = [(ampkit.tensor(part(x)), ampkit.tensor(part(y))) for x, y in peers.batches(work)]

    def step(number: int, communication: str) -> None:
        x, y = data[number % len(data)]
        with nullcontext() if stage or communication == DURING else model.no_sync():
            with nullcontext() if dtype == "float32" else ampkit.autocast(dtype=dtype):
                loss = ops.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
        for bucket in model._buckets if communication == AFTER else ():
            bucket.launch(model.process_group, None)
        for bucket in model._buckets if communication == AFTER else ():
            bucket.finish()
        optimizer.step()
        optimizer.zero_grad()

    return step


def their_step(work: peers.Work, dtype: str, meeting: str, stage: int) -> Callable[[int, str], None]:
    import pytorch_models
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as TorchDDP

    torch.set_num_threads(1)
    here = launched()
    torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=here.rank, world_size=here.world_size)
    model = pytorch_models.load(getattr(pytorch_models, work.model)(**work.options), peers.build(work))
    model = shared_out(model, fully_shard) if stage else TorchDDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = [(torch.from_numpy(part(x)), torch.from_numpy(part(y))) for x, y in peers.batches(work)]

    def step(number: int, communication: str) -> None:
        x, y = data[number % len(data)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != "float32"):
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def agreed(library: str, request: Any) -> Any:
    """The request of rank 0, on all ranks; they sleep until it comes."""
    said = [request]
    if library == "ampkit":
        dist.broadcast_object_list(said)
    else:
        import torch

        torch.distributed.broadcast_object_list(said)
    return said[0]


def rank(work: str, library: str, dtype: str, meeting: str, stage: str, clock: Callable[[], float]) -> None:
    """Take the steps that rank 0 reads from stdin, [number, communication], and print seconds per step."""
    chosen = peers.WORK[work]
    ours = library == "ampkit"
    step = our_step(chosen, dtype, int(stage)) if ours else their_step(chosen, dtype, meeting, int(stage))
    done, first = 0, launched().rank == 0
    while request := agreed(library, sys.stdin.readline() if first else None):
        count, communication = json.loads(request)
        seconds_in.update(collectives=0.0, waiting=0.0)
        start = clock()
        for number in range(done, done + count):
            step(number, communication)
        done += count
        if first:
            spent = [clock() - start, *seconds_in.values()]
            print(json.dumps([seconds / count for seconds in spent]), flush=True)


# the rounds


def start_ranks(ranks: int, arguments: list[str]) -> None:
    """Become mpiexec, or a process that runs alone."""
    threads = 2 // ranks
    os.environ["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, __file__, "--rank", *arguments]
    launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    os.execvp((launcher or command)[0], [*launcher, *command])


def measured(
    work: str, dtype: str, names: list[str], rounds: int, clock: list[str], stage: int
) -> dict[tuple[str, str], Any]:
    """Median seconds per step, in collectives and waiting for them, by variant and when it communicates."""
    meeting = f"/tmp/ranks-{os.getpid()}-{dtype}"

    def worker(name: str) -> Worker:
        return Worker(
            [__file__, *clock, "--start", str(RANKS[name]), work, name.split()[0], dtype, meeting, str(stage)]
        )

    workers = {name: worker(name) for name in names}
    times: dict[tuple[str, str], list[Any]] = {}
    for round_ in range(rounds + 1):
        for name, process in workers.items():
            for communication in (DURING, AFTER, NEVER) if name == "ampkit 2x1" and not stage else (DURING,):
                seconds = process.ask([STEPS if round_ else WARMUP, communication])
                if round_:
                    times.setdefault((name, communication), []).append(seconds)
    for process in workers.values():
        process.end()
    return {key: list(map(statistics.median, zip(*rows, strict=True))) for key, rows in times.items()}


def table(work: str, dtype: str, found: dict[tuple[str, str], Any]) -> str:
    head = ["| ranks x threads | gradients are communicated | ms per step |", "|---|---|---|"]
    lines = [f"### {work}, {dtype}", "", *head]
    lines += [f"| {name} | {when} | {seconds * 1e3:.1f} |" for (name, when), (seconds, *_) in found.items()]
    if ("ampkit 2x1", DURING) in found:
        ours, collectives, waiting = found["ampkit 2x1", DURING]
        for name, said in (("torch 2x1", "torch / ampkit"), ("ampkit 1x2", "throughput of 2x1 / 1x2")):
            if (name, DURING) in found:
                lines.append(f"\n{said}: {found[name, DURING][0] / ours:.2f}")
        if not collectives:  # of stage 3, which has others
            return "\n".join(lines)
        lines.append(f"\n{collectives * 1e3:.1f} ms in collectives, {waiting * 1e3:.1f} ms of waiting for them")
        lines.append(f"\nhidden: {1 - waiting / collectives:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", default="gpt", choices=peers.WORK)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--only", nargs="+", default=[""], help="variants whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds of CPU time of a rank per thread, for busy machines"
    )
    parser.add_argument("--stage", type=int, default=0, choices=(0, 3), help="3: of a gpt, by fully_shard")
    parser.add_argument("--start", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        threads = int(os.environ["OMP_NUM_THREADS"])
        rank(*args.rank, (lambda: time.process_time() / threads) if args.cpu_time else time.perf_counter)
    elif args.start:
        start_ranks(int(args.start[0]), [*args.start[1:], *["--cpu-time"] * args.cpu_time])
    else:
        print(peers.about(2, args.cpu_time), end="\n\n", flush=True)
        clock = ["--cpu-time"] * args.cpu_time
        if args.stage and peers.WORK[args.work].model != "gpt":
            parser.error(f"--stage 3 needs a gpt, got {args.work}")
        names = [name for name in RANKS if any(part in name for part in args.only)]
        for dtype in args.dtype:
            print(
                table(args.work, dtype, measured(args.work, dtype, names, args.rounds, clock, args.stage)),
                end="\n\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
