"""Run one of PyTorch's test files and write a line of JSON for each of its tests.

    python [-m ampkit.as_torch] tests/peers/pytorch_tests_run.py FILE.py INTERNAL RESULTS.jsonl [TEST ...]

INTERNAL: PyTorch's folder torch/testing/_internal, which the alias gets as its own; ignored where `torch` is PyTorch.
TEST: tests that a former call finished, which are left out. What the files name and ampkit lacks is a placeholder while
they are imported; a test that uses one raises an error with the name. Processes that tests start import the file too.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
import unittest
import warnings
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np
import torch

LIMIT = 120  # seconds of one test
STARTED = "PYTORCH_TESTS_STARTED"  # the file and INTERNAL, for processes that tests start
MOUNTED = (
    "torch.testing._internal",
    "torch.testing._comparison",
    "torch.testing._utils",
    "torch.testing._creation",
    "torch.utils._import_utils",
)
# Methods that the infrastructure's tables of ops name and ampkit lacks; gone once files are imported.
METHODS = (
    "__rdiv__ cauchy_ cdouble cfloat coalesce geometric_ index_fill_ indices is_coalesced log_normal_ resize_ "
    "resize_as_ exponential_ ccol_indices col_indices crow_indices row_indices values sspaddmm"
).split()
loading = True


class MissingNameError(AttributeError):
    """A test uses a name that ampkit lacks."""


class Absent:
    """In place of a name that ampkit lacks: inert while files are imported, an error when a test uses it."""

    __all__ = ()

    def __init__(self, path: str) -> None:
        self.path, self.__name__ = path, path.rpartition(".")[2]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "parametrize_fn":
            raise AttributeError(name)
        self._use()
        return Absent(f"{self.path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._use()
        decorates = len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Absent)
        return args[0] if decorates else Absent(f"{self.path}()")

    def __mro_entries__(self, bases: Any) -> Any:
        return (AbsentBase,)

    def __iter__(self) -> Any:
        self._use()
        return iter(())

    def __getitem__(self, key: Any) -> Any:
        self._use()
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Absent) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return self.path

    def __instancecheck__(self, value: Any) -> bool:
        return False

    def __enter__(self) -> Any:
        self._use()

    def __exit__(self, *error: Any) -> None:
        pass

    def _use(self) -> None:
        if not loading:
            raise MissingNameError(f"ampkit has no {self.path}")


class AbsentBase:
    """The base class of classes that derive from a missing one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise MissingNameError(f"ampkit has no base class of {type(self).__name__}")


@cache
def absent_class(name: str) -> type:
    """A module class that ampkit lacks, for tables of module classes."""
    return type(name, (AbsentBase,), {})


class AbsentModule(ModuleType):
    """A module that ampkit lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Lenient(SourceFileLoader):
    """Loads a file of PyTorch's test infrastructure; names that its release lacks are placeholders too."""

    def exec_module(self, module: ModuleType) -> None:
        def absent(name: str) -> Any:
            if name.startswith("__") or not loading:
                raise AttributeError(name)
            return Absent(f"{module.__name__}.{name}")

        if not self.is_package(module.__name__):  # whose submodules are still to be imported
            module.__dict__["__getattr__"] = absent
        super().exec_module(module)
        if module.__name__.endswith(".opinfo.core"):  # whose tables ask for each op by its name
            module.__dict__["ForeachFuncInfo"] = lambda *given, **options: Absent("torch._foreach")
            module.__dict__["_getattr_qual"] = lambda space, name, default=None: Absent(name)
        if module.__name__.endswith(".common_nn"):  # whose table of tests draws complex numbers
            module.__dict__["l1loss_no_reduce_complex_test"] = lambda: {
                **module.__dict__["l1loss_no_reduce_scalar_test"](),
                "fullname": "L1Loss_no_reduce_complex",
            }


class Finder:
    """Finds PyTorch's test infrastructure in its folder, and placeholders for modules that the alias lacks."""

    def __init__(self, internal: Path, alias: Any) -> None:
        self.folder, self.alias = internal.parents[1], alias

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A file of the infrastructure, a module of the alias, or while files are imported a placeholder."""
        loader: Any = self
        if name.partition(".")[0] == "torchgen":  # which PyTorch's generated samples import, and no test of these files
            return ModuleSpec(name, loader, is_package=True)
        if name.partition(".")[0] != "torch":
            return None
        if name.startswith(MOUNTED):
            return self._mounted(name)
        try:
            return self.alias.find_spec(name, path, target)
        except ImportError:
            if not loading:
                raise
            return ModuleSpec(name, loader, is_package=True)

    def _mounted(self, name: str) -> ModuleSpec | None:
        file = self.folder.joinpath(*name.split(".")[1:])
        package = file.is_dir()
        file = file / "__init__.py" if package else file.with_suffix(".py")
        spec = ModuleSpec(name, Lenient(name, str(file)), origin=str(file), is_package=package)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def mount(internal: Path) -> None:
    """Let the alias answer for PyTorch's test infrastructure and, while files are imported, for names it lacks."""
    from ampkit.as_torch import finder as alias
    from ampkit.as_torch.extra.dispatch.operators import Operator
    from ampkit.base.missing_names import GOLDEN

    Operator._opoverload = Operator.op
    found = next(finder for finder in sys.meta_path if isinstance(finder, alias.Finder))
    sys.meta_path.insert(0, Finder(internal, found))
    torch.nn.modules.__all__ = [name for name in json.loads(GOLDEN.read_text())["torch.nn"] if name[0].isupper()]
    torch.complex32 = torch.chalf = torch.float4_e2m1fn_x2  # in tables of dtypes, where it must be one
    for kind in (alias.Namespace, type(torch.ao.nn), type(torch.ops.aten)):
        kind.__getattr__ = lenient(kind.__getattr__)  # type: ignore[method-assign]  # for the tests alone
    refused: Any = type(torch._utils.nothing)  # of a class that can be named and not called
    answer = refused.__call__
    refused.__call__ = lambda cls, *given, **named: Absent(cls.path) if loading else answer(cls, *given, **named)
    each = refused.__iter__
    refused.__iter__ = lambda cls: iter(()) if loading else each(cls)
    refused.__getattr__ = without_marks(refused.__getattr__)
    refused.__len__ = lambda cls: 0 if loading else len(list(each(cls)))


def without_marks(answer: Any) -> Any:
    """`answer`, the `__getattr__` of a refused name, without what PyTorch's loops over namespaces and tests ask for."""

    def found(cls: Any, name: str) -> Any:
        if name == "parametrize_fn":
            raise AttributeError(name)
        return () if loading and name == "__all__" else answer(cls, name)

    return found


def lenient(answer: Any) -> Any:
    """`answer`, a `__getattr__`, that gives placeholders while files are imported."""

    def found(self: Any, name: str) -> Any:
        try:
            return answer(self, name)
        except (AttributeError, ImportError):
            if loading and not name.startswith("__"):
                space = getattr(self, "__name__", "torch").removesuffix(".modules")
                if space == "torch.nn" and name[0].isupper():
                    return absent_class(name)
                return Absent(f"{space}.{name}")
            raise

    return found


def settle() -> None:
    """Take from PyTorch's TestCase what watches over PyTorch's own internals."""
    import torch.testing._utils as seeds
    from torch.testing._internal import common_utils

    def setUp(self: Any) -> None:
        common_utils.set_rng_seed()
        self.grad_enabled, self.default_dtype = torch.is_grad_enabled(), torch.get_default_dtype()

    def tearDown(self: Any) -> None:
        torch.set_grad_enabled(getattr(self, "grad_enabled", True))
        torch.set_default_dtype(getattr(self, "default_dtype", torch.float32))

    def gradcheck(check: Any, default: Any) -> Any:
        return lambda fn, *inputs, **options: check(
            fn, *inputs, **{**options, "check_batched_grad": False, "fast_mode": default}
        )

    common_utils.open_source_signpost = lambda **said: None
    compare(common_utils)
    torch._C.has_lapack = True
    torch.autograd.forward_ad._current_level = -1  # which a class of tests closes after each
    torch._C._debug_only_are_vmap_fallback_warnings_enabled = lambda: False
    torch._C._debug_only_display_vmap_fallback_warnings = lambda shown: None
    common_utils.TestCase.setUp, common_utils.TestCase.tearDown = setUp, tearDown
    common_utils.TestCase._run_custom = lambda self, result: unittest.TestCase.run(self, result)
    common_utils.gradcheck = gradcheck(torch.autograd.gradcheck, True)
    common_utils.gradgradcheck = gradcheck(torch.autograd.gradgradcheck, True)
    common_utils.TestCase.assertRaisesRegex = any_words
    common_utils.TestCase.assertWarnsRegex = common_utils.TestCase.assertWarnsOnceRegex = any_warning
    for kind in (torch.nn.Parameter, torch.nn.UninitializedBuffer):  # which tests replace and restore
        kind.__new__ = lambda cls, *given, **options: object.__new__(cls)
    common_utils.freeze_rng_state = seeds.freeze_rng_state = torch.random.fork_rng


def any_words(self: Any, expected_exception: Any, expected_regex: Any, *args: Any, **kwargs: Any) -> Any:
    """assertRaisesRegex that asks for an error of the type, whatever it says."""
    return unittest.TestCase.assertRaises(self, expected_exception, *args, **kwargs)  # noqa: PT027


def any_warning(self: Any, expected_warning: Any, expected_regex: Any = "", *args: Any, **kwargs: Any) -> Any:
    """assertWarnsRegex that asks for a warning of the type, whatever it says."""
    return unittest.TestCase.assertWarns(self, expected_warning, *args, **kwargs)


def compare(common_utils: Any) -> None:
    """Let PyTorch's assertEqual compare ampkit's tensors: its own pair asks for storages, layouts and quantization."""
    from torch.testing._comparison import Pair, get_tolerances

    class TensorPair(Pair):
        def __init__(
            self,
            actual: Any,
            expected: Any,
            *,
            rtol: Any = None,
            atol: Any = None,
            rtol_override: float = 0.0,
            atol_override: float = 0.0,
            equal_nan: bool = True,
            check_dtype: bool = True,
            check_device: bool = False,
            check_stride: bool = False,
            **rest: Any,
        ) -> None:
            actual, expected = (x.to_dense() if hasattr(x, "is_coalesced") else x for x in (actual, expected))
            self._check_inputs_isinstance(actual, expected, cls=(torch.Tensor, np.ndarray))
            actual, expected = (torch.as_tensor(x) for x in (actual, expected))
            super().__init__(actual, expected, **rest)
            self.rtol, self.atol = get_tolerances(actual, expected, rtol=rtol, atol=atol, id=self.id)
            self.rtol, self.atol = max(self.rtol, rtol_override), max(self.atol, atol_override)
            self.equal_nan = equal_nan
            self.names = ["shape"] + ["dtype"] * check_dtype + ["device"] * check_device

        def compare(self) -> None:
            for name in self.names:
                one, other = getattr(self.actual, name), getattr(self.expected, name)
                if one != other:
                    self._fail(AssertionError, f"The values for attribute '{name}' do not match: {one} != {other}.")
            one, other = (x.detach().cpu() for x in (self.actual, self.expected))
            wide = one.is_floating_point() or other.is_floating_point()
            one, other = ((x.double() if wide else x).numpy() for x in (one, other))
            if one.dtype == bool and other.dtype == bool:
                near = one == other
            else:
                near = np.isclose(one, other, rtol=self.rtol, atol=self.atol, equal_nan=self.equal_nan)
            if not near.all():
                worst = float(np.nanmax(np.abs(one.astype(float) - other.astype(float)), initial=0.0))
                self._fail(AssertionError, f"Tensor-likes are not close! {(~near).sum()} of {near.size}, {worst} apart")

    common_utils.TensorOrArrayPair = TensorPair
    common_utils.TypedStoragePair = common_utils.StringPair  # ampkit has no storages to compare


class Lines(unittest.TestResult):
    """Writes a line when a test starts and one with its outcome."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self.file, self.outcome, self.began = file, ("", ""), 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome, self.began = ("passed", ""), time.monotonic()
        self._line(test, "started", "")
        signal.alarm(LIMIT)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)
        hooks = sys.modules.get("ampkit.nn.hooks")
        if hooks is not None:
            hooks.everywhere.clear()  # as tests do by PyTorch's private names, so that one leaves no hooks for the next
        self._line(test, *self.outcome)

    def addError(self, test: Any, err: Any) -> None:
        self.outcome = ("failed", reason(err))
        if not isinstance(test, unittest.TestCase):
            self._line(test, "class failed", reason(err))

    addFailure = addError  # noqa: N815

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.outcome = ("failed", reason(err))

    def addSkip(self, test: Any, reason: str) -> None:
        self.outcome = ("skipped", str(reason))

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.outcome = ("skipped", "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.outcome = ("skipped", "expected failure, but passed")

    def _line(self, test: Any, outcome: str, why: str) -> None:
        row = {"test": name_of(test), "outcome": outcome, "why": why, "seconds": time.monotonic() - self.began}
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()


def name_of(test: Any) -> str:
    """Class.method."""
    return ".".join(test.id().split(".")[-2:])


def reason(err: Any) -> str:
    """The type and text of an error, and the lines where it came from, innermost last."""
    kind, error, trace = err
    at = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)]
    return f"{kind.__name__}: {str(error)[:1500]}\nat " + " < ".join(at[::-1][:8])


def tests(module: ModuleType) -> list[unittest.TestCase]:
    """The tests of the classes that a file defines; those it imports belong to other files."""
    mine = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suites: list[Any] = [load(kind) for kind in mine if issubclass(kind, unittest.TestCase)]
    return [test for suite in suites for test in suite]


def _late(signum: int, frame: Any) -> None:
    raise TimeoutError(f"no end after {LIMIT} s")


def load(file: str, internal: str) -> ModuleType:
    """Import a test file."""
    global loading
    path = Path(file).resolve()
    own = [str(path.parent), str(path.parents[1])]  # and not this file's folder, whose names may be Python's
    sys.path[:] = own + [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]
    if "ampkit.as_torch" in sys.modules:
        mount(Path(internal))
        settle()
    absent = [name for name in METHODS if not hasattr(torch.Tensor, name)]
    for name in absent:
        setattr(torch.Tensor, name, Absent(f"torch.Tensor.{name}"))
    module = importlib.import_module(path.stem)
    for name in absent:
        delattr(torch.Tensor, name)
    for kind in vars(module).values():  # PyTorch's plans for an argument are not asked for
        if hasattr(kind, "_check_warning_is_epoch_deprecation_warning"):
            kind._check_warning_is_epoch_deprecation_warning = lambda *given, **options: None
    loading = False
    return module


def main(file: str, internal: str, results: str, *done: str) -> None:
    """Import the file and run its tests."""
    sys.argv[1:] = []
    os.environ[STARTED] = json.dumps([file, internal])
    signal.signal(signal.SIGALRM, _late)
    skip = set(done)
    found = [test for test in tests(load(file, internal)) if name_of(test) not in skip]
    with Path(results).open("a") as out:
        unittest.TestSuite(found).run(Lines(out))


if __name__ == "__main__":
    warnings.simplefilter("default")  # as unittest has it, for tests that record warnings
    main(*sys.argv[1:])
elif __name__ == "__mp_main__" and STARTED in os.environ:  # in a process that a test started
    load(*json.loads(os.environ[STARTED]))
