"""Operations: the names of `torch.nn.functional` and of `torch` that ampkit has, and Tensor's operators and methods.

One file per kind of operation, its public names in its `__all__`. `methods.py` holds the table of operators and
methods, `traced.py` what NumPy's functions mean when a gradient is differentiated again.
"""

from types import FunctionType as _FunctionType
from types import ModuleType as _ModuleType

from ..core.torch_compat import accept_compat_args as _accept_compat_args
from . import argument_checks as _given
from . import tensor_methods, traced_methods
from .creation.as_tensor import *
from .creation.factories import *
from .creation.like import *
from .creation.ranges import *
from .creation.window_functions import *
from .indexing.gather import *
from .indexing.index_add import *
from .indexing.scatter import *
from .indexing.subscript import *
from .indexing.unique import *
from .linalg.bilinear import *
from .linalg.calculus import *
from .linalg.decompositions import *
from .linalg.distances import *
from .linalg.matmul import *
from .linalg.matmul_variants import *
from .linalg.solvers import *
from .linalg.vectors import *
from .loss.bce import *
from .loss.ctc import *
from .loss.margin import *
from .loss.pairwise import *
from .loss.regression import *
from .nn.adaptive_pool import *
from .nn.attention import *
from .nn.batch_norm import *
from .nn.conv import *
from .nn.dropout import *
from .nn.embedding import *
from .nn.fused import *
from .nn.grid_sample import *
from .nn.interpolate import *
from .nn.layer_norm import *
from .nn.pool import *
from .nn.residual_norm import *
from .nn.rnn import *
from .nn.softmax import *
from .nn.unpool import *
from .pointwise.activation import *
from .pointwise.arithmetic import *
from .pointwise.comparison import *
from .pointwise.conversion import *
from .pointwise.piecewise_activations import *
from .pointwise.remainders import *
from .pointwise.rounding import *
from .pointwise.selection import *
from .pointwise.special_functions import *
from .pointwise.trigonometry import *
from .pointwise.unary import *
from .predicates import *
from .reduction.cumulative import *
from .reduction.norms import *
from .reduction.order_statistics import *
from .reduction.quantiles import *
from .reduction.reductions import *
from .reduction.sorting import *
from .reduction.statistics import *
from .shape.concatenation import *
from .shape.diagonals import *
from .shape.pixel_shuffle import *
from .shape.rearrange import *
from .shape.split_misc import *
from .shape.stacks import *
from .shape.view import *

__all__ = [name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _ModuleType)]

for _name in __all__:  # ops see to their arguments, and take PyTorch's other words, by themselves; functions here
    if isinstance(globals()[_name], _FunctionType):
        globals()[_name] = _accept_compat_args(_given.checked(globals()[_name]))

tensor_methods.bind(globals())
