"""Training scripts of public repositories, with data made in the formats that they read; `scripts.py` runs them.

    python -m tests.peers.scripts --repositories DIR [--only NAME ...] --pytorch PYTHON

DIR holds a checkout of each repository under its name. Both interpreters need the libraries that the scripts import:
torchvision, timm, tensorboard, tensorboard-logger, wandb, blobfile, mpi4py, matplotlib, pandas, scikit-learn and scipy.
tiktoken, which downloads its vocabularies, has a stand-in. No script is edited.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .script import Script

_SETTINGS = {"CPU_ONLY": "1", "MPLBACKEND": "agg", "WANDB_MODE": "disabled", "PYTHONHASHSEED": "0"}
_SETTINGS["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"  # for code that old packages generated
_TORCHVISION = "pytorch-cifar100 WideResNet-pytorch pytorch-tutorial SupContrast torchdiffeq"
_TORCHVISION += " Pytorch-UNet recurrent-visual-attention pytorch-image-models stargan"
_TORCHVISION += " PyTorch-Tutorial PyTorchZeroToAll"


def real(
    source: str,
    path: str,
    arguments: str = "",
    data: Callable[[Path], None] | None = None,
    label: str = "",
    before: str = "",
    losses: int = 8,
    tolerance: float = 1e-5,
    stand_ins: str = "",
) -> Script:
    """A script with the libraries themselves."""
    settings = {**_SETTINGS, **({"MADE_FILES": "1"} if source in _TORCHVISION.split() else {})}
    return Script(source, path, arguments, data, before, losses, tolerance, label, stand_ins, settings)


def several(*makers: Callable[[Path], None]) -> Callable[[Path], None]:
    """One maker of data of several."""

    def make(folder: Path) -> None:
        for maker in makers:
            maker(folder)

    return make


def cifar10(root: str, images: int = 8) -> Callable[[Path], None]:
    """CIFAR-10's six batches of random images, as torchvision reads them."""

    def make(folder: Path) -> None:
        place, draw = folder / root / "cifar-10-batches-py", np.random.default_rng(0)
        place.mkdir(parents=True)
        for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
            values = {"data": draw.integers(0, 256, (images, 3072), np.uint8), "labels": draw.integers(0, 10, images)}
            (place / name).write_bytes(pickle.dumps({**values, "labels": values["labels"].tolist()}))
        (place / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(n) for n in range(10)]}))

    return make


def cifar100(root: str, images: int = 32) -> Callable[[Path], None]:
    """CIFAR-100's two files of random images, as torchvision reads them."""

    def make(folder: Path) -> None:
        place, draw = folder / root / "cifar-100-python", np.random.default_rng(0)
        place.mkdir(parents=True)
        for name in ("train", "test"):
            labels = draw.integers(0, 100, images).tolist()
            values = {"data": draw.integers(0, 256, (images, 3072), np.uint8), "fine_labels": labels}
            (place / name).write_bytes(pickle.dumps(values))
        (place / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(n) for n in range(100)]}))

    return make


def mnist(root: str, images: int = 256) -> Callable[[Path], None]:
    """MNIST's four files of random digits, as torchvision reads them."""

    def make(folder: Path) -> None:
        place, draw = folder / root / "MNIST/raw", np.random.default_rng(0)
        place.mkdir(parents=True)
        for part in ("train", "t10k"):
            for name, shape, top in (("images-idx3", (images, 28, 28), 256), ("labels-idx1", (images,), 10)):
                head = np.array([0x800 + len(shape), *shape], ">i4").tobytes()
                values = draw.integers(0, top, shape, np.uint8).tobytes()
                (place / f"{part}-{name}-ubyte").write_bytes(head + values)

    return make


def folders(root: str, side: int = 48, parts: str = "train val") -> Callable[[Path], None]:
    """Images in a folder for each of two classes, as ImageFolder reads them."""

    def make(folder: Path) -> None:
        from PIL import Image

        draw = np.random.default_rng(0)
        for part in parts.split():
            for kind in ("cat", "dog"):
                place = folder / root / part / kind
                place.mkdir(parents=True)
                for n in range(8):
                    Image.fromarray(draw.integers(0, 256, (side, side, 3), np.uint8)).save(place / f"{n}.png")

    return make


def masks(folder: Path) -> None:
    """Images of cars and their masks, for Pytorch-UNet."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for n in range(12):
        Image.fromarray(draw.integers(0, 256, (48, 64, 3), np.uint8)).save(folder / f"data/imgs/{n}.png")
        mask = Image.fromarray(255 * draw.integers(0, 2, (48, 64), np.uint8))
        mask.save(folder / f"data/masks/{n}_mask.png"), mask.save(folder / f"data/masks/{n}.png")


def citations(folder: Path) -> None:
    """A citation graph in the files of Cora: 1600 papers of 40 words and 4 subjects."""
    draw, papers = np.random.default_rng(0), 1600
    (folder / "data/cora").mkdir(parents=True, exist_ok=True)
    rows = [[n + 1, *draw.integers(0, 2, 40), f"subject{draw.integers(4)}"] for n in range(papers)]
    (folder / "data/cora/cora.content").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    pairs = draw.integers(1, papers + 1, (2 * papers, 2))
    (folder / "data/cora/cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))


def treebank(place: str) -> Callable[[Path], None]:
    """Texts of random words, in the three files of the Penn treebank."""

    def make(folder: Path) -> None:
        draw = np.random.default_rng(0)
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in ("train", "valid", "test"):
            lines = [" ".join(f"word{n}" for n in row) for row in draw.integers(0, 40, (120, 20))]
            (folder / place / f"{name}.txt").write_text("\n".join(lines))

    return make


def sentences(folder: Path) -> None:
    """Pairs of sentences, and the commands of BERT-pytorch as its installation makes them."""
    draw = np.random.default_rng(0)
    lines = ["\t".join(" ".join(f"w{n}" for n in draw.integers(0, 30, 8)) for _ in range(2)) for _ in range(32)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    (folder / "bert.py").write_text("from bert_pytorch.__main__ import train\n\ntrain()\n")
    (folder / "bert_vocab.py").write_text("from bert_pytorch.dataset.vocab import build\n\nbuild()\n")


def tokens(folder: Path) -> None:
    """A file of tokens, as llm.c's scripts for data write it."""
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, 4000
    values = np.random.default_rng(0).integers(0, 50257, 4000).astype(np.uint16)
    (folder / "tokens.bin").write_bytes(head.tobytes() + values.tobytes())


def series(folder: Path) -> None:
    """A table of seven random walks by the hour, as ETTh1."""
    walks = np.random.default_rng(0).standard_normal((17420, 7)).cumsum(0) / 50
    hours = np.datetime64("2016-07-01T00", "h") + np.arange(len(walks))
    rows = [
        f"{str(h)[:10]} {str(h)[11:13]}:00:00," + ",".join(f"{v:.4f}" for v in w)
        for h, w in zip(hours, walks, strict=True)
    ]
    (folder / "ETTh1.csv").write_text("\n".join(["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *rows]))


def installed(package: str) -> Callable[[Path], None]:
    """The repository's package beside the script, as after its installation."""

    def make(folder: Path) -> None:
        (folder / package).symlink_to(folder.parent / package)

    return make


INFORMER = "--model informer --data ETTh1 --root_path ./ --d_model 32 --d_ff 32 --batch_size 8 --itr 1 --dropout 0"
INFORMER += " --train_epochs 1 --e_layers 2"
BERT = "-c corpus.txt -t corpus.txt -v vocab.pkl -o bert.model -hs 32 -l 2 -a 4 -s 20 -b 8 -e 2 -w 0"
AWD = "--batch_size 8 --data data/penn/ --dropout 0 --dropouth 0 --dropouti 0 --dropoute 0 --wdrop 0 --epochs 1"
AWD += " --emsize 16 --nhid 24 --nlayers 2 --bptt 10 --lr 1"
UNET = "--epochs 1 --batch-size 2 --scale 1"
DIFFUSION = "--data_dir images/train --image_size 64 --num_channels 32 --num_res_blocks 1 --batch_size 4 --microbatch 2"
DIFFUSION += " --attention_resolutions 8 --lr_anneal_steps 6 --diffusion_steps 20 --num_head_channels 16"
TIMM = "--data-dir images --model resnet18 --num-classes 2 --img-size 32 -b 4 --epochs 1 --device cpu -j 0 --lr 0.01"
GPT2 = "--input_bin tokens.bin --device cpu --model d12 --batch_size 1 --sequence_length 32 --total_batch_size 64"
GPT2 += " --num_iterations 3 --write_tensors 0 --overfit_single_batch 0"
RAM = "--use_gpu False --batch_size 16 --epochs 1 --use_tensorboard False"
STAR = "--dataset RaFD --rafd_image_dir images/train --rafd_crop_size 48 --image_size 32 --c_dim 2 --batch_size 4"
STAR += " --g_conv_dim 8 --d_conv_dim 8 --g_repeat_num 1 --d_repeat_num 3 --n_critic 2 --use_tensorboard false"
REPOSITORIES = [
    *[
        real("pytorch-cifar100", "train.py", f"-net {net} -b 8 -lr 0.001", cifar100("data"))
        for net in ("mobilenetv2", "squeezenet")
    ],
    real("WideResNet-pytorch", "train.py", "--layers 10 --widen-factor 1 -b 8 --epochs 1", cifar10("../data")),
    real("Pytorch-UNet", "train.py", UNET, masks, losses=2),
    real("Pytorch-UNet", "train.py", f"{UNET} --classes 1 --bilinear", masks, losses=2),
    real("pyGAT", "train.py", "--no-cuda --epochs 4 --dropout 0 --nb_heads 2", citations, losses=4),
    real("pyGAT", "train.py", "--no-cuda --epochs 4 --dropout 0 --nb_heads 2 --sparse", citations, losses=4),
    real("pygcn", "pygcn/train.py", "--no-cuda --epochs 4 --dropout 0", lambda f: citations(f.parent), losses=4),
    real("TCN", "TCN/copy_memory/copymem_test.py", "--blank_len 40 --levels 3 --epochs 1"),
    real("TCN", "TCN/adding_problem/add_test.py", "--seq_len 40 --levels 3 --epochs 1"),
    real("awd-lstm-lm", "main.py", AWD, treebank("data/penn")),
    real("guided-diffusion", "scripts/image_train.py", DIFFUSION, folders("images", 64)),
    real("guided-diffusion", "scripts/image_train.py", f"{DIFFUSION} --use_fp16 True", folders("images", 64)),
    real("guided-diffusion", "scripts/classifier_train.py", "--data_dir images/train --image_size 64 "
           "--classifier_width 64 --classifier_depth 1 --iterations 4 --batch_size 4", folders("images", 64)),
    *[
        real("torchdiffeq", f"examples/{name}.py", more, maker)
        for name, more, maker in (
            ("ode_demo", "--data_size 100 --niters 6", None),
            ("ode_demo", "--data_size 100 --niters 6 --adjoint", None),
            ("odenet_mnist", "--nepochs 1 --batch_size 16", mnist(".data/mnist")),
        )
    ],
    real("BERT-pytorch", "bert.py", BERT, sentences, before="bert_vocab.py -c corpus.txt -o vocab.pkl"),
    real("pytorch-image-models", "train.py", TIMM, folders("images", 64)),
    real("pytorch-image-models", "train.py", f"{TIMM} --amp --amp-dtype bfloat16 --model-ema --mixup 0.2",
           folders("images", 64), tolerance=0.02),
    real("llm.c", "train_gpt2.py", GPT2, tokens, losses=2, stand_ins="tiktoken.py"),
    real("Informer2020", "main_informer.py", INFORMER, series),
    real("recurrent-visual-attention", "main.py", RAM, mnist("data")),
    *[
        real("nlp-tutorial", f"{folder}/{name}.py")
        for folder, name in (
            ("1-1.NNLM", "NNLM"), ("1-2.Word2Vec", "Word2Vec-Skipgram(Softmax)"), ("2-1.TextCNN", "TextCNN"),
            ("3-1.TextRNN", "TextRNN"), ("3-2.TextLSTM", "TextLSTM"), ("3-3.Bi-LSTM", "Bi-LSTM"),
            ("4-1.Seq2Seq", "Seq2Seq"), ("4-2.Seq2Seq(Attention)", "Seq2Seq(Attention)"),
            ("4-3.Bi-LSTM(Attention)", "Bi-LSTM(Attention)"),
        )
    ],
    *[
        real("pytorch-examples", f"{name}.py")
        for name in ("autograd/two_layer_net_autograd", "autograd/two_layer_net_custom_function", "nn/dynamic_net",
                     "nn/two_layer_net_module", "nn/two_layer_net_nn", "nn/two_layer_net_optim")
    ],
    *[
        real("pytorch-tutorial", f"tutorials/{name}/main.py", "", maker)
        for name, maker in (
            ("01-basics/linear_regression", None),
            ("01-basics/feedforward_neural_network", mnist("../../data")),
            ("02-intermediate/recurrent_neural_network", mnist("../../data")),
            ("02-intermediate/bidirectional_recurrent_neural_network", mnist("../../data")),
            ("02-intermediate/convolutional_neural_network", mnist("../../data")),
            ("02-intermediate/deep_residual_network", cifar10("../../data", 64)),
            ("02-intermediate/language_model", treebank("data")),
            ("03-advanced/generative_adversarial_network", mnist("../../data")),
            ("03-advanced/variational_autoencoder", mnist("../../data")),
        )
    ],
    *[
        real("PyTorch-Tutorial", f"tutorial-contents/{name}.py", "", mnist("mnist"), losses=losses)
        for name, losses in (
            ("202_variable", 1), ("301_regression", 8), ("302_classification", 8), ("304_save_reload", 8),
            ("306_optimizer", 8), ("401_CNN", 1), ("402_RNN_classifier", 4), ("403_RNN_regressor", 8),
            ("404_autoencoder", 8), ("406_GAN", 8), ("501_why_torch_dynamic_graph", 8), ("503_dropout", 8),
            ("504_batch_normalization", 8),
        )
    ],
    *[
        real("PyTorchZeroToAll", f"{name}.py", "", several(mnist("data"), mnist("mnist_data")), losses=losses)
        for name, losses in (
            ("03_auto_gradient", 8), ("05_linear_regression", 8), ("06_logistic_regression", 8),
            ("07_diabets_logistic", 8), ("08_2_dataset_loade_logistic", 8), ("09_01_softmax_loss", 0),
            ("09_2_softmax_mnist", 8), ("10_1_cnn_mnist", 8), ("11_1_toy_inception_mnist", 1),
            ("12_2_hello_rnn", 8), ("12_3_hello_rnn_seq", 1), ("12_4_hello_rnn_emb", 8),
        )
    ],
    real("ng-video-lecture", "bigram.py"),
    real("stargan", "main.py", STAR, folders("images"), losses=4),  # then Adam amplifies rounding: float64 agrees
    *[
        real("minimalRL", f"{name}.py", losses=losses, stand_ins="gymnasium gym.py")
        for name, losses in (
            ("REINFORCE", 8), ("actor_critic", 8), ("dqn", 8), ("ppo-lstm", 8), ("acer", 8),
            ("ppo", 3),  # later losses are differences of equal parts
        )
    ],
    real("SupContrast", "main_ce.py", "--batch_size 8 --epochs 1 --model resnet18 --learning_rate 0.01",
           cifar10("datasets")),
    real("SupContrast", "main_supcon.py", "--batch_size 8 --epochs 1 --model resnet18 --learning_rate 0.01",
           cifar10("datasets")),
]  # fmt: skip
