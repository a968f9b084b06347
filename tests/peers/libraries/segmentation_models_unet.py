"""A U-Net and an FPN over ResNet and MobileNet encoders, by Dice and focal losses, with autocast, and their scores."""

import segmentation_models_pytorch as smp
import torch
from job import DTYPE, numbers, say, start

PACKAGES = ("segmentation_models_pytorch", "timm", "torchvision")
PRECISIONS = ("float32", "bfloat16")

images = numbers(2, 3, 64, 64)
masks = (numbers(2, 64, 64, seed=1) > 0).long()
for name, kind, encoder in (("unet", smp.Unet, "resnet18"), ("fpn", smp.FPN, "timm-mobilenetv3_small_100")):
    model = start(kind(encoder, encoder_weights=None, in_channels=3, classes=2))
    for part in model.modules():
        if isinstance(part, (torch.nn.Dropout, torch.nn.Dropout2d)):
            part.p = 0.0
    dice, focal = smp.losses.DiceLoss("multiclass"), smp.losses.FocalLoss("multiclass")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        with torch.autocast("cpu", dtype=DTYPE, enabled=DTYPE is not torch.float32):
            scores = model(images)
        loss = dice(scores.float(), masks) + focal(scores.float(), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(f"{name}_loss", loss)
    counts = smp.metrics.get_stats(masks.roll(3, -1), masks, mode="multiclass", num_classes=2)
    say("score", smp.metrics.iou_score(*counts, reduction="micro"), smp.metrics.f1_score(*counts, reduction="macro"))
    model.save_pretrained(f"./{name}")
    again = smp.from_pretrained(f"./{name}")
    model.eval()
    with torch.no_grad():
        say("loaded", again(images) - model(images))
