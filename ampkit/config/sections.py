"""What a recipe can say: its sections as frozen pydantic models. Defaults stand here and nowhere else."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..data import cifar10, digits, mnist, synthetic, text

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]  # a probability, or a decay of a moment
Part = Annotated[float, Field(gt=0, lt=1)]
# TOML has lists and no tuples.
Sizes = Annotated[tuple[Count, ...], Field(strict=False, min_length=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
ImageShape = Annotated[tuple[Count, Count, Count], Field(strict=False)]  # channels, height, width
Channels = Annotated[tuple[float, ...], Field(strict=False, min_length=1)]
Spreads = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda or cuda:<index>")]


class Section(BaseModel):
    """A table of a recipe: frozen, of exact types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# A model's keys are the arguments of the function that builds it; what depends on the data comes from there.


class MLP(Section):
    """`models.mlp`: linear layers of `hidden` units over the flattened image."""

    name: Literal["mlp"]
    hidden: Sizes = (256, 256)
    activation: Literal["relu", "gelu", "silu", "tanh", "sigmoid"] = "relu"
    dropout: Share = 0.0


class CNN(Section):
    """`models.cnn`: `stages` of 3 x 3 convolutions with batch norm, the first of `width` channels."""

    name: Literal["cnn"]
    width: Count = 32
    stages: Count = 2
    dropout: Share = 0.0


class ResNet(Section):
    """`models.resnet18` and its kin; the CIFAR stem keeps the size of the image."""

    name: Literal["resnet18", "resnet34", "resnet50"]
    stem: Literal["cifar", "imagenet"] = "cifar"


class LeNet5(Section):
    """`models.lenet5`, for square images."""

    name: Literal["lenet5"]


class ConvMixer(Section):
    """`models.convmixer` over squares of `patch_size` pixels."""

    name: Literal["convmixer"]
    dim: Count = 64
    depth: Count = 4
    kernel_size: Count = 5
    patch_size: Count = 2


class ViT(Section):
    """`models.vit` over squares of `patch_size` pixels."""

    name: Literal["vit"]
    patch_size: Count = 4
    num_layers: Count = 6
    num_heads: Count = 4
    hidden_dim: Count = 128
    mlp_dim: Count = 256
    dropout: Share = 0.0
    attention_dropout: Share = 0.0


class GPT(Section):
    """`models.gpt`; `block_size` tokens at once, out of `vocab_size`."""

    name: Literal["gpt"]
    vocab_size: Count = 256
    block_size: Count = 128
    n_layer: Count = 4
    n_head: Count = 4
    n_embd: Count = 128
    dropout: Share = 0.0
    bias: bool = True
    tie_weights: bool = True


class Digits(Section):
    """The handwritten digits of `ampkit.data.digits`."""

    name: Literal["digits"]
    batch_size: Count = 64
    shape: ClassVar[tuple[int, ...]] = digits.SHAPE
    classes: ClassVar[int] = digits.CLASSES


class Pictured(Section):
    """Images normalized and, in training, augmented batch by batch (`ampkit.data.augment`).

    crop: zeros around an image before a window of its size is taken at random. flip: mirror half of them. cutout: side
    of a square set to the mean. workers: threads that make batches ahead; 0 makes them when they are due.
    """

    name: str
    folder: str
    batch_size: Count = 64
    crop: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    cutout: Annotated[int, Field(ge=0)] = 0
    workers: Annotated[int, Field(ge=0)] = 0


class MNIST(Pictured):
    """MNIST in its official files, from `folder`, or with `download` fetched into it (`ampkit.data.mnist`)."""

    name: Literal["mnist"]
    download: bool = False
    shape: ClassVar[tuple[int, ...]] = mnist.SHAPE
    classes: ClassVar[int] = mnist.CLASSES
    mean: ClassVar[tuple[float, ...]] = mnist.MEAN
    std: ClassVar[tuple[float, ...]] = mnist.STD


class CIFAR10(Pictured):
    """CIFAR-10 in its binary version, from `folder`, or with `download` fetched into it (`ampkit.data.cifar10`)."""

    name: Literal["cifar10"]
    download: bool = False
    shape: ClassVar[tuple[int, ...]] = cifar10.SHAPE
    classes: ClassVar[int] = cifar10.CLASSES
    mean: ClassVar[tuple[float, ...]] = cifar10.MEAN
    std: ClassVar[tuple[float, ...]] = cifar10.STD


class Images(Pictured):
    """A folder per class under `folder`, and under `held_out` to evaluate on (`ampkit.data.imagefolder`).

    shape: channels, height and width of every image. mean, std: by channel, or one for all, of values in [0, 1].
    """

    name: Literal["images"]
    held_out: str
    shape: ImageShape
    classes: Annotated[int, Field(ge=2)]
    mean: Channels = (0.5,)
    std: Spreads = (0.25,)


class Text(Section):
    """The bytes of a file or a folder (`ampkit.data.text`); the last share `validation` is held out."""

    name: Literal["text"]
    path: str | None = None
    limit: Count = text.LIMIT
    validation: Part = 0.1
    batch_size: Count = 12
    least_vocab: ClassVar[int] = text.VOCABULARY


class SyntheticImages(Section):
    """`count` images of `ampkit.data.synthetic`; a share `validation` of them is held out."""

    name: Literal["synthetic_images"]
    shape: ImageShape = (3, 32, 32)
    classes: Annotated[int, Field(ge=2)] = 10
    count: Annotated[int, Field(ge=2)] = 2048
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 32


class SyntheticTokens(Section):
    """`count` sequences of `ampkit.data.synthetic`, of the model's block_size and vocab_size."""

    name: Literal["synthetic_tokens"]
    count: Annotated[int, Field(ge=2)] = 2048
    validation: Part = 0.1
    seed: Seed = 0
    batch_size: Count = 12
    least_vocab: ClassVar[int] = synthetic.LEAST_VOCABULARY


class SGD(Section):
    """`optim.SGD`."""

    name: Literal["sgd"]
    lr: Positive = 1e-3
    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0


class Adam(Section):
    """`optim.Adam` or `optim.RAdam`: weight_decay joins the gradient."""

    name: Literal["adam", "radam"]
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class AdamW(Section):
    """`optim.AdamW`: weight_decay shrinks the weight."""

    name: Literal["adamw"] = "adamw"
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.01


class Adamax(Section):
    """`optim.Adamax`: the largest gradient of late for the root mean square."""

    name: Literal["adamax"]
    lr: Positive = 2e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0


class Adagrad(Section):
    """`optim.Adagrad`: step sizes fall with all gradients so far."""

    name: Literal["adagrad"]
    lr: Positive = 1e-2
    lr_decay: NotNegative = 0.0
    eps: Positive = 1e-10
    weight_decay: NotNegative = 0.0
    initial_accumulator_value: NotNegative = 0.0


class RMSprop(Section):
    """`optim.RMSprop`: the gradient over its running root mean square."""

    name: Literal["rmsprop"]
    lr: Positive = 1e-2
    alpha: Share = 0.99
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.0
    centered: bool = False


class Lion(Section):
    """`optim.Lion`: the sign of a momentum; lr 3 to 10 times smaller than AdamW's."""

    name: Literal["lion"]
    lr: Positive = 1e-4
    betas: Betas = (0.9, 0.99)
    weight_decay: NotNegative = 0.0


class LAMB(Section):
    """`optim.LAMB`: for large batches, a step in proportion to each parameter's norm."""

    name: Literal["lamb"]
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.01


class Adafactor(Section):
    """`optim.Adafactor`: second moments as a row and a column."""

    name: Literal["adafactor"]
    lr: Positive = 1e-2
    beta2_decay: Annotated[float, Field(le=0)] = -0.8
    d: Annotated[float, Field(ge=1)] = 1.0
    weight_decay: NotNegative = 0.0


class Constant(Section):
    """The learning rate as it is, after `warmup` steps of linear rise."""

    name: Literal["constant"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0


class Cosine(Section):
    """Down to `eta_min` along half a cosine, after `warmup` steps of linear rise."""

    name: Literal["cosine"]
    warmup: Annotated[int, Field(ge=0)] = 0
    eta_min: NotNegative = 0.0


class Step(Section):
    """Times `gamma` every `step_size` steps, after `warmup` steps of linear rise."""

    name: Literal["step"]
    warmup: Annotated[int, Field(ge=0)] = 0
    step_size: Count
    gamma: Positive = 0.1


class Linear(Section):
    """Straight down to `end_factor` of the learning rate, after `warmup` steps of linear rise."""

    name: Literal["linear"]
    warmup: Annotated[int, Field(ge=0)] = 0
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0


class OneCycle(Section):
    """`OneCycleLR`: up from lr / div_factor over a share `pct_start` of the run, then down along a cosine."""

    name: Literal["onecycle"]
    pct_start: Part = 0.3
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4


class Amp(Section):
    """autocast, its policy and the loss scale. dtype = "float32" turns autocast off."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    policy: Literal["default", "fast"] = "default"
    overrides: dict[str, Literal["low", "float32", "widest", "keep", "banned"]] = {}
    init_scale: Positive = 65536.0
    growth_factor: Annotated[float, Field(gt=1)] = 2.0
    backoff_factor: Part = 0.5
    growth_interval: Count = 2000
    min_scale: Positive | None = None
    max_scale: Positive | None = None
    hysteresis: Count = 1


class Train(Section):
    """How long, from which seed, where.

    eval_every None: once, at the end. eval_batches None: all that is held out. grad_clip: the largest norm.
    threads: of matrix products, where they can be told (`ampkit doctor` says); None leaves them as they are, and the
    run directory says how many they were. bench_steps: how many `ampkit bench` takes in each precision; None: all.
    checkpoint_every: a checkpoint each so many steps; None: after each evaluation. The end and Ctrl-C leave one in any
    case. keep: how many of them, the newest, stay.
    """

    steps: Count | None = None
    epochs: Count | None = None
    bench_steps: Count | None = None
    seed: Seed = 0
    device: Device = "cpu"
    grad_clip: Positive | None = None
    accumulate: Count = 1
    log_every: Count = 10
    eval_every: Count | None = None
    eval_batches: Count | None = None
    checkpoint_every: Count | None = None
    keep: Count = 2
    threads: Count | None = None
    compile: bool = False


_named = Field(discriminator="name")
Model = Annotated[MLP | CNN | ResNet | LeNet5 | ConvMixer | ViT | GPT, _named]
Data = Annotated[Digits | MNIST | CIFAR10 | Images | Text | SyntheticImages | SyntheticTokens, _named]
Optimizer = Annotated[SGD | Adam | AdamW | Adamax | Adagrad | RMSprop | Lion | LAMB | Adafactor, _named]
Schedule = Annotated[Constant | Cosine | Step | Linear | OneCycle, _named]
