"""Models: functions that build a network from plain numbers, with PyTorch's and torchvision's parameter names."""

from .alexnet import AlexNet, alexnet
from .bert import BertConfig, BertForMaskedLM, BertModel, bert
from .cnn import CNN, cnn
from .convmixer import convmixer, convmixer_768_32, convmixer_1536_20
from .efficientnet import EfficientNet, efficientnet_b0, efficientnet_b4
from .gpt import GPT, from_hugging_face_gpt2, gpt
from .lenet import LeNet5, lenet5
from .mlp import mlp
from .pretrained import from_pretrained
from .resnet import ResNet, resnet18, resnet34, resnet50
from .segmentation import Segmentation, deeplabv3_resnet50, fcn_resnet50
from .vgg import VGG, vgg11, vgg11_bn, vgg13, vgg16, vgg16_bn, vgg19
from .vit import VisionTransformer, vit, vit_b_16, vit_b_32, vit_l_16, vit_s_16, vit_ti_16
from .wav2letter import Wav2Letter, wav2letter
from .weights import LoadedWeights, load_weights

__all__ = [
    "CNN", "GPT", "VGG", "AlexNet", "BertConfig", "BertForMaskedLM", "BertModel", "EfficientNet", "LeNet5",
    "LoadedWeights", "ResNet",
    "Segmentation", "VisionTransformer", "Wav2Letter", "alexnet", "bert", "cnn", "convmixer", "convmixer_768_32",
    "convmixer_1536_20", "deeplabv3_resnet50", "efficientnet_b0", "efficientnet_b4", "fcn_resnet50",
    "from_hugging_face_gpt2", "from_pretrained", "gpt", "lenet5", "load_weights",
    "mlp", "resnet18", "resnet34", "resnet50", "vgg11", "vgg11_bn", "vgg13", "vgg16", "vgg16_bn", "vgg19", "vit",
    "vit_b_16", "vit_b_32", "vit_l_16", "vit_s_16", "vit_ti_16", "wav2letter",
]  # fmt: skip
