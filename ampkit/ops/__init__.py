"""Operations: the names of `torch.nn.functional` and of `torch` that ampkit has, and Tensor's operators and methods.

One file per kind of operation, its public names in its `__all__`. `methods.py` holds the table of operators and
methods, `taped.py` what NumPy's functions mean when a gradient is differentiated again.
"""

from types import FunctionType as _FunctionType
from types import ModuleType as _ModuleType

from ..core.words import spelled as _spelled
from . import given as _given
from . import methods, taped
from .activation import *
from .adaptive import *
from .along import *
from .angles import *
from .arithmetic import *
from .attention import *
from .bags import *
from .bce import *
from .bilinear import *
from .calculus import *
from .chains import *
from .compare import *
from .conv import *
from .convert import *
from .create import *
from .ctc import *
from .diagonals import *
from .distances import *
from .dropout import *
from .elementwise import *
from .embedding import *
from .factors import *
from .facts import *
from .fused import *
from .gates import *
from .index import *
from .instancenorm import *
from .join import *
from .layout import *
from .like import *
from .loss import *
from .margin import *
from .noise import *
from .normalize import *
from .norms import *
from .numbers import *
from .order import *
from .parts import *
from .pixels import *
from .pool import *
from .pool1d import *
from .products import *
from .put import *
from .quantiles import *
from .ranges import *
from .ranking import *
from .ranks import *
from .recurrent import *
from .reduce import *
from .residual import *
from .resize import *
from .running import *
from .sampling import *
from .scatter import *
from .select import *
from .sets import *
from .shape import *
from .signs import *
from .softmax import *
from .solving import *
from .special import *
from .stacks import *
from .statistics import *
from .tapers import *
from .timefirst import *
from .unpool import *
from .vectors import *
from .wrapped import *

__all__ = [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _ModuleType)]

for _name in __all__:  # ops see to their arguments, and take PyTorch's other words, by themselves; functions here
    if isinstance(globals()[_name], _FunctionType):
        globals()[_name] = _spelled(_given.checked(globals()[_name]))

methods.bind(globals())
