"""A classifier in Accelerator with accumulation, clipping, a schedule; its state saved, and the run resumed from it."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from job import PRECISION, autocast_to_float16, numbers, say, start, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGES = ("accelerate",)
PRECISIONS = ("float32", "float16", "bfloat16")

MODES = {"float32": "no", "float16": "fp16", "bfloat16": "bf16"}


def prepared():
    accelerator = Accelerator(mixed_precision=MODES[PRECISION], gradient_accumulation_steps=2, cpu=True)
    autocast_to_float16(accelerator)
    model = start(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)
    data = TensorDataset(numbers(96, 64), torch.arange(96) % 10)
    prepared = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=12), schedule)
    accelerator.register_for_checkpointing(prepared[3].scheduler)
    return accelerator, *prepared


def epoch(name, accelerator, model, optimizer, loader, schedule):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                say("norm", accelerator.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        say(name, loss)


set_seed(0)
run = prepared()
with timed():
    epoch("loss", *run)
run[0].save_state("state")
epoch("later", *run)
say("rate", run[4].get_last_lr()[0])

resumed = prepared()
resumed[0].load_state("state")
epoch("loaded", *resumed)
model = run[0].unwrap_model(resumed[1])
run[0].save_model(model, "model")
model.eval()
with torch.no_grad():
    logits = run[0].gather_for_metrics(model(numbers(3, 64, seed=1)))
say("logits", logits)
