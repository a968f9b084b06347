"""Models: functions that build a network from plain numbers, with PyTorch's and torchvision's parameter names."""

from .bert import BertConfig, BertForMaskedLM, BertModel, bert
from .convolutional import CNN, cnn
from .perceptron import mlp
from .residual import ResNet, resnet18, resnet34, resnet50
from .transformer import GPT, gpt
from .vit import VisionTransformer, vit, vit_b_16, vit_b_32, vit_l_16, vit_s_16, vit_ti_16

__all__ = [
    "CNN",
    "GPT",
    "BertConfig",
    "BertForMaskedLM",
    "BertModel",
    "ResNet",
    "VisionTransformer",
    "bert",
    "cnn",
    "gpt",
    "mlp",
    "resnet18",
    "resnet34",
    "resnet50",
    "vit",
    "vit_b_16",
    "vit_b_32",
    "vit_l_16",
    "vit_s_16",
    "vit_ti_16",
]
