"""What each way to train a GPT on two ranks holds and sends, counted: bytes of weights and moments, bytes of a step.

    python -m tests.bench.parallel_bytes [--layers 4] [--width 128] [--ranks 2]

The ranks are threads. The model has 256 tokens, tied embeddings and a context of 128; a step has 16 sequences, and 8
micro-batches in a pipeline.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ampkit
from ampkit import ops, optim
from ampkit.core import random
from ampkit.distributed import fully_shard
from ampkit.distributed.pipelining.model_stage import ModelStage
from ampkit.distributed.tensor import parallelize_module
from ampkit.nn.parallel import DistributedDataParallel
from tests.distributed.thread_ranks import ThreadTransport, on_ranks

BATCH, CONTEXT, MICROBATCHES = 16, 128, 8
Run = tuple[Any, Callable[[], Any]]  # a model, and what gives it the gradients of a batch


def loss_of(output: Any, targets: Any) -> Any:
    return ops.cross_entropy(output.flatten(0, 1), targets.flatten())


def part(values: Any, group: Any) -> Any:
    return values[BATCH // group.size() * group.rank() : BATCH // group.size() * (group.rank() + 1)]


def data_parallel(model: Any, group: Any, x: Any, y: Any) -> Run:
    replica = DistributedDataParallel(model, process_group=group)
    return model, lambda: loss_of(replica(part(x, group)), part(y, group)).backward()


def stage_3(model: Any, group: Any, x: Any, y: Any) -> Run:
    for block in model.transformer.h:
        fully_shard(block, mesh=group)
    fully_shard(model, mesh=group)
    return model, lambda: loss_of(model(part(x, group)), part(y, group)).backward()


def tensor(model: Any, group: Any, x: Any, y: Any) -> Run:
    parallelize_module(model, group)
    return model, lambda: loss_of(model(x), y).backward()


def pipeline(model: Any, group: Any, x: Any, y: Any) -> Run:
    stage, scaler = ModelStage(model, group), ampkit.GradScaler(enabled=False)
    return model, lambda: stage.forward_backward(loss_of, [(x, y)], MICROBATCHES, scaler)


WAYS = {"data parallel": data_parallel, "stage 3": stage_3, "tensor": tensor, "pipeline": pipeline}


@contextmanager
def counted(sent: list[int]) -> Iterator[None]:
    """A context in which the bytes of each message of the ranks are appended to `sent`."""
    exchange, send, lock = ThreadTransport.exchange_others, ThreadTransport.send, threading.Lock()

    def exchange_counted(self: Any, call: Any, arrays: Any, received: Any) -> None:
        with lock:
            sent.extend(array.nbytes for rank, array in enumerate(arrays) if rank != self.rank and array.size)
        exchange(self, call, arrays, received)

    def send_counted(self: Any, call: Any, array: Any, to: int, tag: int) -> Any:
        with lock:
            sent.append(array.nbytes)
        return send(self, call, array, to, tag)

    ThreadTransport.exchange_others, ThreadTransport.send = exchange_counted, send_counted
    try:
        yield
    finally:
        ThreadTransport.exchange_others, ThreadTransport.send = exchange, send


def trained(way: Callable[..., Run], steps: int, options: argparse.Namespace) -> tuple[list[int], list[int]]:
    """The bytes of weights and moments on each rank after some steps, and those of all messages."""
    sizes = {"n_layer": options.layers, "n_embd": options.width, "n_head": options.width // 32}

    def program(group: Any) -> int:
        with random.drawing_from(random.Stream(0)):
            model = ampkit.models.gpt("nano", **sizes)
            x, y = (ampkit.randint(0, 256, (BATCH, CONTEXT)) for _ in range(2))
        model, gradients = way(model, group, x, y)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(steps):
            gradients()
            optimizer.step()
            optimizer.zero_grad()
        moments = [each for entry in optimizer.state_dict()["state"].values() for each in entry.values()]
        return sum(each.array.nbytes for each in (*model.parameters(), *moments))

    sent: list[int] = []
    with counted(sent):
        held = on_ranks(options.ranks, program)
    return held, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 4), ("width", 128), ("ranks", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    for name, way in WAYS.items():
        (_, before), (held, after) = (trained(way, steps, options) for steps in (2, 3))  # all but what the start sends
        bytes_, messages = sum(after) - sum(before), len(after) - len(before)
        said = ", ".join(f"{each / 1e6:.1f}" for each in held)
        print(f"{name}: ranks hold {said} MB; a step sends {bytes_ / 1e6:.1f} MB in {messages} messages")


if __name__ == "__main__":
    main()
