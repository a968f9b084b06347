"""Models: functions that build a network from plain numbers, with PyTorch's and torchvision's parameter names."""

from .convolutional import CNN, cnn
from .perceptron import mlp
from .residual import ResNet, resnet18, resnet34, resnet50
from .transformer import GPT, gpt

__all__ = ["CNN", "GPT", "ResNet", "cnn", "gpt", "mlp", "resnet18", "resnet34", "resnet50"]
