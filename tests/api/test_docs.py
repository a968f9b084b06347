"""The Python code in README and docs runs as printed, links resolve, and generated pages are complete."""

from __future__ import annotations

import importlib.util
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from api import pytorch_page
from optimizer_cases import OptimizerCase
from pretrained_cases import golden, values

import ampkit
from ampkit import config, func, nn, ops, optim, testing
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn.library import library
from ampkit.base.registry import MODELS, OPTIMIZERS
from ampkit.cli import main
from ampkit.core.dispatch.batching.call import watching_loops
from ampkit.core.op import ops as registry
from ampkit.core.policy import categories
from ampkit.run import loop

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "recipes/README.md", ROOT / "tests/README.md"]
PAGES += (ROOT / "docs").rglob("*.md")


def examples(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def namespace():
    """The names that an example may use without defining them."""
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    batch = ampkit.tensor(np.ones((4, 64), np.float32)), ampkit.tensor(np.arange(4))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    modules = {"ampkit": ampkit, "nn": nn, "ops": ops, "optim": optim}
    return modules | {"model": model, "optimizer": optimizer, "loader": [batch] * 3}


PAGES_ALONE = ("index", "policy", "scaling", "coming-from-pytorch", "numerics", "formats")
PAGES_ALONE += ("rpc", "recipes-below-16-bits", "precision-laboratory")
ALONE = ("README.md", *(f"docs/{page}.md" for page in PAGES_ALONE))
GUIDES = ("quickstart", "tutorial", "trainer", "performance", "debugging", "logging", "report")
GUIDES += ("optimizers", "finetuning", "quantization", "coming-from-lightning")
GUIDES += ("coming-from-accelerate", "coming-from-keras", "transforms", "transforms-in-use")
ELSEWHERE = ("command-line", "onnx")  # tests/cli/test_command_line_page.py, tests/serialization/onnx/test_page.py
TESTED_BELOW = ("distributed", "images-of-your-own", "tables-and-text", "pretrained-weights", "add-an-op")
TESTED_BELOW += ("add-an-optimizer", "add-a-model", "add-a-dataset", "add-a-backend", "add-a-kernel")


def test_the_python_code_of_every_page_is_run():
    run = {ROOT / name for name in ALONE} | {ROOT / f"docs/{name}.md" for name in (*GUIDES, *TESTED_BELOW, *ELSEWHERE)}
    assert {page for page in PAGES if "```python" in page.read_text()} == run


@pytest.mark.parametrize("name", ALONE)
def test_every_example_runs(name):
    found = examples(name)
    assert found
    for source in found:
        if "ampkit.as_torch" in source:  # in this process `torch` would be ampkit for the tests that follow, too
            subprocess.run([sys.executable, "-c", source], check=True, cwd=ROOT)
        else:
            exec(compile(source, name, "exec"), namespace())


@pytest.mark.cpu
def test_the_examples_and_commands_of_tables_and_text_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|bash)\n(.*?)```", (ROOT / "docs/tables-and-text.md").read_text(), re.DOTALL)
    names = {"__name__": "docs"}
    for language, source in blocks[:-1]:
        if language == "python":
            exec(compile(source, "tables-and-text", "exec"), names)
        else:
            assert [main(shlex.split(line)[1:]) for line in source.splitlines()] == [0, 0]
    said = capsys.readouterr().out
    assert "\nkind,probability\n" in said
    assert "\nprice\n" in said
    assert names["probabilities"].shape == (400, 3)


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore")  # of Hugging Face's datasets
def test_the_example_of_a_stream_of_tables_and_text_runs():
    pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    names = {"__name__": "docs"}
    exec(compile(examples("docs/tables-and-text.md")[-1], "tables-and-text", "exec"), names)
    first, second = (names[name]["y"].tolist() for name in ("first", "second"))
    assert len({*first, *second}) == 4


@pytest.mark.cpu
@pytest.mark.parametrize("name", GUIDES)
def test_the_examples_of_a_guide_run_one_after_the_other(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = examples(f"docs/{name}.md")
    assert found
    names = {"__name__": "docs"}
    for source in found:
        exec(compile(source, name, "exec"), names)


@pytest.mark.cpu
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py: pip install -e '.[mpi]'")
def test_the_examples_of_ranks_run_on_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = examples("docs/distributed.md")
    program = f"for source in {found!r}:\n    print(source)\n    exec(source, {{'__name__': 'docs'}})\n"
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert said.returncode == 0, (said.stdout[-2000:], said.stderr)
    assert len(found) == 11


@pytest.mark.cpu
def test_the_commands_and_examples_of_the_page_on_images_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL.Image", reason="the page draws photos with Pillow")
    monkeypatch.chdir(tmp_path)
    page, names = (ROOT / "docs/images-of-your-own.md").read_text(), {"__name__": "docs"}
    small = ["model.width=4", "train.epochs=", "train.steps=2", "train.eval_every=", "data.shape=[3,32,32]"]
    small += ["data.resize=36", "data.workers=0", "data.batch_size=8", "train.threads=1"]
    drawing, own_loop = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(drawing, "images", "exec"), names)
    commands = [shlex.split(line) for line in re.findall(r"^ampkit (.*)$", page, re.MULTILINE)]
    assert [words[0] for words in commands] == ["train", "train", "predict", "evaluate", "train"]
    for words in commands:
        assert main([*words, *(small if words[0] == "train" else [])]) == 0
    predicted = capsys.readouterr().out
    assert re.search(r"photos/circle/1.jpg: (circle|square) [\d.]+%, (circle|square) [\d.]+%\n", predicted)
    exec(compile(own_loop, "images", "exec"), names)
    assert names["loss"].item() == pytest.approx(np.log(2), rel=1e-5)


@pytest.mark.cpu
def test_the_page_on_pretrained_weights_runs_and_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    """On files that it names, with weights of these layouts; `...` in what it shows stands for any lines."""
    monkeypatch.chdir(tmp_path)
    for name in ("resnet18", "resnet50"):
        ampkit.save(getattr(ampkit.models, name)().state_dict(), f"{name}.pth")
    case = golden()["Hugging Face's gpt2"]
    Path("gpt2").mkdir()
    Path("gpt2/config.json").write_text(json.dumps(case["config"]))
    state = {name: ampkit.tensor(values(name, shape)) for name, shape in case["tensors"].items()}
    ampkit.save(state, "gpt2/model.safetensors")
    page, names = (ROOT / "docs/pretrained-weights.md").read_text(), {}
    for source, shown in re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", page, re.DOTALL):
        capsys.readouterr()
        exec(compile(source, "pretrained-weights.md", "exec"), names)
        assert re.fullmatch(r"(?:.*\n)*".join(map(re.escape, shown.split("...\n"))), capsys.readouterr().out)
    recipe, gpt2 = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    Path("my-gpt2.toml").write_text(gpt2)
    assert config.load("my-gpt2.toml").data.tokenizer == "gpt2"
    others = '[data]\nname = "synthetic_images"\nshape = [3, 64, 64]\n[train]\nsteps = 1\n'
    Path("recipe.toml").write_text(recipe + others)
    run = loop.fit(config.load("recipe.toml"))
    assert run.pretrained.new == ("fc.weight", "fc.bias")


_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["README.md", "docs/debugging.md"])
def test_findings_are_printed_as_the_page_shows_them(name, capsys):
    """But for the last digits of the numbers."""
    names, shown = namespace() | {"__name__": "docs"}, 0
    source = (ROOT / name).read_text()
    ampkit.manual_seed(0)  # the weights decide which op overflows first
    for example, output in re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", source, re.DOTALL):
        capsys.readouterr()
        exec(compile(example, "train.py", "exec"), names)
        if "is not finite" in output or "learning rate" in output:
            shown += 1
            found = capsys.readouterr().out
            assert _NUMBER.sub("#", found) == _NUMBER.sub("#", output)
            assert _numbers(found) == pytest.approx(_numbers(output), rel=0.02)
    assert shown == {"README.md": 1, "docs/debugging.md": 5}[name]


NUMBER = re.compile(r"\d+(?:\.\d+)?")


@pytest.mark.cpu
def test_what_readme_says_of_speed_on_a_gpu_stands_in_the_log():
    readme = (ROOT / "README.md").read_text()
    measured = (ROOT / "docs/benchmarks-log.md").read_text().partition("\n## On a GPU")[2].partition("\n## ")[0]
    (row,) = [line.strip("|").split("|") for line in readme.splitlines() if line.startswith("| an H100")]
    (logged,) = [line for line in measured.splitlines() if line.startswith("| GPT-2, 124 million")]
    assert f"compiled: {row[2].strip()}" in logged
    assert re.findall(r"commit (\w+)", row[0]) == re.findall(r"commit\s+(\w+)", measured)
    memory = re.findall(r"(\d+\.\d) GB", readme.partition("## Status")[2])
    assert memory and set(memory) <= set(NUMBER.findall(measured.partition("Memory")[2]))


def test_the_op_of_add_an_op_passes_the_checks_that_the_page_promises():
    definition, tangent, rule, case, _ = examples("docs/add-an-op.md")
    names = {"__name__": "docs"}
    try:
        exec(compile(definition, "docs/add-an-op.md", "exec"), names)
        exec(compile(tangent, "docs/add-an-op.md", "exec", dont_inherit=True), names)
        exec(compile(rule, "docs/add-an-op.md", "exec"), names)
        x = ampkit.randn(3, 4)
        slope = func.jvp(names["squareplus"], (x,), (ampkit.ones_like(x),))[1]
        assert float((slope - func.grad(lambda x: names["squareplus"](x).sum())(x)).abs().max()) < 1e-6
        with watching_loops() as looped:
            assert (ampkit.vmap(names["squareplus"])(x) == names["squareplus"](x)).all() and not looped
        tested = eval(case.replace("# tests/cases/pointwise.py", "").strip(), vars(testing))
        testing.check(tested)
    finally:
        registry.pop("squareplus", None)
        categories.pop("squareplus", None)


def test_the_optimizer_of_add_an_optimizer_follows_its_formula():
    source, test = examples("docs/add-an-optimizer.md")
    names = {"__name__": "docs", "np": np, "OptimizerCase": OptimizerCase}
    try:
        exec(compile(source, "docs/add-an-optimizer.md", "exec", dont_inherit=True), names)
        names["optim"] = SimpleNamespace(Cautious=names["Cautious"])
        exec(compile(f"{test}]", "docs/add-an-optimizer.md", "exec", dont_inherit=True), names)
        assert OPTIMIZERS["cautious"].build is names["Cautious"]
    finally:
        OPTIMIZERS.pop("cautious", None)
    kind, formula, variants, state = names["CASES"][0]
    rng = np.random.default_rng(0)
    for options in variants:
        p = nn.Parameter(ampkit.tensor(rng.standard_normal(100)))
        optimizer, expected, saved = kind([p], **options), p.detach().numpy().copy(), {}
        for step in range(1, 5):
            gradient = rng.standard_normal(100)
            p.grad = ampkit.tensor(gradient)
            optimizer.step()
            expected = formula(expected, saved, gradient, step, **options)
        np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12)
        assert list(optimizer.state_dict()["state"][0]) == state


@pytest.mark.cpu
def test_the_model_of_add_a_model_trains_from_a_recipe_and_its_script_lists_its_keys(tmp_path):
    definition, script, case = examples("docs/add-a-model.md")
    (tmp_path / "mixer.py").write_text(definition)
    (tmp_path / "train.py").write_text(script)
    model = 'model={name="mixer", patch_size=2, dim=8, depth=1}'
    recipe = [str(ROOT / "recipes/digits_mlp.toml"), model, "train.epochs=", "train.steps=1", "train.eval_every="]
    for words in (["keys", "mixer"], ["train", *recipe]):
        out = run_in(tmp_path, "train.py", *words).stdout
        assert "model.patch_size" in out if words[0] == "keys" else "mixer on digits" in out
    wrong = run_in(tmp_path, "train.py", "train", *recipe, "model.patch_size=3", status=2).stderr
    assert "model.patch_size: needs a divisor of the image's 8 pixels, got 3" in wrong
    names = {"__name__": "docs"}
    try:
        exec(compile(definition, "docs/add-a-model.md", "exec"), names)
    finally:
        MODELS.pop("mixer", None)
    models = SimpleNamespace(mixer=names["mixer"])
    image = lambda *shape: ampkit.tensor(np.ones(shape, np.float32))  # noqa: E731
    make, data, shape = eval("{" + case.partition("\n")[2] + "}", {"models": models, "image": image})["mixer"]
    assert make()(data()).shape == shape


@pytest.mark.cpu
def test_the_data_set_of_add_a_dataset_and_its_test_run_as_printed(tmp_path):
    definition, test = examples("docs/add-a-dataset.md")
    (tmp_path / "npz.py").write_text(definition)
    imports = "import npz\nimport numpy as np\nfrom pathlib import Path\n"
    call = f"test_a_model_trains_on_an_archive(Path({str(tmp_path)!r}))\n"
    (tmp_path / "test_npz.py").write_text(imports + test + call)
    run_in(tmp_path, "test_npz.py")


def run_in(folder, script, *words, status=0):
    """Runs a Python script in a folder."""
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, script, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.cpu
def test_the_kernels_of_add_a_backend_are_dispatched_and_precise():
    kernel, bindings = examples("docs/add-a-backend.md")
    square = ops.square
    before = [(p, list(p.kernels_of("cpu"))) for p in (square.forward, square.backward_primitive)]
    try:
        exec(compile(kernel, "docs/add-a-backend.md", "exec"), {"__name__": "docs"})
        for dtype in (ampkit.float32, ampkit.bfloat16):
            case = testing.Case("square", testing.normal(100, 100))
            testing.check_precision(case, dtype)
            if native.library() is not None:
                assert case(*case.tensors(dtype))[0].node.kernel.name == "square_cpu"
        if library() is not None:
            exec(compile(bindings, "docs/add-a-backend.md", "exec"), {"__name__": "docs"})
    finally:
        for primitive, kernels in before:
            primitive.kernels["cpu"][:] = kernels


@pytest.mark.cpu
def test_the_page_for_pytorch_users_lists_the_public_names():
    assert pytorch_page.PAGE.read_text() == pytorch_page.page(), "run python -m tests.api.pytorch_page"


def test_every_link_resolves():
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)#]+)\)", prose):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_module_that_a_page_names_exists(page):
    text = page.read_text()
    folders = r"(?:tests|recipes|docs|ampkit|base|backends|core|ops|nn|optim|data|run|cli|config)"
    for path in re.findall(rf"(?<![\w./-]){folders}/[\w/.-]*\.(?:py|cuh?|toml|md|json|txt)\b", text):
        candidates = (ROOT / path, ROOT / "ampkit" / path, page.parent / path)
        assert "NAME" in path or any(candidate.exists() for candidate in candidates), path
    for module in re.findall(r"python -m (tests(?:\.\w+)+)", text):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), module
    for name in re.findall(r"(?<![\w./-])ampkit\.(\w+(?:\.\w+)*)", text):
        if name in ("squareplus", "lock"):  # an op of an example, a file of a run
            continue
        if name.startswith("as_torch"):  # whose import would make `torch` mean ampkit for the tests that follow, too
            assert (ROOT / "ampkit" / name.split(".")[0]).is_dir()
        else:
            pkgutil.resolve_name(f"ampkit.{name}")


def entries(folder):
    """The names of its folders, and of its modules without those of the package itself."""
    found = {path.name for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._"}
    return found | {path.name for path in folder.glob("*.py") if path.name[0] != "_"}


@pytest.mark.cpu
def test_the_index_of_decisions_lists_every_file_and_accounts_for_every_number():
    folder = ROOT / "docs/decisions"
    lines = re.findall(r"^- (?:\[(\d{4})\]\(([\w.-]+)\)|(\d{4}),)", (folder / "README.md").read_text(), re.MULTILINE)
    assert [int(number or gone) for number, _, gone in lines] == list(range(1, len(lines) + 1))
    assert {name for _, name, _ in lines if name} == {path.name for path in folder.glob("0*.md")}


@pytest.mark.cpu
def test_the_page_of_tests_names_every_folder_of_tests_and_what_of_the_library_each_one_tests():
    text = (ROOT / "tests/README.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    headings = "".join(line for line in text.splitlines() if line.startswith("###"))
    named = set(re.findall(r"`(\w+)/`", headings + "".join(row[0] for row in rows)))
    folders = {name for name in entries(ROOT / "tests") if not name.endswith(".py")}
    assert named == folders
    tested = {row[0].strip(" `/"): set(re.findall(r"`ampkit/([\w.]+)", row[1])) for row in rows}
    assert set().union(*tested.values()) == entries(ROOT / "ampkit")
    assert {name for name in folders & entries(ROOT / "ampkit") if name not in tested[name]} == set()
    collected = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert collected - {name for name, what in tested.items() if what} == {
        "api",
        "fuzz",
        "peers",
        "reliability",
        "scale",
    }


@pytest.mark.cpu
def test_the_page_of_tests_names_every_program():
    text = (ROOT / "tests/README.md").read_text()
    for folder in ("api", "bench", "distributed", "fuzz", "peers", "reliability", "scale"):
        for path in (ROOT / "tests" / folder).glob("*.py"):
            if '__name__ == "__main__"' in path.read_text() and not path.name.startswith("test_"):
                module = f"tests.{folder}" if path.stem == "__main__" else f"tests.{folder}.{path.stem}"
                assert re.search(rf"python -m {module}\b(?!\.)|{path.name}\b", text), path.name


def hook(name):
    """A hook of MkDocs, in docs/theme/, as a module. Skips the test where MkDocs is not installed."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("griffe", reason="needs the extra docs")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/theme/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_recipe_keys_has_every_key_of_every_section():
    page = hook("recipe_keys").recipe_keys()
    for key in ("amp.growth_interval", "train.accumulate", "optimizer.betas", "data.folder", "model.n_embd"):
        assert f"| `{key}` |" in page
    for row in (
        '| `amp.dtype` | "float32", "bfloat16", "float16", "float8", "float4", "int8"<br>',
        "| `train.seed` | integer",
    ):
        assert row in page


def test_the_page_of_commands_has_the_options_of_every_command():
    page = hook("command_line").command_line()
    for command in ("train", "bench", "ops", "doctor"):
        assert f"## {command}\n" in page
        assert f"usage: ampkit {command}" in page
    assert "--resume" in page


def test_the_api_reference_lists_every_public_function_and_layer():
    pages = hook("api_reference").pages()
    modules = {"functional", "init", "lora", "parallel", "quantization", "utils", "lr_scheduler", "swa_utils"}
    for prefix, names in (("ops.", ops.__all__), ("nn", nn.__all__), ("optim", optim.__all__)):
        text = "\n".join(page for name, page in pages.items() if name.startswith(prefix))
        listed = set(re.findall(r"heading: (\w+)", text)) | set(re.findall(r"`(\w+)` is `", text))
        assert set(names) - modules <= listed


def test_a_page_that_loads_from_another_host_is_refused():
    offline = hook("offline")
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    link = '<a href="https://example.org">text</a><script src="assets/local.js"></script>'
    assert offline.on_post_page(link, page, None) == link
    with pytest.raises(offline.PluginError, match="example.org"):
        offline.on_post_page('<script async src="https://example.org/a.js"></script>', page, None)


def test_the_page_on_kernels_quotes_the_sources():
    page = (ROOT / "docs/add-a-kernel.md").read_text()
    quotes = re.findall(r"```(?:cuda|cpp|python)\n(.*?)```", page, re.DOTALL)
    suffixes = (".cu", ".cpp", ".h", ".py")
    files = [path for part in ("backends", "kernels") for path in (ROOT / "ampkit" / part).rglob("*")]
    sources = [path.read_text() for path in files if path.suffix in suffixes]
    assert len(quotes) == 7
    for quote in quotes:
        assert any(quote in source for source in sources), quote
