"""The precision plan: what runs in which dtype, why, what is cast and what is kept, as a real forward shows it."""

import json

import numpy as np
import pytest
from cuda_on_cpu import installed

import ampkit
from ampkit import Policy, autocast, cli, debug, nn, ops
from ampkit.base.errors import ArgumentError, ConfigError, DTypeError, ShapeError
from ampkit.debug.planning import parse_policy, plan


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return ops.softmax(self.head(self.body(x)), -1)


def loss(model, x):
    return model(x).square().sum()


def row_of(plan, path, op):
    (row,) = [row for row in plan.rows if (row.path, row.op) == (path, op)]
    return row


def batch():
    return ampkit.ones(4, 8)


def test_a_row_tells_dtypes_category_and_reason():
    plan = debug.plan(Model(), batch(), Policy("bfloat16"))
    head, norm = row_of(plan, "head", "linear"), row_of(plan, "body.1", "layer_norm")
    softmax = row_of(plan, "(model)", "softmax")
    assert (head.inputs[0], head.output, head.category) == ("bfloat16", "bfloat16", "low")
    assert head.why == "low: exact products, float32 sums"
    assert (norm.output, norm.why) == ("float32", "float32: needs its range or precision")
    assert softmax.inputs == ("bfloat16",)


@pytest.mark.parametrize(
    ("policy", "what", "output", "why"),
    [
        (Policy("float16", modules={"head": "float32"}), ("head", "linear"), "float32", 'module "head" is float32'),
        (Policy("float16", softmax="low"), ("(model)", "softmax"), "float16", 'softmax="low" in the policy'),
        (Policy.fast("float16"), ("body.1", "layer_norm"), "float16", "low in Policy.fast"),
        ("float32", ("head", "linear"), "float32", "autocast is off"),
    ],
)
def test_the_reason_is_what_decided(policy, what, output, why):
    row = row_of(debug.plan(Model(), batch(), policy), *what)
    assert (row.output, row.why) == (output, why)


def test_casts_are_counted_with_their_bytes_weights_apart_from_activations():
    plan = debug.plan(Model(), batch(), Policy("float16"))
    first, last = row_of(plan, "body.0", "linear"), row_of(plan, "body.2", "linear")
    assert (first.casts, first.cast_bytes) == (1, 4 * 8 * 2)
    assert (first.weight_casts, first.weight_bytes) == (2, (16 * 8 + 16) * 2)
    assert plan.sources["layer_norm", "linear"] == (1, 4 * 16 * 2)
    assert (last.casts, row_of(plan, "head", "linear").casts) == (1, 0)
    assert 'layer_norm="low" in the policy would store that output in 16 bits' in str(plan)


def test_saved_bytes_are_those_of_activations_each_counted_once():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    plan = debug.plan(model, batch(), "float32")
    saved = {row.op: row.saved for row in plan.rows}
    whole = 4 * 8 * 4  # the input, then what ReLU keeps: its output, or a bit for each value
    assert sum(saved.values()) in (2 * whole, whole + 4 * 8)


def test_a_loss_adds_the_casts_of_gradients_and_without_one_the_plan_says_so():
    alone, whole = debug.plan(Model(), batch(), "float16"), debug.plan(Model(), (batch(),), "float16", loss)
    assert alone.notes == ["no loss was given: the plan is of the forward alone"]
    assert not alone.gradient_casts
    assert not whole.notes
    assert whole.gradient_casts > 0


def test_the_model_is_afterwards_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = ampkit.get_rng_state(), [buffer.numpy().copy() for buffer in model.buffers()]
    debug.plan(model, (batch(),), "bfloat16", lambda model, x: model(x).sum())
    assert ampkit.get_rng_state() == before[0]
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(model.buffers(), before[1], strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.cpu  # where an op gives all its gradients in float32
def test_the_backward_has_a_line_for_each_op_with_the_dtypes_of_its_gradients():
    plan = debug.plan(Model(), (batch(),), "float16", loss)
    found = {(row.path, row.inputs, row.output) for row in plan.backward if row.op == "linear"}
    assert found == {(path, ("float16",), "float32") for path in ("body.0", "body.2", "head")}
    lines = [line for line in str(plan).splitlines() if line.startswith("(backward)") and " linear " in line]
    assert len(lines) == 1 and "f16 -> f32" in lines[0] and lines[0].endswith("weights f32")


def test_saved_bytes_stand_beside_those_of_float32():
    plan, wide = (debug.plan(Model(), (batch(),), policy, loss) for policy in ("bfloat16", "float32"))
    assert wide.saved_float32 is None
    assert plan.saved_float32 == wide.total("saved") > plan.total("saved")
    head = row_of(plan, "head", "linear")
    assert (head.saved, head.saved_float32) == (4 * 8 * 2, 4 * 8 * 4) and " (50%)" in str(plan)
    assert sum(row.saved_float32 for row in plan.rows) == plan.saved_float32


@pytest.mark.parametrize("width", [100, 80])
def test_a_table_is_as_narrow_as_the_screen(width):
    plan = debug.plan(nn.Sequential(nn.Sequential(nn.Sequential(Model()))), (batch(),), "bfloat16", loss)
    texts = plan.text(width), plan.diff(debug.plan(Model(), (batch(),), "float16", loss), width)
    for text in texts:
        table = [line for line in text.splitlines() if " -> " in line and not line.endswith(".")]
        assert len(table) > 4 and max(map(len, table)) <= width


@pytest.mark.parametrize("bound", [False, True])
def test_gradients_that_parameters_and_inputs_hold_stay_as_they_were(bound):
    model, x = Model(), batch().requires_grad_()
    optimizer = ampkit.optim.SGD(model.parameters(), lr=0.1) if bound else None
    loss(model, x).backward()
    leaves = [*model.parameters(), x]
    before = [leaf.grad.numpy().copy() for leaf in leaves]
    assert debug.plan(model, (x,), "float16", loss).gradient_casts > 0
    assert all(np.array_equal(leaf.grad.numpy(), held) for leaf, held in zip(leaves, before, strict=True))
    assert (optimizer is not None) is bound


def test_a_dtype_is_a_policy():
    assert debug.plan(Model(), batch(), ampkit.float16).policy is Policy("float16")
    assert debug.plan(Model(), batch(), ampkit.float32).policy is None


def test_without_a_policy_the_region_in_force_is_planned():
    with autocast(dtype=ampkit.bfloat16):
        assert row_of(debug.plan(Model(), batch()), "head", "linear").output == "bfloat16"
    assert row_of(debug.plan(Model(), batch()), "head", "linear").output == "float32"


def test_modules_that_run_alike_share_a_line_of_the_table():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    assert str(debug.plan(model, batch(), "float32")).count("linear") == 1
    assert "*       linear  3" in str(debug.plan(model, batch(), "float32"))


def test_the_difference_of_two_plans_shows_what_changes_alone():
    wide, low = (debug.plan(Model(), batch(), text) for text in ("bfloat16", 'Policy("bfloat16", softmax="low")'))
    lines = wide.diff(low).splitlines()
    changed = [line for line in lines if "softmax " in line]
    assert changed == [line for line in lines if "(model)" in line]
    assert wide.diff(wide).splitlines()[3] == "nothing differs"


def test_a_model_too_large_gives_the_part_that_ran():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x):
            self.first(x)
            raise MemoryError

    plan = debug.plan(Large(), batch(), "float32")
    assert [row.path for row in plan.rows] == ["first"]
    assert plan.notes[0] == "out of memory in linear in first, so the rest is missing: take a smaller batch"


def test_what_the_policy_cannot_mean_is_refused():
    with pytest.raises(ConfigError, match="the path of a module of the model, got 'haed'"):
        debug.plan(Model(), batch(), Policy("float16", modules={"haed": "float32"}))
    with pytest.raises(DTypeError, match="debug.plan: needs a Policy, its text, or a dtype, got a int"):
        debug.plan(Model(), batch(), 16)
    for loss, got in ((lambda model, x: 1.0, "a float"), (lambda model, x: model(x).argmax(), r"int64 \[\]")):
        with pytest.raises(ShapeError, match=f"debug.plan: needs a loss of one floating-point number, .*got {got}"):
            debug.plan(Model(), [batch()], "float16", loss)
    with pytest.raises(ArgumentError, match="debug.plan: needs a module as `model`, got a function"):
        debug.plan(lambda x: x, batch(), "float16")


def test_a_model_whose_weights_are_all_frozen_has_a_plan_without_a_backward():
    plan = debug.plan(Model().requires_grad_(False), (batch(),), "float16", loss)
    assert plan.rows and not plan.backward and not plan.total("saved")


# the text of a policy


@pytest.mark.parametrize(
    "policy",
    [
        Policy("float16"),
        Policy.fast("bfloat16"),
        Policy("float16", softmax="low", modules={"head": "float32", "blocks.*.attn": "bfloat16"}),
    ],
)
def test_the_repr_of_a_policy_is_read_back(policy):
    assert parse_policy(repr(policy)) is policy
    assert parse_policy(policy.dtype.name) is Policy(policy.dtype)


@pytest.mark.parametrize(
    "text",
    ["", "Policy(", "Policy('float16', *x)", "Policy(**{})", "P('float16')", "Policy(open('x'))", "(" * 999],
)
def test_text_that_is_no_policy_is_refused_and_not_run(text):
    with pytest.raises(ConfigError, match="policy: needs float16, bfloat16, a recipe or an expression"):
        parse_policy(text)


# the command


def test_the_command_shows_a_recipe_s_plan_and_writes_its_rows(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert cli.main(["plan", "recipes/digits_mlp.toml", "amp.dtype=float16", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith('Policy("float16")\n')
    assert "products and convolutions run in 16 bits." in text
    assert json.loads(out.read_text())["rows"][0]["op"]
    assert cli.main(["plan", "recipes/digits_mlp.toml"]) == 0
    assert "note: the recipe trains in float32: --policy bfloat16 plans it in 16 bits" in capsys.readouterr().out


def test_the_command_writes_the_differences_of_two_policies(tmp_path, capsys):
    out, recipe = tmp_path / "plan.json", "recipes/digits_mlp.toml"
    assert cli.main(["plan", recipe, "--policy", "float16", "--diff", "float32", "--json", str(out)]) == 0
    assert capsys.readouterr().out.startswith('- Policy("float16")\n+ without autocast\n')
    written = json.loads(out.read_text())
    linear = next(row for row in written["diff"]["differences"] if row["-"]["op"] == "linear")
    assert (linear["-"]["output"], linear["+"]["output"]) == ("float16", "float32")
    assert written["diff"]["policy"] is None and written["diff"]["rows"][0]["op"]
    assert written["backward"][0]["phase"] == "backward" and written["saved"] < written["saved_float32"]


def test_the_command_refuses_a_policy_before_it_builds_anything(capsys):
    assert cli.main(["plan", "recipes/digits_mlp.toml", "--diff", "float17"]) == 2
    assert "float17" in capsys.readouterr().err


def test_a_plan_names_the_formats_of_each_product():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    policy = Policy("float8", recipe="current", modules={"2": "bfloat16"})
    found = plan(model, ampkit.randn(16, 64), policy, lambda model, x: (model(x).float() ** 2).mean())
    assert [row.why for row in found.rows if row.op == "linear"] == [
        "current: forward e4m3 by e4m3",
        'module "2" is bfloat16',
    ]
    assert [row.why for row in found.backward if row.op == "linear"] == [
        "weights f32",
        "current: input gradient e5m2 by e4m3, weight gradient e5m2 by e4m3",
    ]
    assert "2 of 2 products and convolutions run in 16 bits, 1 of them on operands quantized by current." in str(found)
    assert plan(model, ampkit.randn(16, 64), "mxfp8").policy is Policy("float8", recipe="mxfp8")


def test_a_gpu_s_plan_says_which_units_multiply_codes_and_why(monkeypatch):
    with installed() as gpu:
        model, given = Model().to("cuda"), batch().to("cuda")
        for card, said in (
            ((9, 0), "MXFP8 units need compute capability 10.x and cublasLt 12.8, not 9.0 and 13.10"),
            ((10, 0), "FP8 units, with"),
        ):
            monkeypatch.setattr(gpu, "capability", card)
            monkeypatch.setattr(gpu.cublaslt, "capability", card)
            (note,) = [
                n for n in debug.plan(model, (given,), Policy("float8", recipe="mxfp8"), loss).notes if "mxfp8" in n
            ]
            assert note.startswith("mxfp8 on cuda:0: ") and said in note
        notes = debug.plan(model, (given,), Policy("float8", recipe="rowwise_with_gw_hp"), loss).notes
        assert len([n for n in notes if "on cuda:0" in n]) == 1
    on_cpu = Model().to("cpu"), (batch().to("cpu"),)
    assert not debug.plan(*on_cpu, Policy("float8", recipe="mxfp8"), loss).notes
