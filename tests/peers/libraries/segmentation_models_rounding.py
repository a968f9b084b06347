"""How far the losses of segmentation_models_pytorch in bfloat16 are from float32's: the root mean square over inputs.

    HF_HUB_OFFLINE=1 python -m ampkit.as_torch tests/peers/libraries/segmentation_models_rounding.py
    HF_HUB_OFFLINE=1 python tests/peers/libraries/segmentation_models_rounding.py       # where PyTorch is

One line for each of the networks of segmentation_models_unet.py: the relative differences of the losses of two steps,
over three inputs and weights. Of one input alone they vary between half and twice as much, by chance.
"""

import segmentation_models_pytorch as smp
import torch
from job import numbers, start

INPUTS = 3


def losses(kind, encoder, seed, dtype):
    """Of two steps of SGD, from the same weights for each dtype."""
    images, masks = numbers(2, 3, 64, 64, seed=10 + seed), (numbers(2, 64, 64, seed=50 + seed) > 0).long()
    model = start(kind(encoder, encoder_weights=None, in_channels=3, classes=2), seed)
    for part in model.modules():
        if isinstance(part, (torch.nn.Dropout, torch.nn.Dropout2d)):
            part.p = 0.0
    dice, focal = smp.losses.DiceLoss("multiclass"), smp.losses.FocalLoss("multiclass")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(2):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            scores = model(images)
        loss = dice(scores.float(), masks) + focal(scores.float(), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).double()


for name, kind, encoder in (("unet", smp.Unet, "resnet18"), ("fpn", smp.FPN, "timm-mobilenetv3_small_100")):
    squares = 0.0
    for seed in range(INPUTS):
        exact = losses(kind, encoder, seed, torch.float32)
        squares = squares + (losses(kind, encoder, seed, torch.bfloat16) / exact - 1) ** 2
    print(name, *(f"{value:.1e}" for value in (squares / INPUTS).sqrt().tolist()))
