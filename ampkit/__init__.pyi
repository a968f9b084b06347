# Written by `python -m tests.api.stubs`: change the signatures, not this file.
from math import e, inf, nan, pi
from . import amp, autograd, cuda, func, linalg, nn, ops, optim, special
from .amp.grad_scaler import GradScaler
from .backends import Device as device
from .backends import get_default_device, set_default_device
from .backends.cpu import memory as cpu
from .backends.cpu.threads import get_num_threads, set_num_threads
from .backends.determinism import are_deterministic_algorithms_enabled, use_deterministic_algorithms
from .backends.precision import get_float32_matmul_precision, set_float32_matmul_precision
from .base import observe
from .base.dtypes import finfo, iinfo
from .base.errors import AmpkitError, ArgumentError, ConfigError, DeviceError, DTypeError, FileError, NonFiniteError, OutOfMemoryError, RangeError, ScaleCollapseError, ShapeError, StateError
from .base.memory_format import channels_last, channels_last_3d, contiguous_format, preserve_format, sparse_coo, sparse_csc, sparse_csr, strided
from .base.public_dtypes import bfloat16, dtype, float4_e2m1fn_x2, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float8_e8m0fnu, float16, float32, float64, int8, int16, int32, int64, uint8
from .base.public_dtypes import bool_ as bool
from .base.public_dtypes import float16 as half
from .base.public_dtypes import float32 as float
from .base.public_dtypes import float64 as double
from .base.public_dtypes import int16 as short
from .base.public_dtypes import int32 as int
from .base.public_dtypes import int64 as long
from .base.tensor_text import set_printoptions
from .core.autograd.grad_mode import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from .core.autograd.recompute import recompute
from .core.autograd.saved import Saved
from .core.autograd.tape import grad
from .core.autograd.tasks import fork, wait
from .core.capture.compiled import compile as compile
from .core.dispatch import Primitive, reference_only
from .core.dlpack import from_dlpack
from .core.op import op
from .core.policy import Cast, Policy, autocast, get_autocast_dtype, is_autocast_enabled
from .core.random import Generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from .core.tensor import Tensor
from .core.tensor_base import Shape as Size
from .core.tensor_factory import set_default_tensor_type, tensor
from .func import vmap
from .ops import *
from .ops import sparse
from .serialization import load, save
from .run.trained import load_run
from .cli.notebook import progress
from .cli.notebook import report
from . import data
from . import debug
from . import distributed
from . import distributions
from . import models
from .serialization import onnx
from . import utils
from .debug.profiler import profile
from .run.trainer.callbacks import Callback
from .run.trainer.callbacks import EarlyStopping
from .run.trainer.callbacks import ModelCheckpoint
from .run.trainer.trainer import Trainer
from .run.trainer.own_loop import setup
newaxis: None
__version__: str
__all__ = ['AmpkitError', 'ArgumentError', 'BFloat16Tensor', 'BoolTensor', 'ByteTensor', 'Callback', 'Cast', 'CharTensor', 'ConfigError', 'DTypeError', 'DeviceError', 'DoubleTensor', 'EarlyStopping', 'FileError', 'FloatTensor', 'Generator', 'GradScaler', 'HalfTensor', 'IntTensor', 'LongTensor', 'ModelCheckpoint', 'NonFiniteError', 'OutOfMemoryError', 'Policy', 'Primitive', 'RangeError', 'Saved', 'ScaleCollapseError', 'ShapeError', 'ShortTensor', 'Size', 'StateError', 'Tensor', 'Trainer', 'absolute', 'acos', 'acosh', 'adaptive_avg_pool1d', 'adaptive_avg_pool2d', 'adaptive_avg_pool3d', 'adaptive_max_pool1d', 'adaptive_max_pool2d', 'adaptive_max_pool3d', 'add', 'add_layer_norm', 'addbmm', 'addcdiv', 'addcmul', 'addmm', 'addmv', 'addr', 'affine_grid', 'allclose', 'alpha_dropout', 'amax', 'amin', 'aminmax', 'amp', 'arange', 'arccos', 'arccosh', 'arcsin', 'arcsinh', 'arctan', 'arctan2', 'arctanh', 'are_deterministic_algorithms_enabled', 'argmax', 'argmin', 'argsort', 'argwhere', 'as_strided', 'as_tensor', 'asarray', 'asin', 'asinh', 'atan', 'atan2', 'atanh', 'atleast_1d', 'atleast_2d', 'atleast_3d', 'autocast', 'autograd', 'avg_pool1d', 'avg_pool2d', 'avg_pool3d', 'baddbmm', 'bartlett_window', 'batch_norm', 'batch_norm_add_relu', 'batch_norm_relu', 'bernoulli', 'bfloat16', 'bilinear', 'binary_cross_entropy', 'binary_cross_entropy_with_logits', 'bincount', 'binomial', 'bitwise_and', 'bitwise_left_shift', 'bitwise_not', 'bitwise_or', 'bitwise_right_shift', 'bitwise_xor', 'blackman_window', 'block_diag', 'bmm', 'broadcast_shapes', 'broadcast_tensors', 'broadcast_to', 'bucketize', 'can_cast', 'cartesian_prod', 'cast_to', 'cat', 'cdist', 'ceil', 'celu', 'chain_matmul', 'channel_shuffle', 'channels_last', 'channels_last_3d', 'cholesky_inverse', 'cholesky_solve', 'chunk', 'clamp', 'clamp_max', 'clamp_min', 'clip', 'clone', 'column_stack', 'combinations', 'concat', 'concatenate', 'conj', 'conj_physical', 'contiguous', 'contiguous_format', 'conv1d', 'conv2d', 'conv3d', 'conv_tbc', 'conv_transpose1d', 'conv_transpose2d', 'conv_transpose3d', 'copysign', 'corrcoef', 'cos', 'cosh', 'cosine_embedding_loss', 'cosine_similarity', 'count_nonzero', 'cov', 'cpu', 'cross', 'cross_entropy', 'ctc_loss', 'cuda', 'cummax', 'cummin', 'cumprod', 'cumsum', 'cumulative_trapezoid', 'data', 'debug', 'deg2rad', 'det', 'detach', 'device', 'diag', 'diag_embed', 'diagflat', 'diagonal', 'diff', 'digamma', 'dist', 'distributed', 'distributions', 'div', 'divide', 'dot', 'double', 'dropout', 'dropout1d', 'dropout2d', 'dropout3d', 'dsplit', 'dstack', 'dtype', 'e', 'einsum', 'elu', 'embedding', 'embedding_bag', 'empty', 'empty_like', 'enable_grad', 'eq', 'equal', 'erf', 'erfc', 'erfinv', 'exp', 'exp2', 'expand', 'expm1', 'eye', 'feature_alpha_dropout', 'finfo', 'fix', 'flatten', 'flip', 'fliplr', 'flipud', 'float16', 'float32', 'float4_e2m1fn_x2', 'float64', 'float8_e4m3fn', 'float8_e4m3fnuz', 'float8_e5m2', 'float8_e5m2fnuz', 'float8_e8m0fnu', 'float_power', 'floor', 'floor_divide', 'fmax', 'fmin', 'fmod', 'fold', 'fork', 'frac', 'fractional_max_pool2d', 'fractional_max_pool3d', 'from_dlpack', 'from_numpy', 'frombuffer', 'full', 'full_like', 'func', 'gather', 'gaussian_nll_loss', 'gcd', 'ge', 'gelu', 'ger', 'get_autocast_dtype', 'get_default_device', 'get_default_dtype', 'get_device', 'get_float32_matmul_precision', 'get_num_threads', 'get_rng_state', 'glu', 'grad', 'gradient', 'greater', 'greater_equal', 'grid_sample', 'group_norm', 'gru_cell', 'gt', 'gumbel_softmax', 'half', 'hamming_window', 'hann_window', 'hardshrink', 'hardsigmoid', 'hardswish', 'hardtanh', 'heaviside', 'hinge_embedding_loss', 'histc', 'histogram', 'hsplit', 'hstack', 'huber_loss', 'hypot', 'i0', 'iinfo', 'index_add', 'index_copy', 'index_fill', 'index_put', 'index_reduce', 'index_select', 'inf', 'inference_mode', 'initial_seed', 'inner', 'instance_norm', 'int16', 'int32', 'int64', 'int8', 'interpolate', 'inverse', 'is_autocast_enabled', 'is_complex', 'is_floating_point', 'is_grad_enabled', 'is_inference_mode_enabled', 'is_nonzero', 'is_same_size', 'is_signed', 'is_tensor', 'isclose', 'isfinite', 'isin', 'isinf', 'isnan', 'isneginf', 'isposinf', 'isreal', 'kaiser_window', 'kl_div', 'kron', 'kthvalue', 'l1_loss', 'layer_norm', 'layer_norm_of_sum', 'lcm', 'ldexp', 'le', 'leaky_relu', 'lerp', 'less', 'less_equal', 'lgamma', 'linalg', 'linalg_cholesky', 'linalg_cholesky_ex', 'linalg_cond', 'linalg_eigh', 'linalg_eigvalsh', 'linalg_inv', 'linalg_inv_ex', 'linalg_lstsq', 'linalg_lu', 'linalg_lu_factor', 'linalg_lu_factor_ex', 'linalg_lu_solve', 'linalg_matrix_norm', 'linalg_matrix_rank', 'linalg_multi_dot', 'linalg_norm', 'linalg_pinv', 'linalg_qr', 'linalg_solve', 'linalg_solve_ex', 'linalg_solve_triangular', 'linalg_svd', 'linalg_svdvals', 'linalg_tensorinv', 'linalg_tensorsolve', 'linalg_vecdot', 'linalg_vector_norm', 'linear', 'linear_cross_entropy', 'linear_gelu_linear', 'linspace', 'load', 'load_run', 'local_response_norm', 'log', 'log10', 'log1p', 'log2', 'log_softmax', 'logaddexp', 'logaddexp2', 'logcumsumexp', 'logdet', 'logical_and', 'logical_not', 'logical_or', 'logical_xor', 'logit', 'logsigmoid', 'logspace', 'logsumexp', 'long', 'lp_pool1d', 'lp_pool2d', 'lp_pool3d', 'lstm_cell', 'lt', 'lu_solve', 'lu_unpack', 'manual_seed', 'margin_ranking_loss', 'masked_fill', 'masked_scatter', 'masked_select', 'matmul', 'matrix_exp', 'matrix_power', 'max_pool1d', 'max_pool2d', 'max_pool3d', 'max_unpool1d', 'max_unpool2d', 'max_unpool3d', 'maximum', 'mean', 'median', 'meshgrid', 'minimum', 'mish', 'mm', 'mode', 'models', 'moveaxis', 'movedim', 'mse_loss', 'msort', 'mul', 'multi_margin_loss', 'multilabel_margin_loss', 'multilabel_soft_margin_loss', 'multinomial', 'multiply', 'mv', 'nan', 'nan_to_num', 'nanmean', 'nanmedian', 'nanquantile', 'nansum', 'narrow', 'ne', 'neg', 'negative', 'newaxis', 'nextafter', 'nll_loss', 'nms', 'nn', 'no_grad', 'nonzero', 'norm', 'normal', 'normalize', 'not_equal', 'numel', 'observe', 'one_hot', 'ones', 'ones_like', 'onnx', 'op', 'ops', 'optim', 'outer', 'pad', 'pairwise_distance', 'pca_lowrank', 'pdist', 'permute', 'pi', 'pinverse', 'pixel_shuffle', 'pixel_unshuffle', 'poisson', 'poisson_nll_loss', 'polygamma', 'positive', 'prelu', 'preserve_format', 'prod', 'profile', 'progress', 'promote_types', 'put', 'quantile', 'rad2deg', 'rand', 'rand_like', 'randint', 'randint_like', 'randn', 'randn_like', 'randperm', 'ravel', 'real', 'reciprocal', 'recompute', 'reference_only', 'relu', 'relu6', 'remainder', 'renorm', 'repeat', 'repeat_interleave', 'report', 'reshape', 'resolve_conj', 'result_type', 'rms_norm', 'rnn_relu_cell', 'rnn_tanh_cell', 'roi_align', 'roll', 'rot90', 'rotary_embedding', 'row_stack', 'rrelu', 'rsqrt', 'rsub', 'save', 'scalar_tensor', 'scaled_dot_product_attention', 'scatter', 'scatter_add', 'scatter_reduce', 'searchsorted', 'seed', 'select', 'self_attention', 'selu', 'set_default_device', 'set_default_dtype', 'set_default_tensor_type', 'set_float32_matmul_precision', 'set_grad_enabled', 'set_num_threads', 'set_printoptions', 'set_rng_state', 'setup', 'sgn', 'short', 'sigmoid', 'sign', 'signbit', 'silu', 'silu_mul', 'sin', 'sinc', 'sinh', 'slogdet', 'smooth_l1_loss', 'soft_margin_loss', 'softmax', 'softmin', 'softplus', 'softshrink', 'softsign', 'sort', 'sparse', 'sparse_coo', 'sparse_coo_tensor', 'sparse_csc', 'sparse_csc_tensor', 'sparse_csr', 'sparse_csr_tensor', 'special', 'split', 'sqrt', 'square', 'squeeze', 'stack', 'std', 'std_mean', 'strided', 'sub', 'subtract', 'svd_lowrank', 'swapaxes', 'swapdims', 't', 'take', 'take_along_dim', 'tan', 'tanh', 'tanhshrink', 'tensor', 'tensor_split', 'tensordot', 'threshold', 'tile', 'to', 'to_sparse', 'to_sparse_coo', 'to_sparse_csc', 'to_sparse_csr', 'topk', 'trace', 'transpose', 'trapezoid', 'trapz', 'triangular_solve', 'tril', 'tril_indices', 'triplet_margin_loss', 'triplet_margin_with_distance_loss', 'triu', 'triu_indices', 'true_divide', 'trunc', 'uint8', 'unbind', 'unflatten', 'unfold', 'unique', 'unique_consecutive', 'unravel_index', 'unsqueeze', 'use_deterministic_algorithms', 'utils', 'vander', 'var', 'var_mean', 'vdot', 'vecdot', 'vmap', 'vsplit', 'vstack', 'wait', 'where', 'xlogy', 'zero_', 'zeros', 'zeros_like']
