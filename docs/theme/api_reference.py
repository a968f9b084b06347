"""A MkDocs hook that makes `api/*.md`: a directive of mkdocstrings for each public name of each namespace.

Public names are asked of the imported package and their definitions of griffe, which reads the source. The pages are
not committed, so they cannot be out of date.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

import ampkit

# The namespace of each page of the API reference, its title, and what to say first.
NAMESPACES = {
    "ampkit": ("ampkit", "The names of the package itself. Every function of `ampkit.ops` is one of them, too."),
    "ampkit.nn": ("nn", "Layers and losses."),
    "ampkit.nn.init": ("nn.init", "Initial values of parameters."),
    "ampkit.nn.lora": ("nn.lora", "Low-rank adaptation, with the words and files of PEFT."),
    "ampkit.nn.quantization": ("nn.quantization", "Inference in int8, by quantization after training."),
    "ampkit.nn.utils": ("nn.utils", "Clipping, vectors of parameters, weight and spectral norm."),
    "ampkit.optim": ("optim", "Optimizers. Their state is updated in float32, whatever the parameters' dtype."),
    "ampkit.optim.lr_scheduler": ("optim.lr_scheduler", "Learning-rate schedules. They do not count skipped steps."),
    "ampkit.optim.swa_utils": ("optim.swa_utils", "Averages of weights."),
    "ampkit.amp": ("amp", "autocast and loss scaling."),
    "ampkit.autograd": ("autograd", "Gradients by hand, and functions with a backward of their own."),
    "ampkit.autograd.functional": ("autograd.functional", "Jacobians, Hessians, and their products with vectors."),
    "ampkit.autograd.forward_ad": ("autograd.forward_ad", "Forward-mode derivatives by dual tensors."),
    "ampkit.func": ("func", "Derivatives of functions, as functions."),
    "ampkit.distributions": ("distributions", "Distributions to sample from, with densities on the tape."),
    "ampkit.linalg": ("linalg", "Linear algebra."),
    "ampkit.special": ("special", "Special functions."),
    "ampkit.ops.sparse": ("sparse", "Sparse tensors: `ampkit.sparse`."),
    "ampkit.utils.data": ("utils.data", "Datasets, samplers and the loader."),
    "ampkit.models": ("models", "Models with the parameter names of torchvision, torchaudio and Hugging Face."),
    "ampkit.distributed": ("distributed", "Groups of processes and their collectives."),
    "ampkit.distributed.rpc": ("distributed.rpc", "Calls of functions on other processes."),
    "ampkit.distributed.optim": ("distributed.optim", "Optimizers whose state ranks share out."),
    "ampkit.distributed.data_parallel": ("nn.parallel", "Data parallelism over the ranks of a group."),
    "ampkit.backends.cpu.memory": ("cpu", "The memory of arrays on the CPU: `ampkit.cpu`."),
    "ampkit.cuda": ("cuda", "Devices, memory and synchronization."),
    "ampkit.testing": ("testing", "Checks for ops, the library's and your own."),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, `api/nn.md` and so on."""
    for name, content in pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """The content of each page by its name. Ops have a page for each family, a folder of `ampkit/ops/`."""
    definitions = _definitions(griffe.load("ampkit", search_paths=["."]))
    found = {}
    for namespace, (name, about) in NAMESPACES.items():
        module = importlib.import_module(namespace)
        found[name] = _page(name, about, _listed(module, definitions), _other_names(module))
    found["data"] = _page("data", "Data sets, augmentation and prefetching.", _data(definitions), [])
    families: dict[str, list[tuple[str, str]]] = {}
    for name, path in _listed(ampkit.ops, definitions):
        family = path.split(".")[2]
        families.setdefault(family if hasattr(_value(f"ampkit.ops.{family}"), "__path__") else "", []).append(
            (name, path)
        )
    others = _page(
        "ops: others", "Functions of no family, and other names.", families.pop(""), _other_names(ampkit.ops)
    )
    for family, listed in families.items():
        about = f"{inspect.getdoc(_value(f'ampkit.ops.{family}'))} Each is `ops.<name>` and `ampkit.<name>`."
        found[f"ops.{family}"] = _page(f"ops: {family}", about, listed, [])
    return found | {"ops.others": others}


def _data(definitions: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """What the modules of `ampkit.data` with a data set define, and augmentations; the loader is in utils.data."""
    yield from _listed(ampkit.data, definitions)
    for info in pkgutil.iter_modules(ampkit.data.__path__):
        module = importlib.import_module(f"ampkit.data.{info.name}")
        if hasattr(module, "load_splits") or info.name in ("augment", "transforms"):
            own = (
                (n, p) for n, p in _listed(module, definitions) if p.startswith(module.__name__) and n != "load_splits"
            )
            yield from ((f"{info.name}.{name}", path) for name, path in own)


def _page(title: str, about: str, listed: Iterable[tuple[str, str]], rest: Iterable[str]) -> str:
    """A page of mkdocstrings' directives: `::: path`, one for each public name."""
    entries = (f"::: {path}\n    options: {{heading: {name}, toc_label: {name}}}" for name, path in listed)
    return "\n\n".join([f"# {title}", about, *entries, *rest]) + "\n"


def public_names(module: ModuleType) -> list[str]:
    """The names of a namespace: `__all__`, or what is defined in its package and does not begin with `_`."""
    names = getattr(module, "__all__", None) or [n for n, v in vars(module).items() if _defines(module, n, v)]
    if module is ampkit:
        names = [name for name in names if name not in ampkit.ops.__all__]
    return sorted((n for n in names if not inspect.ismodule(getattr(module, n))), key=lambda n: (n.lower(), n))


def _defines(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a module without `__all__` has the name for others: its own functions, and classes of its package."""
    if name.startswith("_") or name in ("Group", "Optimizer"):
        return False
    package = module.__name__.rpartition(".")[0] if inspect.isclass(value) else module.__name__
    return str(getattr(value, "__module__", "")).startswith(package)


def _definitions(root: griffe.Module) -> dict[str, list[str]]:
    """By name, the paths of all functions, classes and assignments of modules below `root`."""
    found: dict[str, list[str]] = {}
    modules = [root]
    while modules:
        module = modules.pop()
        for name, member in module.members.items():
            if member.is_alias:
                continue
            if member.is_module:
                modules.append(member)
            elif not Path(str(module.filepath)).with_suffix(".pyi").exists():  # griffe merges stubs: no definitions
                found.setdefault(name, []).append(f"{module.path}.{name}")
    return found


def _value(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _documented(value: Any) -> bool:
    """Whether a value is a class, a function or an op, with a docstring."""
    kinds = (type, FunctionType, type(ampkit.ops.gelu).__mro__[-2])  # each op is of a subclass of `Op` of its own
    return isinstance(value, kinds) and bool(inspect.getdoc(value))


def _other_names(module: ModuleType) -> Iterator[str]:
    """What is documented under another name, such as `arccos`, and the constants."""
    values = {name: getattr(module, name) for name in public_names(module)}
    same = {name: value.__name__ for name, value in values.items() if _documented(value) and not inspect.isclass(value)}
    others = [f"`{name}` is `{own}`" for name, own in same.items() if name != own]
    constants = [f"`{name}`" for name, value in values.items() if not _documented(value)]
    for title, found in (("Other names", others), ("Constants", constants)):
        if found:
            yield f"## {title}\n\n{', '.join(found)}."


def _listed(module: ModuleType, definitions: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Name and path of definition of each documented name of a namespace, aliases left out."""
    for name in public_names(module):
        value = getattr(module, name)
        if not _documented(value):
            continue
        found = definitions.get(name) or definitions.get(value.__name__ if inspect.isclass(value) else "", [])
        paths = [path for path in found if getattr(_value(path), "__doc__", None) == value.__doc__]
        if paths:  # none for an alias: `divide` is div
            yield name, min(paths, key=len)


_ANNOTATIONS = {"Array": "Tensor", "Index": "Tensor", "Arrays": "Sequence[Tensor]"}


class Callables(griffe.Extension):
    """Functions that are made by a call, `ceil = rounding(...)`, and ops, shown as their callers see them.

    Docstrings are text, not Markdown: `[*S]` is a shape, not the start of an emphasis.
    """

    def on_module_members(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        for name, member in list(mod.members.items()):
            if member.is_alias or not member.is_attribute or name.startswith("_"):
                continue
            value = getattr(sys.modules.get(mod.path), name, None)
            if _documented(value) and not inspect.isclass(value):
                mod.set_member(name, _function(name, value, member))

    def on_function_instance(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Show a parameter of an op as its callers see it: a tensor; what only PyTorch's signature has is left out."""
        for parameter in list(func.parameters):
            annotation = str(parameter.annotation)
            if annotation == "CompatArg":
                del func.parameters[parameter.name]
            elif annotation in _ANNOTATIONS:
                parameter.annotation = _ANNOTATIONS[annotation]

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Take the annotations of ops from the stub file, which has all of them; defaults come from the source."""
        for name, stub in pkg["ops"].members.items():
            if stub.is_alias or not stub.is_function:
                continue
            for path in _definitions(pkg["ops"]).get(name, []):
                _annotate(pkg[path.partition(".")[2]], stub)

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def _annotate(function: Any, stub: griffe.Function) -> None:
    """Copy the annotations of a stub to the function that it describes."""
    if not function.is_function:
        return
    function.returns = stub.returns
    for parameter in function.parameters:
        if parameter.name in stub.parameters:
            parameter.annotation = stub.parameters[parameter.name].annotation


def _function(name: str, value: Callable[..., Any], assigned: Any) -> griffe.Function:
    parameters = [
        griffe.Parameter(
            p.name,
            annotation=_ANNOTATIONS.get(str(p.annotation)),
            kind=griffe.ParameterKind(_KINDS[p.kind]),
            default=_default(p),
        )
        for p in inspect.signature(value).parameters.values()
        if p.annotation != "CompatArg" and p.name != "out"
    ]
    doc = griffe.Docstring(inspect.getdoc(value) or "")
    return griffe.Function(
        name,
        parameters=griffe.Parameters(*parameters),
        docstring=doc,
        lineno=assigned.lineno,
        endlineno=assigned.endlineno,
    )


_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional-only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional or keyword",
    inspect.Parameter.VAR_POSITIONAL: "variadic positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword-only",
    inspect.Parameter.VAR_KEYWORD: "variadic keyword",
}


def _default(parameter: inspect.Parameter) -> str | None:
    return None if parameter.default is inspect.Parameter.empty else repr(parameter.default)


def as_markdown(doc: str) -> str:
    """A docstring whose characters mean themselves, except in `code` and in blocks that are indented."""
    lines = []
    for line in inspect.cleandoc(doc).splitlines():
        pieces = line.split("`")
        if not line.startswith("    ") and len(pieces) % 2:
            pieces[::2] = [re.sub(r"([\\*_\[\]>#|])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
        lines.append("`".join(pieces))
    return "\n".join(lines)
