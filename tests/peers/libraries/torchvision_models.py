"""torchvision: a ResNet and a MobileNet train on a folder of images with transforms v1; transforms v2 with boxes."""

import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from job import DTYPE, numbers, say, start
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms, tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

PACKAGES = ("torchvision",)
TOLERANCE = 1e-4  # of networks with batch norms of few images
PRECISIONS = ("float32", "bfloat16")

random = np.random.default_rng(0)
for label in ("cat", "dog"):
    Path("images", label).mkdir(parents=True)
    for i in range(4):
        Image.fromarray(random.integers(0, 256, (80, 72, 3), np.uint8)).save(f"images/{label}/{i}.png")
steps = [
    transforms.Resize(68),
    transforms.CenterCrop(64),
    transforms.ToTensor(),
    transforms.Normalize([0.5] * 3, [0.2] * 3),
]
loader = DataLoader(ImageFolder("images", transforms.Compose(steps)), batch_size=8)
for make in (torchvision.models.resnet18, torchvision.models.mobilenet_v3_small):
    model = start(make(num_classes=2))
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for images, labels in [*loader] * 3:
        with torch.autocast("cpu", dtype=DTYPE, enabled=DTYPE is not torch.float32):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(make.__name__, loss)

if sys.argv[1:] in ([], ["float32"]):
    image = tv_tensors.Image(numbers(3, 24, 20))
    boxes = tv_tensors.BoundingBoxes([[2, 3, 10, 12], [5, 5, 18, 20]], format="XYXY", canvas_size=(24, 20))
    mask = tv_tensors.Mask(numbers(1, 24, 20) > 0)
    flow = v2.Compose(
        [
            v2.RandomHorizontalFlip(p=1.0),
            v2.Resize((48, 40), antialias=True),
            v2.CenterCrop(32),
            v2.GaussianBlur(3, sigma=1.0),
            v2.Normalize([0.1] * 3, [0.9] * 3),
        ]
    )
    out = flow({"image": image, "boxes": boxes, "mask": mask, "label": 1})
    say("image", out["image"])
    say("boxes", out["boxes"])
    say("mask", out["mask"].float())
    assert isinstance(out["boxes"], tv_tensors.BoundingBoxes) and type(image + 1) is torch.Tensor
    turned = v2.functional.affine(image, 10.0, [1, 2], 1.1, [3.0, 0.0], v2.InterpolationMode.BILINEAR)
    say("affine", turned, v2.functional.adjust_hue(v2.functional.normalize(image, [0] * 3, [9] * 3).sigmoid(), 0.1))
    scores = torch.tensor([0.9, 0.8])
    kept = torchvision.ops.box_iou(boxes.float(), boxes.float())
    say("overlap", kept, torchvision.ops.generalized_box_iou(boxes.float(), boxes.float()))
    say(
        "focal",
        torchvision.ops.sigmoid_focal_loss(numbers(4, 3), (numbers(4, 3, seed=1) > 0).float(), reduction="mean"),
    )
