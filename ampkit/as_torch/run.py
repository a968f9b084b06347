"""Run a script or a module as `__main__`, as `python SCRIPT` and `python -m MODULE` do."""

from __future__ import annotations

import io
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NoReturn

from .finder import script_spec

_USAGE = "usage: python -m ampkit.as_torch SCRIPT ARGS ...\n   or: python -m ampkit.as_torch -m MODULE ARGS ..."
_INTERRUPTED = 130  # 128 + SIGINT, as in shells
# What the dynamic loader says of a module that is linked with PyTorch's libraries, or uses symbols of them.
_COMPILED = re.compile(
    r"lib(torch|c10)\w*\.so|(torch|c10)\w*\.(dll|dylib)|symbol:? \S*?(\d(c10|at|torch|caffe2)\d|THP[A-Z])"
)


def main() -> None:
    """Run what the command line names. Exits with status 2 where it names nothing, or nothing that exists."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"] and len(arguments) > 1:
        del sys.argv[:2]
        _run(*_module(arguments[1]))
    elif arguments and not arguments[0].startswith("-"):
        del sys.argv[:1]
        _run(*_script(arguments[0]))
    elif arguments in (["-h"], ["--help"]):
        sys.stdout.write(f"{_USAGE}\n")
    else:
        _exit(_USAGE)


def _script(name: str) -> tuple[CodeType, dict[str, Any]]:
    path = Path(name).absolute()
    found = path / "__main__.py" if path.is_dir() else path
    if not sys.flags.safe_path:
        sys.path[0] = str(path if path.is_dir() else path.resolve().parent)
    try:
        with io.open_code(str(found)) as file:
            code = file.read()
    except OSError as error:
        _exit(f"python -m ampkit.as_torch: can't open file {str(found)!r}: {error.strerror}")
    return _compiled(code, str(found)), {"__file__": str(found), "__spec__": script_spec(str(found))}


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec")
    except SyntaxError as error:
        _report(error.with_traceback(None))


def _module(name: str) -> tuple[CodeType, dict[str, Any]]:
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec(f"{name}.__main__")
    loader: Any = spec and spec.loader
    if spec is None or not hasattr(loader, "get_code"):
        _exit(f"python -m ampkit.as_torch: No module named {name}")
    sys.argv[0] = str(spec.origin)
    about = {"__file__": spec.origin, "__spec__": spec, "__package__": spec.parent, "__loader__": loader}
    return loader.get_code(spec.name), about


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ImportError:
        return None


def _run(code: CodeType, about: dict[str, Any]) -> None:
    names = sys.modules["__main__"].__dict__
    for name in [name for name in names if name != "__builtins__"]:
        del names[name]
    names.update({"__name__": "__main__", "__doc__": None, "__package__": None, "__loader__": None, **about})
    try:
        exec(code, names)
    except SystemExit:
        raise
    except BaseException as error:
        _report(error.with_traceback(_below(error.__traceback__)))


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame after this file's."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _report(error: BaseException) -> NoReturn:
    if isinstance(error, ImportError) and _COMPILED.search(str(error)):
        error.add_note(
            f"help: {error.name or 'this module'} is compiled for PyTorch's C++ libraries, which ampkit does not have: "
            "use what its package has in plain Python, or an op of array code (docs/add-an-op.md)"
        )
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)


def _exit(line: str) -> NoReturn:
    sys.stderr.write(f"{line}\n")
    sys.exit(2)
