"""Every `.cu` file by NVIDIA's compiler for several architectures; `pytest -rP` prints registers and spills.

A sample of each file's entries is compiled for sm_75 (T4), the oldest architecture, with the compiler's least effort,
which says whether they are C++ that the architecture has. With --all-architectures it is all entries, and the sample
for sm_80 (A100), sm_89 (RTX 40), sm_100 (B200) and sm_120 (RTX 50), too; and the sample for sm_90 (H100) with
optimization, where it must keep its values in registers.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda_on_cpu import nvrtc_compiler
from cuda_on_cpu.entries import entries

from ampkit.backends.cuda import nvrtc
from ampkit.backends.cuda.launch import column_source, row_source, template_source
from ampkit.backends.cuda.launch.chain_source import Input, Output, Select, Step, source
from ampkit.backends.cuda.launch.column_source import Columns
from ampkit.backends.cuda.launch.row_source import Reduction, RowArray, RowScalar, RowShape, RowStep
from ampkit.backends.cuda.launch.rows import RowPlan
from ampkit.base.dtypes import bfloat16, bool_, float16, float32
from ampkit.kernels.cuda.loss import cross_entropy
from ampkit.kernels.cuda.nn import batch_norm, layer_norm, softmax

STEMS = sorted(str(path.relative_to(nvrtc.KERNELS).with_suffix("")) for path in nvrtc.KERNELS.rglob("*.cu"))
QUICK = ("--Ofast-compile=max",)  # says whether the code is the architecture's, in a seventh of the time
OLDEST, FULL = "sm_75", "sm_90"  # FULL: with optimization, where the price in registers shows
ARCHS = {OLDEST: QUICK, FULL: (), "sm_80": QUICK, "sm_89": QUICK, "sm_100": QUICK, "sm_120": QUICK}
LARGE_ANGLES = re.compile("<(Sin|Cos|Tan|Sinc)>")  # CUDA's own sinf keeps the digits of 2 / pi in local memory
SAMPLE = 20  # entries of a file that stand for all: no source asks for its architecture
needs_nvrtc = pytest.mark.skipif(nvrtc_compiler.missing() is not None, reason=nvrtc_compiler.missing() or "")


@pytest.fixture(scope="module")
def compiled(request):
    """What becomes of each source for each architecture that a test asks for, two at a time: prices, or the error."""
    params = [getattr(item, "callspec", None) and item.callspec.params for item in request.session.items]
    wanted = {(p["source"], p["arch"]): None for p in params if p and {"source", "arch"} <= set(p)}
    every = request.config.getoption("--all-architectures")
    with ThreadPoolExecutor(2) as pool:
        yield {
            (source, arch): pool.submit(_compile, source, arch, _names(source, every and arch == OLDEST))
            for source, arch in wanted
        }


def _compile(source, arch, names):
    return names, nvrtc_compiler.build_source(source, arch, ARCHS[arch], names)


def _names(source, every):
    return entries(source) if every else _sample(entries(source))


def _words(name):
    """The kernel, and each template argument with its place: numbers and bools shape the code most, then types."""
    kernel_name, *words = re.split(r"[<>,] ?", name)
    return {(0, kernel_name), *((2 - _shapes(w), kernel_name, place, w) for place, w in enumerate(words) if w)}


def _shapes(word):
    return word.isdecimal() or word in ("true", "false")


def _sample(names):
    """Up to SAMPLE entries: each kernel, and then always the entry with the most words that none had yet."""
    left, taken, seen = list(names), set(), set()
    while left and len(taken) < SAMPLE:
        best = max(left, key=lambda name: [sum(w[0] == weight for w in _words(name) - seen) for weight in range(3)])
        seen = (seen if _words(best) - seen else set()) | _words(best)  # where all were had, once more
        left.remove(best)
        taken.add(best)
    return [name for name in names if name in taken]


def pytest_generate_tests(metafunc):
    if "arch" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-architectures")
        metafunc.parametrize("arch", ARCHS if every else [OLDEST])


@needs_nvrtc
@pytest.mark.parametrize("source", STEMS)
def test_entries_compile_and_keep_their_values_in_registers(source, arch, compiled):
    names, prices = compiled[source, arch].result()
    assert [p.name for p in prices] == names
    for p in prices:
        price = f"{p.registers:4} registers {p.spilled:5} B spilled {p.stack:5} B local {p.shared:6} B shared"
        print(f"{arch:7}{price}  {p.name}")  # noqa: T201
    if not ARCHS[arch]:
        assert not [p for p in prices if p.spilled or (p.stack and not LARGE_ANGLES.search(p.name))]


def chain_sources():
    """Kernels as a step's chains have: all dtypes, numbers, broadcast and strided inputs, the most arrays."""
    wide, low, marks = Input(float32, None, False), Input(bfloat16, 0, False), Input(bool_, 1, True)
    one = Step("Silu", False, ("x0",), ((0, float16),))
    two = Step("Mul", True, ("v0", "x1", "s0"), ((1, float32), (2, bfloat16)))
    three = Step("Where", False, ("x2", "v1", "v2"), ((3, bool_),))
    yield source((one, two, three), (wide, low, marks), (Output(bool_, 3), Output(bfloat16, 2)), 1)
    steps = [Step("AddCMul", False, ("x0", "x1", "x2", "s0"), ((0, float32),))]
    steps += [Step("Add", False, (f"v{i}", f"x{i + 3}", "s1"), ((i + 1, float32),)) for i in range(8)]
    yield source(tuple(steps), (wide,) * 11, (Output(float32, 3), Output(float32, 7), Output(float32, 8)), 2)


def mapped_chain_sources():
    """The same with two concatenations, of arrays and of what is computed from them."""
    whole, read = Input(bfloat16, None, False), ((bfloat16, (0,)), (bfloat16, (1,)), (float32, (1, 2)))
    parts = [Input(dtype, 0, False, bounds) for dtype, bounds in read]
    turned = Step("Neg", False, ("x1",), ((0, bfloat16),))
    inner = Select(((2, "x3"), (None, "v0")), (1, float32))
    joined = Select(((0, "v0"), (1, "x2"), (None, "v1")), (2, bfloat16))
    last = Step("Add", False, ("v2", "x0", "s0"), ((3, bfloat16),))
    yield source((turned, inner, joined, last), (whole, *parts), (Output(bfloat16, 3),), 1, (1, 1, 2))


def column_chain_sources():
    """Reductions of columns with a prologue, whole accesses and single ones."""
    inputs = RowArray(bfloat16, None, row_source.WIDE), RowArray(float32, 0, row_source.REPEATED)
    step = Step("Mul", True, ("x0", "x1", "s0"), (None, (0, bfloat16)))
    for vector in (8, 1):
        yield column_source.source(Columns("Add", ("v0", bfloat16), float32, vector), (step,), inputs, 1)


def row_chain_sources():
    """The same with reductions: a norm in a warp and in a block, and what else inputs and results may be."""
    total = RowStep(Step("Add", False, ("x0", "x1", "s0"), ((0, float32),)), True)
    square = RowStep(Step("Mul", False, ("v0", "v0"), ((1, float32),)), True)
    mean = Reduction("Add", "v1", (2, float32), "s1", False)
    rstd = RowStep(Step("Rsqrt", False, ("v2",), ((3, float32),)), False)
    scaled = RowStep(Step("Mul", False, ("v0", "v3"), ((4, float32),)), True)
    norm = RowStep(Step("Mul", False, ("v4", "x2"), ((5, bfloat16),)), True)
    inputs = [RowArray(dtype, row, row_source.WIDE) for dtype, row in ((float32, None), (bfloat16, None), (float32, 0))]
    outputs = (0, float32), (3, float32), (5, bfloat16)
    for shape in (RowShape(8, 4, False), RowShape(8, 8, True), RowShape(1, 32, False)):
        yield row_source.source((total, square, mean, rstd, scaled, norm), tuple(inputs), (), outputs, 2, shape)
    most = Reduction("Maximum", "x0", (0, float16), "s0", False)
    marked = RowStep(Step("Where", True, ("w0", "x1", "v0"), (None, (1, float32), None)), True)
    size = Reduction("AddSquares", "v1", (2, float32), "s0", True)
    mixed = RowArray(float16, 0, row_source.SCATTERED), RowArray(bool_, 1, row_source.REPEATED)
    scalars = (RowScalar(float32, True),)
    yield row_source.source((most, marked, size), mixed, scalars, ((2, float32),), 1, RowShape(8, 1, False))


def norm_chain_sources():
    """Norms with a prologue and an epilogue: both directions, in a warp, in a block, misaligned."""
    plain = RowArray(float32, None, row_source.WIDE), RowArray(bfloat16, None, row_source.WIDE)
    total = Step("Add", False, ("x0", "x1"), ((1, float32),))
    out = Step("Copy", False, ("x2",), ((2, bfloat16),))
    for forth, back in (((8, 4, False), (8, 1, True)), ((8, 2, True),) * 2, ((1, 4, False),) * 2):
        outputs = (1, float32), (2, bfloat16)
        norm = layer_norm.template(False, True, RowPlan(*forth))
        yield template_source.source(norm, (("v1", float32),), float32, (total, out), plain, outputs, 0)
        norm = layer_norm.template(True, back[2], RowPlan(*back))
        wide = Step("Copy", False, ("x1",), ((1, float32),))
        total_2 = Step("Add", False, ("x2", "x0"), ((2, float32),))
        outputs, read = ((2, float32), (0, float32)), (("v1", float32), ("x0", float32))
        yield template_source.source(norm, read, float32, (wide, total_2), plain, outputs, 0)


def softmax_chain_sources():
    """softmax the same: in a warp, and in blocks of all sizes."""
    plain = RowArray(float32, None, row_source.WIDE), RowArray(bfloat16, None, row_source.WIDE)
    total, out = (Step("Add", False, ("x0", "x1"), ((1, float32),)), Step("Copy", False, ("x2",), ((2, bfloat16),)))
    for shape, threads in (((8, 1), 128), ((8, 4), 128), ((1, 4), 128), ((8, 0), 512), ((1, 0), 1024)):
        made, outputs = softmax.template(False, True, shape, threads), ((2, bfloat16),)
        yield template_source.source(made, (("v1", float32),), float32, (total, out), plain, outputs, 0)
        made, read = softmax.template(True, False, shape, threads), (("v1", float32), ("x0", float32))
        yield template_source.source(made, read, float32, (total, out), plain, outputs, 0)


def batch_norm_chain_sources():
    """The sums over channels of a gradient that is computed where it is loaded, and stored or not."""
    plain = RowArray(bfloat16, None, row_source.WIDE), RowArray(bfloat16, None, row_source.WIDE)
    total, read = Step("Add", False, ("x0", "x1", "s0"), ((1, bfloat16),)), (("v1", bfloat16),)
    for vector, last in ((8, True), (1, True), (8, False), (1, False)):
        made = batch_norm.template(bfloat16, vector, last)
        for outputs in ((), ((1, bfloat16),)):
            yield template_source.source(made, read, None, (total,), plain, outputs, 1)


def loss_chain_sources():
    """cross_entropy of scores that are computed where they are loaded, and its gradient with a cast."""
    plain = RowArray(bfloat16, None, row_source.WIDE), RowArray(bfloat16, None, row_source.WIDE)
    total, wide = Step("Add", False, ("x0", "x1"), ((1, bfloat16),)), Step("Copy", False, ("v1",), ((2, float32),))
    out = Step("Copy", False, ("x2",), ((3, bfloat16),))
    for classes in (32000, 50257, 96):
        made = cross_entropy.template(False, float32, classes)
        for outputs in ((), ((2, float32),)):
            yield template_source.source(made, (("v2", float32),), None, (total, wide), plain, outputs, 0)
        made = cross_entropy.template(True, float32, classes)
        yield template_source.source(made, (("v2", float32),), float32, (total, wide, out), plain, ((3, bfloat16),), 0)


@needs_nvrtc
def test_chains_compile_and_keep_their_values_in_registers(arch):
    of_elements = *chain_sources(), *mapped_chain_sources()
    of_templates = *norm_chain_sources(), *softmax_chain_sources(), *batch_norm_chain_sources(), *loss_chain_sources()
    for code, name in (*of_elements, *column_chain_sources(), *row_chain_sources(), *of_templates):
        (price,) = nvrtc_compiler.build_once(code, (name,), arch, ARCHS[arch])
        print(f"{arch:7}{price.registers:4} registers  {name}")  # noqa: T201
        if not ARCHS[arch]:
            assert not price.spilled + price.stack


@needs_nvrtc
def test_functions_of_a_chain_are_contracted_as_they_are_alone_and_not_with_each_other():
    whole = tuple([Input(float32, None, False)] * 4)
    gelu = Step("GeluTanh", True, ("x0", "x1", "x2", "x3"), ((0, float32), None, None))
    product = Step("Mul", False, ("x0", "x1"), ((0, float32),))
    between = Step("Lerp", False, ("x2", "v0", "x3"), ((1, float32),))  # of a product, which it subtracts from
    for steps, stored, alone in (
        ((gelu,), 0, "elementwise_backward<GeluTanh>"),
        ((product, between), 1, "elementwise_forward<Lerp>"),
    ):
        chain = source(steps, whole, (Output(float32, stored),), 0)
        one = '#include "pointwise/elementwise.cu"\n', alone
        counts = [nvrtc_compiler.instructions(*each, "compute_90", "fma.rn") for each in (chain, one)]
        assert counts[0] == counts[1] > 0
        handed_on = nvrtc_compiler.instructions(*chain, "compute_90", "xor.b32")
        assert handed_on >= 9 * (len(steps) - 1)  # of 8 elements, and of one


@needs_nvrtc
def test_a_sum_of_columns_is_contracted_with_a_prologue_as_it_is_alone():
    product = Step("Mul", False, ("x0", "x0"), ((0, float32),))
    plain = RowArray(float32, None, row_source.WIDE)
    for term in ("Add", "AddSquares"):
        chain = column_source.source(Columns(term, ("v0", float32), float32, 8), (product,), (plain,), 0)
        one = '#include "reduction/reductions.cu"\n', f"reduce_columns<{term}, float, float>"
        counts = [nvrtc_compiler.instructions(*each, "compute_90", "fma.rn.f32") for each in (chain, one)]
        scalar = column_source.source(Columns(term, ("v0", float32), float32, 1), (product,), (plain,), 0)
        assert counts[0] + nvrtc_compiler.instructions(*scalar, "compute_90", "fma.rn.f32") == counts[1]


@needs_nvrtc
def test_a_norm_between_products_is_contracted_as_it_is_alone():
    before, after = (Step("Mul", False, (x, "x0"), ((i, float32),)) for i, x in ((1, "x0"), (2, "x1")))
    norm = layer_norm.template(False, True, RowPlan(8, 4, False))
    plain = RowArray(float32, None, row_source.WIDE)
    chain = template_source.source(norm, (("v1", float32),), float32, (before, after), (plain,), ((2, float32),), 0)
    one = '#include "nn/layer_norm.cu"\n', "layer_norm_forward<float, float, 8, 4, false>"
    counts = [nvrtc_compiler.instructions(*each, "compute_90", "fma.rn") for each in (chain, one)]
    assert counts[0] == counts[1] > 0


@needs_nvrtc
def test_softmax_losses_and_sums_over_channels_between_products_are_contracted_as_they_are_alone():
    before, after = (Step("Mul", False, (x, "x0"), ((i, float32),)) for i, x in ((1, "x0"), (2, "x1")))
    plain, loads = (RowArray(float32, None, row_source.WIDE),), (("v1", float32),)
    made, outputs = softmax.template(False, False, (8, 4), 128), ((2, float32),)
    chain = template_source.source(made, loads, float32, (before, after), plain, outputs, 0)
    sums = template_source.source(batch_norm.template(float32, 8, True), loads, None, (before,), plain, (), 0)
    made = [cross_entropy.template(backward, float32, 50257) for backward in (False, True)]  # with single values, too
    loss = template_source.source(made[0], loads, None, (before,), plain, (), 0)
    gradient = template_source.source(made[1], loads, float32, (before, after), plain, outputs, 0)
    for code, stem, entry in (
        (loss, "loss/cross_entropy", "cross_entropy_forward<float>"),
        (gradient, "loss/cross_entropy", "cross_entropy_backward<float>"),
        (chain, "nn/softmax", "softmax_forward<float, float, 8, 4>"),
        (sums, "nn/batch_norm", "batch_norm_grad_sums<float, 8, true>"),
    ):
        one = f'#include "{stem}.cu"\n', entry
        counts = [nvrtc_compiler.instructions(*each, "compute_90", "fma.rn") for each in (code, one)]
        assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("source", STEMS)
def test_a_file_names_each_of_its_entries_once(source):
    names = entries(source)
    text = (nvrtc.KERNELS / f"{source}.cu").read_text()
    written = set(re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(", text))
    assert len(names) == len(set(names))
    assert {name.partition("<")[0] for name in names} == written


@pytest.mark.parametrize("source", STEMS)
def test_what_is_compiled_in_full_has_each_kernel_in_each_of_its_forms(source):
    names = entries(source)
    sample, words = _sample(names), set().union(*map(_words, names))
    assert len(sample) == min(SAMPLE, len(names))
    assert not {word for word in words - set().union(*map(_words, sample)) if word[0] < 2}


@needs_nvrtc
def test_an_error_is_told_in_the_compilers_words():
    with pytest.raises(RuntimeError, match='identifier "nothing" is undefined'):
        nvrtc_compiler.build("__global__ void f(float* x) { *x = nothing; }", ["f"], "sm_90")


@needs_nvrtc
def test_spills_are_seen():
    code = """__global__ void __launch_bounds__(1024, 2) many(float* x, int n) {
        float v[120];
        for (int i = 0; i < 120; i++) v[i] = x[i * 1024 + threadIdx.x];
        for (int r = 0; r < n; r++)
            for (int i = 0; i < 120; i++) v[i] = v[(i * 7 + 1) % 120] * v[i] + r;
        for (int i = 0; i < 120; i++) x[i * 1024 + threadIdx.x] = v[i];
    }"""
    (price,) = nvrtc_compiler.build(code, ["many"], "sm_90")
    assert price.registers == 32 and price.spilled + price.stack > 0
