"""Optimizers over flat memory, gradient clipping, averages of weights, and schedules that follow real steps."""

from . import lr_scheduler, swa_utils
from .adadelta import Adadelta
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, Adamax, AdamW
from .asgd import ASGD
from .clip import clip_grad_norm_, clip_grad_value_
from .elementwise import Elementwise
from .lamb import LAMB
from .lbfgs import LBFGS
from .lion import Lion
from .nadam import NAdam
from .optimizer import Optimizer
from .radam import RAdam
from .rmsprop import RMSprop
from .rprop import Rprop
from .sgd import SGD

__all__ = [
    "ASGD", "LAMB", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Elementwise",
    "Lion", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "clip_grad_norm_", "clip_grad_value_", "lr_scheduler",
    "swa_utils",
]  # fmt: skip
