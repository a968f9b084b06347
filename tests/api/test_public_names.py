"""The public names, which are PyTorch's where PyTorch has one."""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import subprocess
import sys

import pytest

import ampkit
from ampkit.base import missing_names
from ampkit.base.errors import DeviceError

TOP = """
    tensor Tensor from_dlpack grad recompute fork wait no_grad enable_grad set_grad_enabled is_grad_enabled
    autocast Policy GradScaler is_autocast_enabled get_autocast_dtype reference_only observe
    manual_seed get_rng_state set_rng_state save load set_num_threads get_num_threads
    set_float32_matmul_precision get_float32_matmul_precision
    use_deterministic_algorithms are_deterministic_algorithms_enabled
    float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool half float double int long finfo device
    op Cast Saved Primitive nn optim ops models data utils amp autograd cuda Generator Size dtype inference_mode
    channels_last contiguous_format preserve_format strided inf nan pi e initial_seed
""".split()
PLACES = {
    "ampkit.nn": """
        Module Parameter Identity Linear Conv2d Embedding LayerNorm RMSNorm BatchNorm1d BatchNorm2d Dropout
        MultiheadAttention ReLU GELU SiLU Tanh Sigmoid Softmax MaxPool2d AvgPool2d AdaptiveAvgPool2d Flatten
        Sequential ModuleList CrossEntropyLoss MSELoss init functional
        ConvTranspose2d KLDivLoss ReLU6 Hardtanh LogSigmoid Softmin PReLU GLU SELU Hardswish Unfold Fold ZeroPad2d
        MaxPool1d AvgPool1d AdaptiveAvgPool1d Dropout2d CosineSimilarity PixelShuffle
        RNN LSTM GRU RNNCell LSTMCell GRUCell RNNBase utils
        Transformer TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer
        Conv1d Conv3d ConvTranspose1d ConvTranspose3d MaxPool3d AvgPool3d AdaptiveAvgPool3d AdaptiveMaxPool2d
        MaxUnpool2d LPPool2d BatchNorm3d ReflectionPad2d ReplicationPad3d CircularPad1d Upsample
    """,
    "ampkit.nn.utils.rnn": """
        PackedSequence pack_padded_sequence pack_sequence pad_packed_sequence pad_sequence unpad_sequence
        unpack_sequence
    """,
    "ampkit.nn.utils": """
        clip_grad_norm_ clip_grad_value_ clip_grads_with_norm_ get_total_norm parameters_to_vector vector_to_parameters
        weight_norm remove_weight_norm spectral_norm remove_spectral_norm fuse_conv_bn_eval fuse_linear_bn_eval
    """,
    "ampkit.nn.utils.parametrizations": "weight_norm spectral_norm",
    "ampkit.nn.utils.parametrize": """
        register_parametrization remove_parametrizations is_parametrized cached ParametrizationList
    """,
    "ampkit.optim": """
        SGD Adam AdamW Adagrad RMSprop Lion LAMB Adafactor Adamax RAdam NAdam Adadelta Rprop ASGD LBFGS Elementwise
        clip_grad_norm_ clip_grad_value_ lr_scheduler swa_utils
    """,
    "ampkit.optim.lr_scheduler": """
        StepLR CosineAnnealingLR LambdaLR LinearLR OneCycleLR SequentialLR ConstantLR MultiStepLR ExponentialLR
        PolynomialLR CosineAnnealingWarmRestarts ReduceLROnPlateau LRScheduler MultiplicativeLR ChainedScheduler
        CyclicLR
    """,
    "ampkit.optim.swa_utils": """
        AveragedModel get_ema_multi_avg_fn get_ema_avg_fn get_swa_multi_avg_fn get_swa_avg_fn SWALR update_bn
    """,
    "ampkit.utils.data": """
        TensorDataset DataLoader Dataset Subset ConcatDataset random_split Sampler SequentialSampler RandomSampler
        SubsetRandomSampler WeightedRandomSampler BatchSampler default_collate
        IterableDataset ChainDataset StackDataset default_convert get_worker_info
    """,
    "ampkit.cpu": "memory_allocated memory_reserved max_memory_allocated reset_peak_memory_stats empty_cache",
    "ampkit.cuda": """
        is_available device_count current_device get_device_name get_device_capability synchronize empty_cache
        memory_allocated max_memory_allocated memory_reserved reset_peak_memory_stats manual_seed manual_seed_all
    """,
    "ampkit.models": """
        mlp cnn resnet18 resnet34 resnet50 gpt vit vit_b_16 vit_b_32 vit_l_16 bert BertModel lenet5 convmixer vgg11
        vgg16 vgg16_bn vgg19 alexnet efficientnet_b0 efficientnet_b4 fcn_resnet50 deeplabv3_resnet50 wav2letter
    """,
    "ampkit.special": "expit gammaln entr xlog1py ndtr psi logit erf",
    "ampkit.linalg": """
        norm vector_norm matrix_norm multi_dot vecdot inv det slogdet solve solve_triangular cholesky eigh eigvalsh svd
        svdvals qr pinv matrix_rank matrix_power cross diagonal vander
    """,
    "ampkit.distributions": """
        Bernoulli Categorical Distribution Exponential Independent Laplace LogNormal Normal OneHotCategorical Uniform
        kl_divergence register_kl
    """,
    "ampkit.amp": "autocast GradScaler custom_fwd custom_bwd",
    "ampkit.autograd": """
        Function grad backward no_grad enable_grad set_grad_enabled inference_mode gradcheck gradgradcheck
        anomaly_mode detect_anomaly set_detect_anomaly graph
    """,
    "ampkit.autograd.graph": """
        GradientEdge Node allow_mutation_on_saved_tensors disable_saved_tensors_hooks get_gradient_edge
        increment_version register_multi_grad_hook save_on_cpu saved_tensors_hooks
    """,
    "ampkit.autograd.functional": "jacobian hessian vjp jvp vhp hvp",
    "ampkit.debug": "Finding detect_nonfinite explain",
    "ampkit.autograd.anomaly_mode": "detect_anomaly set_detect_anomaly",
    "ampkit.autograd.function": "Function once_differentiable",
}


@pytest.mark.parametrize("name", TOP)
def test_the_package_has_its_names(name):
    assert hasattr(ampkit, name)


@pytest.mark.parametrize(("place", "name"), [(p, name) for p, names in PLACES.items() for name in names.split()])
def test_each_module_has_its_names(place, name):
    found = ampkit
    for part in place.split(".")[1:]:
        found = getattr(found, part)
    assert hasattr(found, name)


@pytest.mark.parametrize(
    "place",
    [
        "nn",
        "nn.functional",
        "nn.utils.rnn",
        "nn.utils.parametrizations",
        "nn.utils.parametrize",
        "optim",
        "optim.lr_scheduler",
        "optim.swa_utils",
        "utils.data",
        "models",
        "data",
        "testing",
        "amp",
        "autograd",
        "autograd.function",
        "autograd.functional",
        "cuda",
        "linalg",
        "special",
        "distributions",
    ],
)
def test_a_module_can_be_imported_by_its_path_in_pytorch(place):
    importlib.import_module(f"ampkit.{place}")


def test_tensor_functions_are_the_same_objects_in_ops_and_at_the_top():
    differ = [name for name in ampkit.ops.__all__ if getattr(ampkit, name) is not getattr(ampkit.ops, name)]
    assert not differ


def test_the_package_has_no_unlisted_names():
    unlisted = {name for name in vars(ampkit) if not name.startswith("_") and name not in ampkit.__all__}
    assert all(inspect.ismodule(vars(ampkit)[name]) for name in unlisted if not hasattr(builtins, name))


PACKAGES = """
    amp autograd config data data.transforms debug distributed distributed.checkpoint distributed.rpc distributed.tensor
    distributions func models nn nn.quantization nn.utils ops optim optim.lr_scheduler run serialization testing
    utils.data
""".split()
# Names that two packages of PyTorch or torchvision have; `normal` of ampkit.testing draws an input of a Case.
TWICE = {"Transform", "get_worker_info", "grad", "load", "normal", "save", "scatter"}


def test_no_two_public_classes_or_functions_bear_one_name():
    homes = {}
    for module in [ampkit, *(importlib.import_module(f"ampkit.{name}") for name in PACKAGES)]:
        for name in getattr(module, "__all__", ()):
            if inspect.isclass(found := getattr(module, name)) or inspect.isfunction(found):
                homes.setdefault(name, set()).add(found.__module__)
    assert {name for name, places in homes.items() if len(places) > 1} == TWICE


def test_a_star_import_replaces_no_builtin():
    assert not {"bool", "float", "int", "sum", "abs", "all", "any", "round", "pow"} & set(ampkit.__all__)


def test_errors_are_subclasses_of_the_matching_builtin_errors():
    assert issubclass(ampkit.ShapeError, ValueError)
    assert issubclass(ampkit.DTypeError, TypeError)
    assert issubclass(ampkit.ScaleCollapseError, ampkit.NonFiniteError)
    assert all(issubclass(getattr(ampkit, name), ampkit.AmpkitError) for name in dir(ampkit) if name.endswith("Error"))


def test_importing_ampkit_loads_no_terminal_no_recipes_no_other_framework_and_no_parts_that_wait(tmp_path):
    ampkit.save(ampkit.models.lenet5(), tmp_path / "model.pt")
    code = "import sys, ampkit; print(*sys.modules); print(type(ampkit.load(sys.argv[1])).__name__)"
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
    modules, kind = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    waiting = {name.lstrip(".") for name in ampkit._LATER.values()}
    unneeded = {"rich", "pydantic", "argparse", "torch", "cupy", "subprocess", "multiprocessing", "numpy.polynomial"}
    unneeded |= {"ampkit.cli", "ampkit.run.loop", "ampkit.config", *(f"ampkit.{name}" for name in waiting)}
    assert not unneeded & set(modules.split())
    assert kind == "LeNet5"  # a file of a whole module, whose class waits, too


@pytest.mark.parametrize("name", ampkit._LATER)
def test_a_part_that_waits_is_listed_and_loaded_when_it_is_asked_for(name):
    assert name in ampkit.__all__ and name in dir(ampkit)
    assert getattr(ampkit, name).__name__.rpartition(".")[2] == name


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("fft", "ampkit has no torch.fft\nhelp: `np.fft` of `x.numpy()`"),
        ("jit", "`ampkit.compile` records a step"),
        ("hub", "`ampkit.models.from_pretrained(...)`"),
        ("backends.mps", "CPUs and NVIDIA GPUs"),
        ("overrides", "docs/coming-from-pytorch.md"),
        ("Linear", "ampkit has no ampkit.Linear\nhelp: it is `ampkit.nn.Linear`"),
        ("StepLR", "it is `ampkit.optim.lr_scheduler.StepLR`"),
        ("utils.data.DataLoader2", "module 'ampkit.utils.data' has no attribute 'DataLoader2'"),
    ],
)
def test_a_name_that_pytorch_has_there_or_elsewhere_is_refused_with_what_to_use(path, words):
    place, _, name = path.rpartition(".")
    found = importlib.import_module(f"ampkit.{place}".rstrip("."))
    with pytest.raises(AttributeError, match=re.escape(words)):
        getattr(found, name)
    assert not hasattr(found, name)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from ampkit import fft", "ampkit has no torch.fft\nhelp: `np.fft` of"),
        ("from ampkit import nn, Linear", "ampkit has no ampkit.Linear\nhelp: it is `ampkit.nn.Linear`"),
        ("from ampkit.optim import SparseAdam", "ampkit has no torch.optim.SparseAdam\nhelp: "),
        ("from ampkit import Nothing", "cannot import name 'Nothing' from 'ampkit'"),
    ],
)
def test_an_import_of_a_name_that_is_missing_says_what_to_use(source, said):
    with pytest.raises(ImportError, match=said):
        exec(source, {})
    exec("from ampkit import cli, data", {})  # modules that wait are loaded
    assert not hasattr(ampkit, "fft")


def test_each_module_of_pytorch_is_there_or_refused_with_what_to_use():
    names = [path.removeprefix("torch.") for path in missing_names.known()["modules"] if path.count(".") == 1]
    assert len(names) > 40
    for name in names:
        if not hasattr(ampkit, name):
            with pytest.raises(missing_names.MissingNameError, match=f"ampkit has no torch.{name}\nhelp: ."):
                getattr(ampkit, name)
    assert not [name for name in missing_names.MODULES if "." not in name and hasattr(ampkit, name)]


@pytest.mark.no_gpu
def test_a_script_that_asks_for_a_gpu_runs_without_one():
    assert ampkit.cuda.is_available() is False
    assert ampkit.cuda.device_count() == 0
    assert ampkit.amp.is_autocast_available("cpu")
    assert not ampkit.amp.is_autocast_available("cuda")
    with pytest.raises(DeviceError, match="is_autocast_available: needs device_type 'cpu' or 'cuda', got 'no device'"):
        ampkit.amp.is_autocast_available("no device")


@pytest.mark.no_gpu
def test_whether_there_is_a_gpu_is_found_out_once(monkeypatch):
    """Libraries ask at every step, and the search for the driver starts other programs."""
    assert ampkit.cuda.is_available() is False
    monkeypatch.setattr("subprocess.Popen", None)
    assert ampkit.cuda.is_available() is False
    assert ampkit.cuda.device_count() == 0
    ampkit.cuda.empty_cache()
    before = ampkit.get_rng_state()
    ampkit.cuda.manual_seed_all(3)
    assert ampkit.get_rng_state() == before
    for call in (ampkit.cuda.synchronize, ampkit.cuda.current_device):
        with pytest.raises(ampkit.DeviceError):
            call()


def test_inference_mode_records_nothing_as_a_context_and_as_a_decorator():
    x = ampkit.ones(2, requires_grad=True)
    with ampkit.inference_mode():
        assert not (x * 2).requires_grad
        assert ampkit.is_inference_mode_enabled()
        with ampkit.inference_mode(False):
            assert not ampkit.is_inference_mode_enabled()
            assert (x * 2).requires_grad
        assert ampkit.is_inference_mode_enabled()
    assert not ampkit.is_inference_mode_enabled()
    assert ampkit.inference_mode(ampkit.is_inference_mode_enabled)()
    assert not ampkit.inference_mode()(lambda: x * 2)().requires_grad
    assert (x * 2).requires_grad


def test_ops_exports_its_own_functions_only():
    from ampkit import ops

    foreign = [name for name in ops.__all__ if not getattr(ops, name).__module__.startswith("ampkit.ops")]
    assert foreign == ["tensor"]  # of core
