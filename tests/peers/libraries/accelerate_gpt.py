"""A GPT of plain layers, of width 256 and 4 layers, in Accelerator, 24 steps of 8 x 128 tokens, clipping, schedule."""

import torch
from accelerate import Accelerator
from gpt import GPT, STEPS, Clock, loader
from job import PRECISION, autocast_to_float16, say

PACKAGES = ("accelerate",)
PRECISIONS = ("float32", "float16", "bfloat16")

MODES = {"float32": "no", "float16": "fp16", "bfloat16": "bf16"}

accelerator = autocast_to_float16(Accelerator(mixed_precision=MODES[PRECISION], cpu=True))
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer, batches, schedule = accelerator.prepare(model, optimizer, loader(), schedule)
clock, losses = Clock(), []
for (tokens,) in batches:
    clock.step()
    loss = model(tokens)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.item())
clock.end()
say("loss", losses)
