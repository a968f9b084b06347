"""timm: a ViT and a ConvNeXt train as its train.py does: mixup, a schedule, an average of the weights, autocast."""

import numpy as np
import timm
import torch
from job import DTYPE, numbers, say, start
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch import nn

PACKAGES = ("timm",)
PRECISIONS = ("float32", "bfloat16")

for name in ("vit_tiny_patch16_224", "convnext_atto"):
    options = {"img_size": 32} if name.startswith("vit") else {}
    model = start(timm.create_model(name, num_classes=5, **options))
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    schedule = CosineLRScheduler(optimizer, t_initial=4, warmup_t=1, warmup_lr_init=1e-5)
    average = ModelEmaV3(model, decay=0.9)
    mixup, criterion = Mixup(mixup_alpha=0.2, num_classes=5), SoftTargetCrossEntropy()
    np.random.seed(0)  # which Mixup draws from
    images, labels = numbers(4, 3, 32, 32), torch.tensor([0, 3, 4, 1])
    for epoch in range(3):
        x, y = mixup(images.clone(), labels)
        with torch.autocast("cpu", dtype=DTYPE, enabled=DTYPE is not torch.float32):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model, step=epoch)
        schedule.step(epoch + 1)
        say(name, loss)
        say("rate", optimizer.param_groups[0]["lr"])
    average.module.eval()
    with torch.no_grad():
        say("average", average.module(images))
