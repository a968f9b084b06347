"""The arguments of every command, and their help: declared without the library, so that help is there at once."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from .parser import Help, Parser, count, integer, number, path, share

FORMATS = "current,rowwise,blockwise,mxfp8,nvfp4,int8"  # what `ampkit lab` measures by itself
OBSERVERS = ("minmax", "percentile", "entropy")
SHELLS = ("bash", "zsh", "fish")


class _Version(argparse.Action):
    def __init__(self, option_strings: Any, dest: str, **options: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="print the version of ampkit and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        source = (Path(__file__).parents[1] / "ampkit" / "__init__.py").read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE)
        sys.stdout.write(f"ampkit {version}\n")
        parser.exit()


def parser() -> Parser:
    """The parser of the command line. What it parses has `command`, the name of the command, and `parser`, its own."""
    start = "to begin:\n  ampkit doctor\n  ampkit train digits_cnn\n  ampkit COMMAND --help"
    end = "exit status: 0 done, 1 the run failed, 2 the command line, a recipe or a file is wrong"
    what = "Train in automatic mixed precision on NumPy and CuPy."
    made = Parser("ampkit", description=what, epilog=f"{start}\n{end}", formatter_class=Help)
    made.add_argument("--version", action=_Version)
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="command")
    for declare in (
        _init, _train, _launch, _bench, _summary, _plan, _tune, _lab, _report, _evaluate, _predict, _generate, _export,
        _quantize, _keys, _completion, _ops, _doctor,
    ):  # fmt: skip
        declare(commands)
    return made


def _formats(text: str) -> tuple[str, ...]:
    from ampkit.cli.lab import formats  # only where formats are given

    return formats(text)


def _command(commands: Any, name: str, what: str, more: str, *examples: str) -> Parser:
    """Add a command. what: for the list of commands; more: what it prints and writes."""
    shown = "".join(f"\n  {line}" for line in examples)
    epilog = f"example{'s' * (len(examples) > 1)}:{shown}"
    made: Parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}. {more}", epilog=epilog, formatter_class=Help
    )
    made.set_defaults(parser=made)
    return made


def _recipe(command: Parser) -> None:
    what = "a TOML file, or the name of a recipe that comes with ampkit, such as digits_cnn"
    command.add_argument("recipe", type=path, metavar="RECIPE", help=what)
    what = "replaces a key of the recipe, such as amp.dtype=float16 or train.steps=100; `ampkit keys` lists the keys"
    command.add_argument("overrides", nargs="*", default=(), metavar="key=value", help=what)
    what = "cpu, cuda or cuda:<index>; by default the recipe's train.device, which is cpu unless it says otherwise"
    command.add_argument("--device", help=what)


def _run(command: Parser) -> None:
    what = "a run directory that `ampkit train` wrote, or what `ampkit export` or `ampkit quantize` wrote"
    command.add_argument("directory", type=path, metavar="RUN", help=what)
    what = "the weights of the last checkpoint (last, the default), or of the best evaluation (best)"
    command.add_argument("--weights", default="last", choices=("last", "best"), help=what)


def _trained(command: Parser) -> None:
    _run(command)
    what = "where to compute: cpu, cuda or cuda:<index>; by default where the run was trained"
    command.add_argument("--device", help=what)


def _json(command: Parser) -> None:
    command.add_argument("--json", type=path, metavar="FILE", help="also write the results to FILE, as JSON")


def _init(commands: Any) -> None:
    what = "write a recipe of your own, after questions about data, model and precision"
    more = "The recipe has a comment for every key. A file that exists is never replaced."
    made = _command(commands, "init", what, more, "ampkit init my", "ampkit init my --yes data.name=digits")
    made.add_argument("name", type=path, metavar="NAME", help="the recipe is written to NAME.toml")
    what = "answers a question before it is asked: data.name=images data.folder=photos amp.dtype=float16"
    made.add_argument("overrides", nargs="*", default=(), metavar="key=value", help=what)
    made.add_argument("--yes", action="store_true", help="ask nothing: what is not given is as proposed")


def _train(commands: Any) -> None:
    what = "train a recipe"
    more = (
        "Shows its progress and, at the end, its losses and scores. A run directory keeps the complete recipe "
        "(config.toml), the metrics (metrics.jsonl) and the checkpoints."
    )
    again = "ampkit train digits_cnn --run-dir runs/a --resume"
    examples = "ampkit train digits_cnn", "ampkit train digits_cnn amp.dtype=float16 --run-dir runs/a", again
    made = _command(commands, "train", what, more, *examples)
    _recipe(made)
    what = "the run directory, new or empty; by default runs/RECIPE-DTYPE-TIME"
    made.add_argument("--run-dir", type=path, metavar="DIR", help=what)
    what = "continue the run in --run-dir from its last checkpoint; where there is none, start it"
    made.add_argument("--resume", action="store_true", help=what)


def _launch(commands: Any) -> None:
    what = "train a recipe, or run a script, on several ranks"
    more = "Starts N processes, shows what rank 0 shows, and ends all of them when one dies, or starts them again."
    examples = "ampkit launch -n 4 train digits_cnn", "ampkit launch -n 2 --max-restarts 3 my_script.py --lr 0.1"
    made = _command(commands, "launch", what, more, *examples)
    made.add_argument("-n", type=integer, required=True, metavar="N", help="how many ranks: one per process")
    what = "start again up to K times (0) after a rank has died; `train` resumes from its last checkpoint"
    made.add_argument("--max-restarts", type=integer, default=0, metavar="K", help=what)
    what = "the launcher, with options such as a list of hosts (default: mpiexec, where mpi4py finds MPI)"
    made.add_argument("--mpiexec", default="", metavar="COMMAND", help=what)
    what = "start the ranks on this machine without MPI, connected by sockets (default where MPI is missing)"
    made.add_argument("--sockets", action="store_true", help=what)
    what = (
        "what each rank runs: `train RECIPE ...` with the arguments of `ampkit train`, or SCRIPT.py and its arguments"
    )
    made.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help=what)


def _bench(commands: Any) -> None:
    what = "train a recipe in float32, bfloat16 and float16, side by side"
    more = (
        "Prints a table of time per step, memory and losses, and what is faster or slower and why. Nothing is kept. "
        "train.bench_steps is the number of steps of each."
    )
    made = _command(commands, "bench", what, more, "ampkit bench digits_cnn train.bench_steps=50")
    _recipe(made)
    what = "compare with this run too: a run directory, for example of another version or machine"
    made.add_argument("--against", type=path, metavar="RUN", help=what)
    made.add_argument("--report", type=path, metavar="FILE", help="also write a page of charts, FILE.html")
    _json(made)


def _summary(commands: Any) -> None:
    what = "list the layers of a recipe's model, with their parameters, FLOPs and memory"
    more = "Prints a table of layers, and the memory of a training step in each precision. Nothing is trained."
    _recipe(_command(commands, "summary", what, more, "ampkit summary digits_cnn data.batch_size=256"))


def _plan(commands: Any) -> None:
    what = "show in which dtype each op of a recipe runs, why, and its casts"
    more = "Prints a table of the ops of one training step. Nothing is trained."
    examples = "ampkit plan digits_cnn", "ampkit plan digits_cnn --policy float16 --diff bfloat16"
    made = _command(commands, "plan", what, more, *examples)
    _recipe(made)
    expression = 'float16, bfloat16, float32 or an expression such as \'Policy("float16", softmax="low")\''
    made.add_argument("--policy", metavar="POLICY", help=f"instead of the recipe's: {expression}")
    what = "show only what runs differently under this policy, written like that of --policy"
    made.add_argument("--diff", metavar="POLICY", help=what)
    _json(made)


def _tune(commands: Any) -> None:
    what = "search the fastest policy of a recipe whose loss is near float32's"
    more = (
        "Measures the cost and the error of every op in 16 bits, trains with what it found, and prints the choices and "
        "the line of the recipe that makes them, amp.policy=..."
    )
    examples = "ampkit tune digits_cnn --error 0.005", "ampkit tune text_gpt --formats mxfp8,nvfp4 --memory 0.7"
    made = _command(commands, "tune", what, more, *examples)
    _recipe(made)
    what = "the largest relative error of the loss against float32's, with --formats against 16 bits: 0.01 (default)"
    made.add_argument("--error", type=share, metavar="SHARE", help=what)
    what = "search below 16 bits: recipes of quantization, separated by commas, as `ampkit lab` has them"
    made.add_argument("--formats", type=_formats, default=(), metavar="NAMES", help=what)
    what = "with --formats, instead of --error: the share of what linear layers keep for backward in 16 bits"
    made.add_argument("--memory", type=share, metavar="SHARE", help=what)
    what = "batches that the errors are measured on: 4 (default)"
    made.add_argument("--batches", type=count, default=4, metavar="N", help=what)
    what = "the dtype of 16 bits; by default the recipe's, or what autocast uses on its device"
    made.add_argument("--dtype", choices=("bfloat16", "float16"), help=what)
    what = "steps of the training that verifies; by default train.bench_steps, or at most 300"
    made.add_argument("--steps", type=count, metavar="N", help=what)
    _json(made)


def _lab(commands: Any) -> None:
    what = "measure which layers of a recipe survive which format below 16 bits"
    more = "Prints the error of the loss by layer and format, a mixed policy, and what the loss becomes when it trains."
    examples = "ampkit lab digits_cnn", "ampkit lab text_gpt --formats mxfp8,nvfp4 --steps 100"
    made = _command(commands, "lab", what, more, *examples)
    _recipe(made)
    what = f"recipes of quantization, separated by commas: {FORMATS} (default)"
    made.add_argument("--formats", type=_formats, default=(), metavar="NAMES", help=what)
    what = "the largest relative error of the loss for the mixed policy: 0.01 (default)"
    made.add_argument("--budget", type=share, default=0.01, metavar="SHARE", help=what)
    what = "batches that the errors are measured on: 4 (default)"
    made.add_argument("--batches", type=count, default=4, metavar="N", help=what)
    what = "steps of each training; by default train.bench_steps, or at most 300"
    made.add_argument("--steps", type=count, metavar="N", help=what)
    made.add_argument("--measure-only", action="store_true", help="do not train with the formats afterwards")
    _json(made)
    what = "an existing run directory, whose report then shows the results"
    made.add_argument("--run-dir", type=path, metavar="RUN", help=what)


def _report(commands: Any) -> None:
    what = "write a page of charts that shows runs and compares them"
    more = "The page is one HTML file that needs no connection. Prints where it is."
    made = _command(commands, "report", what, more, "ampkit report runs/a --open", "ampkit report runs/a runs/b")
    made.add_argument("runs", nargs="+", type=path, metavar="RUN", help="a run directory; several are compared")
    what = "the HTML file to write; by default report.html, in the run directory if there is one alone"
    made.add_argument("--out", type=path, metavar="FILE", help=what)
    what = "run some steps of each recipe here first, to show where time and memory go and what runs in which dtype"
    made.add_argument("--measure", action="store_true", help=what)
    made.add_argument("--open", action="store_true", help="open the page in the browser")


def _evaluate(commands: Any) -> None:
    what = "print the scores of a trained run's model on its held-out data, or on other data"
    more = "Prints the validation loss and, for example, the accuracy."
    examples = "ampkit evaluate runs/a --weights best", "ampkit evaluate runs/houses new.csv"
    made = _command(commands, "evaluate", what, more, *examples)
    _trained(made)
    what = (
        "data like that of the run, of which all is evaluated: a folder of images with a folder per class, tables with "
        "the target, text (default: what the run held out)"
    )
    made.add_argument("inputs", nargs="*", default=(), type=path, metavar="INPUT", help=what)


def _predict(commands: Any) -> None:
    what = "print which classes a trained run's model sees in images, or what it predicts for rows of a table"
    more = (
        "Prints for each image a line: its path, the likeliest classes and their probabilities. For tables prints CSV: "
        "for each row the number, or the class and its probability."
    )
    examples = "ampkit predict runs/a cat.png photos --top 1", "ampkit predict runs/houses new.csv > prices.csv"
    made = _command(commands, "predict", what, more, *examples)
    _trained(made)
    what = "an image file of any size, or a folder of them; or a CSV or Parquet file that has the columns trained on"
    made.add_argument("inputs", nargs="+", type=path, metavar="INPUT", help=what)
    what = "how many classes to print, the likeliest first; by default 3 for an image, 1 for a row"
    made.add_argument("--top", type=integer, metavar="K", help=what)


def _generate(commands: Any) -> None:
    what = "continue a text with a trained run's language model"
    more = "Prints the prompt and what follows, as it is drawn."
    made = _command(commands, "generate", what, more, 'ampkit generate runs/text --prompt "def " --count 500')
    _trained(made)
    made.add_argument("--prompt", default="", metavar="TEXT", help="the text to continue; by default a new line")
    what = "how much to generate: N bytes, or N tokens of a model with a tokenizer (200)"
    made.add_argument("--count", type=integer, default=200, metavar="N", help=what)
    what = "divides the logits before a draw: 0 takes the likeliest each time, 1 draws as the model was trained (0.8)"
    made.add_argument("--temperature", type=number, default=0.8, metavar="T", help=what)
    made.add_argument("--top-k", type=integer, metavar="K", help="draw among the K likeliest (default: among all)")
    what = "seed of the draws: the same seed gives the same text (0)"
    made.add_argument("--seed", type=integer, default=0, metavar="N", help=what)


def _export(commands: Any) -> None:
    what = "write a trained run's model as safetensors with its recipe and a model card, or as ONNX"
    more = "Prints the files written and their sizes. `ampkit.load_run(DIR)` loads what is written to a directory."
    examples = "ampkit export runs/a", "ampkit export runs/a --to weights.safetensors"
    made = _command(commands, "export", what, more, *examples, "ampkit export runs/a --format onnx")
    _trained(made)
    what = "a new or empty directory (RUN/export); a file *.safetensors, for the weights alone; or a file *.onnx"
    made.add_argument("--to", type=path, metavar="PATH", help=what)
    what = "safetensors (default), or onnx: the model as a graph, which needs the extra onnx (RUN/model.onnx)"
    made.add_argument("--format", choices=("safetensors", "onnx"), help=what)


def _quantize(commands: Any) -> None:
    what = "convert a trained run's layers to int8 for inference, and show what that loses and saves"
    more = "Prints each layer's error, then loss, scores, time and memory before and after; writes the model to --to."
    examples = "ampkit quantize runs/a", "ampkit quantize runs/a --budget 0.01 --skip fc"
    made = _command(commands, "quantize", what, more, *examples)
    _run(made)
    what = "how the range of activations follows from those of calibration: minmax (default), percentile or entropy"
    made.add_argument("--observer", default="minmax", choices=OBSERVERS, help=what)
    what = "training batches to calibrate with (8)"
    made.add_argument("--batches", type=count, default=8, metavar="N", help=what)
    what = "by how much the loss may rise, relative: 0.01; layers that lose too much run in bfloat16"
    made.add_argument("--budget", type=share, metavar="SHARE", help=what)
    what = "a layer that stays as it is, by path, with * for any one part: fc, layer1.*.conv2; may be repeated"
    made.add_argument("--skip", action="append", default=[], metavar="LAYER", help=what)
    made.add_argument("--to", type=path, metavar="DIR", help="a new or empty directory (RUN/int8)")


def _keys(commands: Any) -> None:
    what = "list the keys of a recipe: type, default, meaning"
    more = "Prints an overview of the sections, or what one word means."
    examples = "ampkit keys", "ampkit keys optimizer", "ampkit keys adamw", "ampkit keys lr"
    made = _command(commands, "keys", what, more, *examples)
    what = "a section (optimizer), one of its kinds (adamw) or a key (lr, or optimizer.lr); without it, an overview"
    made.add_argument("word", nargs="?", metavar="WORD", help=what)
    made.add_argument("--all", action="store_true", help="the keys of every kind of every section")


def _completion(commands: Any) -> None:
    what = "print a script that completes commands, recipes and keys in a shell"
    more = "The first line of the script says where it goes. Write it again after an update of ampkit."
    example = "ampkit completion bash > ~/.ampkit-completion && echo 'source ~/.ampkit-completion' >> ~/.bashrc"
    made = _command(commands, "completion", what, more, example)
    made.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")


def _ops(commands: Any) -> None:
    what = "list every op: cast category, dtype, kernels"
    more = "Prints what autocast does with each op under a policy, and the kernels tried, in their order."
    made = _command(commands, "ops", what, more, "ampkit ops --policy bfloat16", "ampkit ops | grep softmax")
    made.add_argument("--policy", default="float16", metavar="DTYPE", help="float16 (default) or bfloat16")
    made.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="whose kernels: cpu (default) or cuda")
    made.add_argument("--fast", action="store_true", help="the policy that stores norms and softmax in 16 bits")


def _doctor(commands: Any) -> None:
    what = "show what this machine has for mixed precision, and what is missing"
    more = "Prints a line for each part: what was found, and how to install what is missing."
    _command(commands, "doctor", what, more, "ampkit doctor")
