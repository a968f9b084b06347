"""Intended differences of ampkit from PyTorch, reviewed, each with its reason. No bug belongs here."""

from __future__ import annotations

from collections.abc import Callable

from .comparison import Difference, Listed


def _detail(*parts: str) -> Callable[[Difference], bool]:
    return lambda one: any(part in one.detail for part in parts)


def _call(part: str) -> Callable[[Difference], bool]:
    return lambda one: part in one.call


def _wide(one: Difference) -> bool:
    # A matrix with fewer rows than columns, or with vectors beyond the rank, whose basis is anybody's choice.
    return "full_matrices" in one.call


LISTED: list[Listed] = [
    # which of several right answers
    Listed(
        "topk kthvalue mode sort msort argsort",
        "Equal values keep their order here; PyTorch leaves their order open, so that indices differ, and with them "
        "the elements that get the gradient.",
        kinds="values grad",
        faults="values",
        dtypes="bfloat16 float16 int64 bool",
    ),
    Listed(
        "linalg.svd",
        "Singular vectors are unique up to a sign, and those beyond the rank up to a rotation; singular values and "
        "gradients of what does not depend on that are compared.",
        kinds="values",
        faults="values",
        when=_wide,
    ),
    Listed(
        "linalg.eigh linalg.eigvalsh",
        "The matrix meant is (A + A^T) / 2, where PyTorch reads one triangle.",
        kinds="values jvp vmap",
        faults="values",
        when=_call("UPLO='U'"),
    ),
    Listed(
        "linalg.pinv",
        "The pseudo-inverse of a matrix that is not symmetric is its own with hermitian=True too, where PyTorch reads "
        "one triangle.",
        kinds="values jvp vmap",
        faults="values",
        when=_call("hermitian=True"),
    ),
    Listed(
        "nn.FractionalMaxPool2d nn.FractionalMaxPool3d",
        "The places of windows that a caller gives are an argument of the layer, not part of its state as in PyTorch.",
        kinds="modules",
        faults="refused",
    ),
    # derivatives
    Listed(
        "cholesky linalg.cholesky linalg.cholesky_ex",
        "The tangent of a symmetric matrix that is not symmetric itself counts as (T + T^T) / 2, as gradients are; "
        "PyTorch's forward mode reads it as it is.",
        kinds="jvp",
        faults="values",
    ),
    Listed(
        "cholesky_solve cholesky_inverse",
        "The factor is one triangle, and so is its tangent; PyTorch's forward mode reads the tangent's other one.",
        kinds="jvp",
        faults="values",
    ),
    Listed(
        "triangular_solve logcumsumexp",
        "The tangents are those of finite differences; PyTorch's are others, of logcumsumexp by 1e-6.",
        kinds="jvp",
        faults="values",
    ),
    Listed(
        "nn.functional.nll_loss nn.functional.cross_entropy",
        "The weights of the classes are differentiable; for PyTorch they are constants.",
        kinds="jvp",
        faults="values",
        when=_call("weight="),
    ),
    Listed(
        "linalg.svd linalg.svdvals linalg.qr linalg.eigh linalg.eigvalsh linalg.pinv pinverse linalg.norm "
        "linalg.matrix_norm norm linalg.cond linalg.lu linalg.lu_factor linalg.lu_factor_ex svd_lowrank pca_lowrank",
        "Factorizations, and what is made of singular values, have first derivatives.",
        kinds="gradgrad",
        faults="refused",
        when=_detail("needs a first derivative"),
    ),
    Listed(
        "linalg.svd",
        "With full_matrices=True the vectors beyond the rank have no derivative, so a matrix that is not square is "
        "refused, an empty one too.",
        kinds="grad gradgrad jvp",
        faults="refused",
        when=_detail("needs square matrices or reduced factors"),
    ),
    Listed(
        "nn.functional.linear_cross_entropy",
        "PyTorch's slices, which its options ask for, have no second derivatives, and do not round 16-bit logits.",
        kinds="values grad gradgrad",
        faults="values",
        when=_call("options="),
    ),
    Listed(
        "Muon",
        "The kernels of convolutions are matrices, too.",
        kinds="optimizers",
        faults="missing error",
        when=_detail("Muon only supports 2D parameters"),
    ),
    Listed(
        "cholesky_inverse",
        "OpInfo calls PyTorch's own functions on the factor before it differentiates.",
        kinds="grad gradgrad",
        faults="raw error",
    ),
    Listed(
        "nn.functional.ctc_loss nn.CTCLoss",
        "The gradient for log_probs is the derivative; PyTorch's is right only behind log_softmax.",
        kinds="grad modules",
        faults="values",
    ),
    Listed(
        "nn.functional.hardsigmoid",
        "The gradient is 1/6 in float64; PyTorch's is 1/6 rounded to float32.",
        kinds="grad jvp",
        faults="values",
        dtypes="float64",
    ),
    Listed(
        "nn.functional.poisson_nll_loss",
        "A target that is 0 has no Stirling term and no gradient from it; PyTorch's is NaN, of log(0) times 0.",
        kinds="grad",
        faults="values",
        when=_detail("needed nan"),
    ),
    Listed(
        "linalg.norm linalg.vector_norm linalg.matrix_norm norm",
        "Where a norm is 0 its gradient is 0, and so is the second derivative; PyTorch's second one is NaN.",
        kinds="gradgrad",
        faults="values",
        when=_detail("needed nan"),
    ),
    Listed(
        "nn.GroupNorm",
        "The gradient of a Parameter is float32 for 16-bit parameters too.",
        kinds="modules",
        faults="dtype",
        dtypes="bfloat16 float16",
    ),
    # numbers and dtypes
    Listed(
        "ASGD",
        "eta and mu are float64; PyTorch keeps them in float32, and float64 parameters with them.",
        kinds="optimizers",
        faults="values",
        dtypes="float64",
    ),
    Listed(
        "nn.functional.local_response_norm",
        "Integers are widened to float32 first; PyTorch averages them as integers, and leaves empty ones integers.",
        kinds="values",
        dtypes="int64",
    ),
    Listed(
        "sum_to_size",
        "A bool tensor that has the size already stays as it is; PyTorch sums a 0-d one to int64.",
        kinds="values",
        faults="dtype",
        dtypes="bool",
        when=_call("bool[]=True, ()"),
    ),
    Listed(
        "addmv addbmm baddbmm",
        "alpha and beta of integers are whole numbers; PyTorch truncates them.",
        kinds="values",
        faults="refused",
        dtypes="int64",
        when=_detail("needs a whole alpha and beta"),
    ),
    Listed(
        "scatter",
        "A number that an integer dtype does not hold raises; PyTorch truncates it.",
        kinds="values",
        faults="refused",
        dtypes="int64",
        when=_detail("needs a whole number"),
    ),
    Listed(
        "__rpow__",
        "An integer to a negative power raises; PyTorch gives 0.",
        kinds="values",
        faults="refused",
        dtypes="int64",
        when=_detail("needs non-negative exponents"),
    ),
    Listed(
        "nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d",
        "A mean of integers is no integer: cast the tensor first.",
        kinds="values",
        faults="refused",
        dtypes="int64",
        when=_detail("needs a floating-point tensor"),
    ),
    # what is refused
    Listed(
        "var_mean std_mean",
        "The mean of no elements raises; PyTorch gives NaN.",
        kinds="values",
        faults="refused",
        when=_detail("needs at least one element"),
    ),
    Listed(
        "nn.functional.conv_transpose2d nn.functional.conv_transpose3d",
        "output_padding chooses among the sizes that one convolution maps to the same, which differ by less than the "
        "stride; PyTorch takes any below the dilation too.",
        faults="refused",
        when=_detail("needs output_padding smaller than stride"),
    ),
    # what is taken
    Listed(
        "atan2 copysign eq fmax fmin fmod ge gt le lt ne logaddexp maximum minimum logical_and logical_or logical_xor "
        "heaviside lcm gcd isclose hypot rsub __radd__ __rmul__ __rand__ __ror__ __rxor__",
        "A number may stand for either operand, as with `add` and `mul`.",
        kinds="errors",
        faults="missing error",
        when=_detail("must be Tensor, not int", "got (int, Tensor)", "doesn't apply to a 'int' object"),
    ),
    Listed(
        "float_power",
        "The power is float64 and is rounded to the tensor that it is written to; PyTorch writes to float64 alone.",
        kinds="values",
        faults="missing error",
        when=_detail("requires dtype Double"),
    ),
    Listed(
        "mean",
        "The mean of integers has the default dtype.",
        kinds="errors",
        faults="missing error",
        when=_detail("Input dtype must be"),
    ),
    Listed(
        "masked_fill",
        "A tensor of one element is a number, whatever its axes.",
        kinds="errors",
        faults="missing error",
    ),
    Listed(
        "aminmax gather multinomial",
        "out= takes a wider dtype, as it does for all other ops.",
        kinds="errors",
        faults="missing error",
    ),
    Listed(
        "cat",
        "out= of another size is resized, whatever memory it has.",
        kinds="errors",
        faults="missing error",
    ),
    Listed(
        "as_strided",
        "Strides by which elements overlap are refused: slices, reshape, permute and expand do not make such views.",
        faults="refused",
    ),
    Listed(
        "linalg.cross",
        "Operands broadcast, also where they have different numbers of axes.",
        kinds="errors",
        faults="missing error",
        when=_detail("same number of dimensions"),
    ),
    Listed(
        "nn.functional.max_pool1d nn.functional.max_pool3d",
        "Images without channels have no maps, and no windows that are empty.",
        kinds="errors",
        faults="missing error",
    ),
    Listed(
        "nn.CircularPad1d",
        "The padded axis is the last one, whatever comes before it.",
        kinds="modules",
        faults="missing error",
    ),
    Listed(
        "Adadelta Adafactor Adagrad Adam Adamax AdamW ASGD LBFGS Muon NAdam RAdam RMSprop Rprop SGD",
        "A parameter given twice counts once, where PyTorch warns; a name is a label, which a parameter may lack.",
        kinds="optimizers",
        faults="missing error",
        when=_detail("duplicate parameters", "with/without names"),
    ),
    Listed(
        "Adam AdamW",
        "An option given as a tensor is read as the number it holds, so it goes with all other options.",
        kinds="optimizers",
        faults="missing error",
        when=_detail("as a Tensor is not supported", "either both floats or both Tensors"),
    ),
    Listed(
        "nn.RNN nn.GRU nn.LSTM",
        "0 and 1 stand for False and True in every switch.",
        kinds="modules",
        faults="missing error",
        when=_detail("should be of type bool, got: int"),
    ),
    # shapes
    Listed(
        "gather",
        "An index has as many axes as the input, an empty one too.",
        faults="refused",
        when=_detail("got (2, 0)"),
    ),
    Listed(
        "nn.functional.batch_norm",
        "An input has a batch and channels, an empty one too.",
        faults="refused",
        when=_detail("[N, C, ...], got (0,)"),
    ),
    Listed(
        "nn.functional.multi_margin_loss",
        "The label of scores without a batch is a number, not a vector of one.",
        faults="refused",
        when=_detail("(5,) and (1,)"),
    ),
    Listed(
        "cov",
        "Of two observations the gradient cancels to about zero; what is left is the rounding of larger numbers.",
        kinds="grad",
        faults="values",
        dtypes="float32 bfloat16 float16",
        when=_call("aweights=float32[2]"),
    ),
]
