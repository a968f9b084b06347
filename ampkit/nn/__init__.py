"""Layers, losses and the Module they are made of, with PyTorch's names, defaults and `state_dict` layouts."""

import typing as _typing
from types import ModuleType as _ModuleType

from ..core.parameter import Buffer as Buffer
from ..core.parameter import Parameter as Parameter
from . import functional as functional
from . import init as init
from . import lora as lora
from . import parallel as parallel
from . import quantization as quantization
from . import utils as utils
from .modules.activation import *
from .modules.adaptive_softmax import *
from .modules.attention import *
from .modules.container import *
from .modules.conv import *
from .modules.dropout import *
from .modules.embedding import *
from .modules.instance_norm import *
from .modules.lazy import *
from .modules.linear import *
from .modules.linear_cross_entropy import *
from .modules.loss import *
from .modules.module import Module as Module
from .modules.norm import *
from .modules.padding import *
from .modules.pool import *
from .modules.rnn import *
from .modules.rnn_cell import *
from .modules.shape import *
from .modules.transformer import *

if not _typing.TYPE_CHECKING:  # type checkers take the names from the imports
    _PARTS = ("functional", "init", "lora", "parallel", "quantization", "utils")
    __all__ = [
        name
        for name, value in globals().items()
        if name in _PARTS or not (name.startswith("_") or isinstance(value, _ModuleType))
    ]
