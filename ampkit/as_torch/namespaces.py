"""What each module of PyTorch is in ampkit: the table of the alias.

SOURCES: the modules whose public names a module of PyTorch has; `.x` is `ampkit.as_torch.extra.x`, and later modules
win. `= x` is the module x itself, where assigning to an attribute is a setting.
REFUSED: modules that ampkit has nothing for, and all below them. They can be imported, and their names too; a call of
one raises an error with the cure.
"""

from __future__ import annotations

from ampkit.base.missing_names import known


def _below(space: str, names: str, source: str) -> dict[str, str]:
    """The same source for several modules of `space`."""
    return {f"{space}.{name}": source for name in names.split()}


_DISTRIBUTIONS = (
    "bernoulli beta binomial categorical cauchy chi2 continuous_bernoulli dirichlet distribution exp_family "
    "exponential fishersnedecor gamma generalized_pareto geometric gumbel half_cauchy half_normal independent "
    "inverse_gamma kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal "
    "mixture_same_family multinomial multivariate_normal negative_binomial normal one_hot_categorical pareto "
    "poisson studentT transformed_distribution uniform von_mises weibull wishart"
)
_LAYERS = (
    "activation adaptive batchnorm channelshuffle container conv distance dropout flatten fold instancenorm lazy "
    "linear loss module normalization padding pixelshuffle pooling rnn sparse transformer upsampling utils"
)
SOURCES = {
    "functorch": ".derivatives.functorch",
    "functorch.experimental": ".derivatives.experimental",
    "torch._dynamo": ".tracing.compiler",
    "torch._dynamo.config": "",
    "torch._dynamo.utils": ".tracing.dynamo",
    "torch._guards": ".tracing.guards",
    "torch._tensor_str": ".utils.tensor_str",
    "torch._utils": ".utils.flat",
    "torch._higher_order_ops": "",
    "torch._higher_order_ops.associative_scan": ".tracing.scan",
    "torch": "ampkit .top .nn.losses .autocast_state .switches .dispatch.foreach .segment .deprecated",
    "torch._C": ".tracing.private .dispatch.keys",
    "torch._C._functorch": ".tracing.functorch",
    "torch._C._nn": "ampkit.ops .nn.parse_to",
    "torch.__config__": ".backends.config",
    "torch.__future__": ".future",
    "torch.accelerator": ".accelerator",
    "torch.amp": "ampkit.amp",
    "torch.amp.autocast_mode": "ampkit.amp",
    "torch.amp.grad_scaler": "ampkit.amp .cpu.scaler_stages",
    "torch.autograd": "ampkit.autograd .derivatives.autograd .derivatives.gradcheck",
    "torch.autograd.anomaly_mode": "ampkit.autograd.anomaly_mode",
    "torch.autograd.forward_ad": "ampkit.autograd.forward_ad",
    "torch.autograd.function": "ampkit.autograd.function .derivatives.function",
    "torch.autograd.functional": "ampkit.autograd.functional",
    "torch.autograd.grad_mode": "ampkit.autograd",
    "torch.autograd.gradcheck": ".derivatives.gradcheck",
    "torch.autograd.graph": "ampkit.autograd.graph",
    "torch.autograd.profiler": ".profiler",
    "torch.autograd.variable": "ampkit.autograd .derivatives.autograd",
    "torch.backends": "",
    "torch.backends.cpu": ".backends.cpu",
    "torch.backends.cuda": "ampkit.backends.cuda .backends.cuda",
    "torch.backends.cudnn": "= ampkit.backends.cudnn",
    **_below("torch.backends", "mkl mkldnn mps nnpack openmp opt_einsum xnnpack", ".backends.unavailable"),
    "torch.compiler": ".tracing.compiler",
    "torch.cpu": ".cpu",
    "torch.cpu.amp": ".cpu.amp",
    "torch.cuda": "ampkit.cuda .cuda",
    "torch.cuda.amp": ".cuda.amp",
    **_below("torch.cuda.amp", "autocast_mode grad_scaler common", ".cuda.amp"),
    "torch.cuda.memory": "ampkit.cuda .cuda",
    "torch.cuda.nvtx": ".cuda.nvtx",
    "torch.cuda.random": "ampkit.cuda .cuda",
    "torch.cuda.streams": ".cuda",
    "torch.distributed": "ampkit.distributed .distributed",
    "torch.distributed.constants": ".distributed.constants",
    "torch.distributed.device_mesh": "ampkit.distributed",
    "torch.distributed.distributed_c10d": "ampkit.distributed .distributed",
    "torch.distributed.checkpoint": "ampkit.distributed.checkpoint",
    **_below("torch.distributed.checkpoint", "filesystem state_dict_loader state_dict_saver",
             "ampkit.distributed.checkpoint"),
    "torch.distributed.checkpoint.state_dict": "ampkit.distributed.checkpoint.state_dict",
    **_below("torch.distributed", "fsdp fsdp.fully_shard _composable.fsdp", "ampkit.distributed.fsdp"),
    "torch.distributed.optim": "ampkit.distributed.optim",
    "torch.distributed.rpc": "ampkit.distributed.rpc .distributed.rpc",
    "torch.distributed.rpc.api": "ampkit.distributed.rpc .distributed.rpc",
    "torch.distributed.rpc.functions": "ampkit.distributed.rpc.functions",
    "torch.distributions": "ampkit.distributions",
    **_below("torch.distributions", _DISTRIBUTIONS, "ampkit.distributions"),
    **_below("torch.distributions", "relaxed_bernoulli relaxed_categorical",
             "ampkit.distributions ampkit.distributions.relaxed"),
    "torch.distributions.constraint_registry": "ampkit.distributions.constraint_registry",
    "torch.distributions.constraints": "= ampkit.distributions.constraints",
    "torch.distributions.kl": "= ampkit.distributions.kl",
    "torch.distributions.transforms": "= ampkit.distributions.transforms",
    "torch.distributions.utils": ".utils.distributions",
    **_below("torch.distributed", "tensor tensor.parallel tensor.parallel.style tensor.placement_types",
             "ampkit.distributed.tensor .distributed.tensor"),
    "torch.distributed.pipelining": "ampkit.distributed.pipelining",
    "torch.func": "ampkit.func .derivatives.func",
    "torch.functional": "ampkit",
    "torch.futures": "ampkit.distributed.rpc.futures",
    "torch.fx": ".tracing.fx",
    "torch.hub": ".utils.hub",
    "torch.jit": ".tracing.jit",
    "torch._jit_internal": ".tracing.jit",
    "torch.jit.annotations": "typing .tracing.annotations",
    "torch.linalg": "ampkit.linalg",
    "torch.mps": ".backends.unavailable",
    "torch.multiprocessing": "multiprocessing .multiprocessing",
    "torch.library": ".dispatch.library",
    "torch.onnx": "ampkit.serialization.onnx .tracing.exporter",
    "torch.onnx.symbolic_helper": ".tracing.exporter",
    "torch.nn": "ampkit.nn .nn.parallel",
    "torch.nn.attention": ".nn.attention",
    "torch.nn.attention.flex_attention": ".nn.flex_attention",
    "torch.nn.common_types": ".nn.modules",
    "torch.nn.functional": "ampkit.ops .nn.multihead .nn.in_place .nn.implicit_dim",
    **_below("torch.nn", "grad functional.grad", ".nn.grad"),
    "torch.nn._reduction": ".nn.reduction",
    "torch.nn.init": "ampkit.nn.init .nn.init",
    "torch.nn.modules": "ampkit.nn",
    **_below("torch.nn.modules", _LAYERS, "ampkit.nn .nn.modules"),
    "torch.nn.modules.module": "ampkit.nn .nn.modules ampkit.nn.modules.module",
    "torch.nn.parallel": "ampkit.nn.parallel .nn.parallel",
    **_below("torch.nn.parallel", "data_parallel distributed", "ampkit.nn.parallel .nn.parallel"),
    "torch.nn.parallel.scatter_gather": ".nn.scatter_gather",
    "torch.nn.parameter": "ampkit.nn .nn.parameter",
    "torch.nn.utils": "ampkit.nn.utils",
    "torch.nn.utils.clip_grad": "ampkit.nn.utils",
    "torch.nn.utils.fusion": "ampkit.nn.utils",
    "torch.nn.utils.parametrizations": "ampkit.nn.utils.parametrizations",
    "torch.nn.utils.parametrize": "ampkit.nn.utils.parametrize",
    "torch.nn.utils.prune": "ampkit.nn.utils.prune",
    "torch.nn.utils.rnn": "ampkit.nn.utils.rnn",
    "torch.nn.utils.spectral_norm": "ampkit.nn.utils",
    "torch.nn.utils.stateless": "ampkit.nn.utils.stateless",
    "torch.nn.utils.weight_norm": "ampkit.nn.utils",
    "torch.optim": "ampkit.optim",
    "torch.optim.lr_scheduler": "ampkit.optim.lr_scheduler .optim.lr_scheduler",
    "torch.optim.optimizer": "ampkit.optim .optim.optimizer",
    "torch.optim.swa_utils": "ampkit.optim.swa_utils",
    **_below("torch.optim", "adadelta adafactor adagrad adam adamax adamw asgd lbfgs nadam radam rmsprop rprop sgd",
             "ampkit.optim"),
    "torch.overrides": ".dispatch.overrides",
    "torch.profiler": ".profiler",
    "torch.profiler.profiler": ".profiler",
    "torch.random": ".random",
    "torch.serialization": ".serialization",
    "torch.sparse": "ampkit.ops.sparse .utils.sparse",
    "torch.special": "ampkit.special",
    "torch.storage": ".top",
    "torch.testing": ".testing",
    "torch.torch_version": ".utils.torch_version",
    "torch.types": ".types",
    "torch.utils": "ampkit.utils",
    "torch.utils._contextlib": ".utils.contextlib",
    "torch.utils._pytree": ".utils.pytree .utils.pytree_keys .utils.pytree_text",
    "torch.utils._triton": ".utils.triton",
    "torch.utils._python_dispatch": ".utils.python_dispatch",
    "torch.utils.benchmark": ".utils.benchmark",
    "torch.utils.checkpoint": ".utils.checkpoint",
    "torch.utils.data": "ampkit.utils.data",
    "torch.utils.data.dataloader": "ampkit.utils.data .utils.data",
    **_below("torch.utils.data", "dataset distributed sampler", "ampkit.utils.data"),
    "torch.utils.cpp_extension": ".utils.cpp_extension",
    "torch.utils.data._utils": "",
    "torch.utils.data._utils.collate": "ampkit.data.collate",
    "torch.utils.dlpack": ".utils.dlpack",
    "torch.utils.flop_counter": ".utils.flop_counter",
    "torch.utils.hooks": ".utils.hooks",
    "torch.utils.tensorboard": ".utils.tensorboard",
    "torch.utils.model_zoo": ".utils.hub",
    "torch.utils.weak": ".utils.weak",
    "torch.version": ".version",
    "torch.xpu": ".backends.unavailable",
}  # fmt: skip

# The private modules of PyTorch 2.13: libraries import names of them that they then use with PyTorch's own objects.
_PRIVATE = (
    "_VF _awaits _classes _compile _custom_op _custom_ops _decomp _dispatch _dynamo _environment _export _functorch "
    "_guards _higher_order_ops _inductor _jit_internal _lazy _library _linalg_utils _lobpcg _logging _lowrank "
    "_meta_registrations _native _numpy _opaque_base _ops _prims _prims_common _python_dispatcher _refs _sources "
    "_streambase _strobelight _subclasses _tensor _tensor_str _thread_safe_fork _utils _utils_internal _vendor "
    "_vmap_internals _weights_only_unpickler"
)
_PRIVATE_UTILS = (
    "_config_module _cxx_pytree _debug_mode _device _foreach_utils _mode_utils _python_dispatch _stats "
    "_sympy _traceback _triton _typing_utils _zip"
)
_INTERNAL = "a private name of PyTorch, which has no equivalent"
_EAGER = "Python code runs directly: leave it out"
_RANKS = "ampkit.distributed has DistributedDataParallel (docs/distributed.md)"
REFUSED = {
    **_below("functorch", "compile dim einops", "torch.func has the transforms of functions"),
    **_below("torch", _PRIVATE, _INTERNAL),
    **_below("torch._C", "_distributed_c10d _distributed_rpc _functorch _lazy _onnx _profiler", _INTERNAL),
    "torch._dynamo": _EAGER,
    "torch._inductor": _EAGER,
    "torch.classes": _EAGER,
    "torch.ao": "float16 and bfloat16 are the dtypes below float32",
    **_below("torch.distributed", "_composable _functional_collectives _shard _tensor nn", _RANKS),
    "torch.distributed.autograd": "send gradients by a call: rpc.rpc_sync(owner, apply_gradient, args=(x.grad,))",
    "torch.distributed.algorithms": _RANKS,
    # What these have is in SOURCES; the rest says what to use.
    "torch.distributed.checkpoint": "save, load and async_save of torch.distributed.checkpoint",
    "torch.distributed.fsdp": "torch.distributed.fsdp.fully_shard, PyTorch's FSDP2",
    "torch.distributed.rpc": "rpc_sync, rpc_async and remote of torch.distributed.rpc",
    "torch.distributed.tensor": "parallelize_module and distribute_tensor of torch.distributed.tensor",
    "torch.distributed.elastic": _RANKS,
    "torch.distributed.pipelining": "PipelineStage, Schedule1F1B and ScheduleGPipe of torch.distributed.pipelining",
    "torch.export": "save the weights: torch.save(model.state_dict(), path)",
    "torch.fft": "np.fft of x.numpy(), not differentiable",
    "torch.fx": _EAGER,
    "torch.masked": "torch.where, and sums over the elements that count",
    "torch.nested": "pad: torch.nn.utils.rnn.pad_sequence",
    "torch.onnx": "torch.onnx.export writes a model that ran; the registries of PyTorch's exporter have no equivalent",
    "torch.quantization": "float16 and bfloat16 are the dtypes below float32",
    **_below("torch.utils", _PRIVATE_UTILS, _INTERNAL),
    **_below("torch.nn.utils", "_deprecation_utils _expanded_weights _named_member_accessor", _INTERNAL),
    "torch.utils.data._utils": _INTERNAL,
    "torch.utils.data.datapipes": "an IterableDataset, or a Dataset",
    "torch.utils.cpp_extension": "C++ and CUDA for PyTorch need PyTorch; an op of array code, with kernels: "
    "docs/add-an-op.md",
}
# Classes only, not functions, of which libraries ask whether they are there.
CLASSES = {"torch._C": _INTERNAL}


def refusal(path: str) -> str | None:
    """The cure of a path that is, or is below, a module in REFUSED or one of PyTorch's that is not in SOURCES; or None.

    A module can be imported where there is a cure.
    """
    space, _, name = path.rpartition(".")
    if space in CLASSES:
        return CLASSES[space] if name.lstrip("_")[:1].isupper() else None
    while path:
        if path in REFUSED:
            return REFUSED[path]
        if path in SOURCES:
            return None
        if path in known()["modules"]:
            return "docs/coming-from-pytorch.md lists what there is"
        path = path.rpartition(".")[0]
    return None
