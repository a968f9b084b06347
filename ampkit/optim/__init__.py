"""Optimizers over flat memory, gradient clipping, averages of weights, and schedules that follow real steps."""

from . import lr_scheduler, swa_utils
from .adadelta import Adadelta
from .adafactor import Adafactor
from .adagrad import Adagrad
from .adam import Adam, Adamax, AdamW, AdamWScheduleFree, NAdam, RAdam
from .asgd import ASGD
from .clip import clip_grad_norm_, clip_grad_value_
from .elementwise import Elementwise
from .lamb import LAMB
from .layerwise import layerwise_groups
from .lbfgs import LBFGS
from .lion import Lion
from .matrix import SOAP, Muon, MuonWithAuxAdam, hidden_matrices
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .rprop import Rprop
from .sgd import SGD

__all__ = [
    "ASGD", "LAMB", "LBFGS", "SGD", "SOAP", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "AdamWScheduleFree",
    "Adamax", "Elementwise", "Lion", "Muon", "MuonWithAuxAdam", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop",
    "clip_grad_norm_", "clip_grad_value_", "hidden_matrices", "layerwise_groups", "lr_scheduler", "swa_utils",
]  # fmt: skip
