"""Optimizers over flat memory, gradient clipping, averages of weights, and schedules that follow real steps."""

from . import lr_scheduler, swa_utils
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .adamax import Adamax
from .clip import clip_grad_norm_, clip_grad_value_
from .lamb import LAMB
from .lion import Lion
from .optimizer import Optimizer
from .radam import RAdam
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = [
    "LAMB",
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Lion",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "clip_grad_norm_",
    "clip_grad_value_",
    "lr_scheduler",
    "swa_utils",
]
