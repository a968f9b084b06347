"""Times of inference in int8 beside float32 and beside PyTorch's x86 backend, in turns in one process.

    python -m tests.bench.quantized resnet18 bert gpt [--rounds 9] [--threads 1]

With one thread, times are those of the CPU, which other processes disturb less than a wall clock. PyTorch's model is
quantized by torch.ao's FX mode with the default configuration of its x86 backend; of bert and gpt, whose forward FX
does not trace, each Linear by itself.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import ampkit
from ampkit import models
from ampkit.nn import quantization

from . import pytorch_models

BERT = {"num_hidden_layers": 4, "vocab_size": 8192}
GPT = {"vocab_size": 8192, "block_size": 256, "n_layer": 4, "n_head": 12, "n_embd": 768}


def resnet18():
    images = np.random.default_rng(0).normal(size=(8, 3, 224, 224)).astype(np.float32)
    model = models.resnet18()
    model(ampkit.tensor(images))
    return model, pytorch_models.resnet18(), images


def bert():
    model = models.bert("base", **BERT)
    theirs = pytorch_models.BERT(BERT["vocab_size"], 768, BERT["num_hidden_layers"], 12, 3072)
    return model, theirs, np.random.default_rng(0).integers(1, 8192, (8, 128))


def gpt():
    return models.GPT(**GPT), pytorch_models.GPT(**GPT), np.random.default_rng(0).integers(0, 8192, (4, 256))


def quantized_whole(model, *inputs):
    prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), inputs)
    prepared(*inputs)
    return convert_fx(prepared)


def quantized_linears(model, inputs):
    seen, model = {}, copy.deepcopy(model)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    note = lambda module, args: seen.__setitem__(module, args[0].clone())  # noqa: E731
    handles = [module.register_forward_pre_hook(note) for module in linears]
    model(inputs)
    for handle in handles:
        handle.remove()
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if child in seen:
                module._modules[name] = quantized_whole(nn.Sequential(child), seen[child])
    return model


def measure(name: str, rounds: int, clock) -> None:
    model, theirs, inputs = {"resnet18": resnet18, "bert": bert, "gpt": gpt}[name]()
    model.eval()
    theirs.eval()
    given = torch.from_numpy(inputs)
    fresh = lambda: ampkit.Tensor(inputs)  # noqa: E731 - codes are kept with a tensor that was read before
    small = quantization.quantize(model, [fresh()])
    small_theirs = quantized_whole(theirs, given) if name == "resnet18" else quantized_linears(theirs, given)
    calls = {
        "ampkit float32": lambda: model(fresh()),
        "ampkit int8": lambda: small(fresh()),
        "PyTorch float32": lambda: theirs(given),
        "PyTorch int8": lambda: small_theirs(given),
    }
    times: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(rounds + 3):
        for each, call in calls.items():
            start = clock()
            call()
            times[each].append(clock() - start)
    kept = {each: spent[3:] for each, spent in times.items()}
    print(f"{name}: " + ", ".join(f"{each} {statistics.median(spent) * 1e3:.1f} ms" for each, spent in kept.items()))
    for other in ("ampkit float32", "PyTorch int8"):
        ratios = [a / b for a, b in zip(kept[other], kept["ampkit int8"], strict=True)]
        print(f"  int8 is {statistics.median(ratios):.2f} x as fast as {other} (worst {min(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["resnet18", "bert", "gpt"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.quantized.engine = "x86"
    torch.set_num_threads(options.threads)
    ampkit.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    with torch.no_grad(), ampkit.no_grad():
        for name in options.models:
            measure(name, options.rounds, clock)


if __name__ == "__main__":
    main()
