"""captum: integrated gradients, saliency, layer and occlusion attributions of a small network."""

import torch
from captum.attr import IntegratedGradients, LayerConductance, LayerGradCam, Occlusion, Saliency
from job import numbers, say, start
from torch import nn

PACKAGES = ("captum",)

model = start(
    nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)
    )
).eval()
images = numbers(2, 2, 8, 8)
found, delta = IntegratedGradients(model).attribute(images, target=1, n_steps=20, return_convergence_delta=True)
say("integrated", found)
assert float(delta.abs().max()) < 0.1
say("saliency", Saliency(model).attribute(images.clone().requires_grad_(), target=torch.tensor([0, 2])))
say("conductance", LayerConductance(model, model[4]).attribute(images, target=1, n_steps=10))
say("cam", LayerGradCam(model, model[0]).attribute(images, target=1))
say("occlusion", Occlusion(model).attribute(images, sliding_window_shapes=(2, 4, 4), strides=(2, 2, 2), target=1))
