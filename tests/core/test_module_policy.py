"""Policies by module: which dtype the products of a module run in."""

import pickle
import socket

import pytest

import ampkit
from ampkit import Policy, autocast, distributed, nn, ops
from ampkit.base.errors import ConfigError, DTypeError
from ampkit.core.module_path import current_path, matches
from ampkit.optim.swa_utils import AveragedModel


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.qkv(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.mlp = nn.Linear(4, 4)

    def forward(self, x):
        return self.mlp(self.attn(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def x():
    return ampkit.randn(3, 4)


def outputs(model, x, policy):
    """The dtype of the output of each linear layer, by its path."""
    found, hooks = {}, []
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_hook(lambda m, args, out, path=path: found.update({path: out.dtype})))
    with autocast(policy=policy):
        model(x)
    for hook in hooks:
        hook.remove()
    return {path: dtype.name for path, dtype in found.items()}


def test_each_module_computes_its_products_in_the_dtype_given_for_its_path(model, x):
    policy = Policy("float16", modules={"head": "float32", "blocks.*.attn": "bfloat16", "blocks.1.attn.out": "float16"})
    assert outputs(model, x, policy) == {
        "blocks.0.attn.qkv": "bfloat16", "blocks.0.attn.out": "bfloat16", "blocks.0.mlp": "float16",
        "blocks.1.attn.qkv": "bfloat16", "blocks.1.attn.out": "float16", "blocks.1.mlp": "float16",
        "head": "float32",
    }  # fmt: skip


def test_the_last_path_that_matches_counts(model, x):
    both = {"blocks.*.mlp": "float32", "**.mlp": "bfloat16"}
    assert outputs(model, x, Policy("float16", modules=both))["blocks.0.mlp"] == "bfloat16"
    turned = dict(reversed(both.items()))
    assert outputs(model, x, Policy("float16", modules=turned))["blocks.0.mlp"] == "float32"


@pytest.mark.parametrize(
    ("pattern", "path", "same"),
    [
        ("blocks.*.attn", "blocks.0.attn", True),
        ("blocks.*.attn", "blocks.0.attn.qkv", False),
        ("blocks.*", "blocks.0.attn", False),
        ("**.attn", "blocks.0.attn", True),
        ("**.attn", "attn", True),
        ("**", "", True),
        ("*", "", False),
        ("blocks.[01].mlp", "blocks.1.mlp", True),
        ("block?", "blocks", True),
    ],
)
def test_a_star_stands_for_one_part_of_a_path_and_two_for_any_number(pattern, path, same):
    assert matches(pattern, path) is same


def test_gradients_are_those_of_float32_where_every_module_is_float32(model, x):
    loss = model(x).square().sum()
    loss.backward()
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    model.zero_grad()
    with autocast(policy=Policy("float16", modules={"**": "float32"})):
        loss = model(x).square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.numpy().tolist() == wanted[name].tolist(), name


def test_float32_holds_for_ops_that_the_policy_makes_low():
    class Softmax(nn.Module):
        def forward(self, x):
            return ops.softmax(x, -1)

    model, x = nn.Sequential(Softmax(), Softmax()), ampkit.randn(2, 3)
    found = []
    for module in model:
        module.register_forward_hook(lambda m, args, out: found.append(out.dtype.name))
    with autocast(policy=Policy("float16", softmax="low", modules={"1": "float32"})):
        model(x)
    assert found == ["float16", "float32"]


def test_layers_that_would_run_as_one_op_keep_their_own_dtypes():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)), ampkit.randn(2, 4)
    with autocast(policy=Policy("float16", modules={"2": "float32"})):
        assert model(x).dtype == ampkit.float32  # without hooks, which would keep the layers apart as well


def test_layers_that_a_policy_does_not_tell_apart_run_as_one_op(x):
    part = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
    model = nn.ModuleDict({"mlp": part, "head": nn.Linear(4, 4)})
    model.forward = lambda x: model.head(part(x))
    found = []
    for modules in (
        {"head": "float32"},
        {"mlp": "float32"},
        {"mlp": "float32", "mlp.*": "float32"},
        {"mlp.0": "float32"},
    ):
        names = []
        policy = Policy("bfloat16", modules=modules, softmax="low", linear_gelu_linear="low")
        seen = ampkit.observe.watch(lambda name, inputs, output, names=names: names.append((name, output.dtype.name)))
        with seen, autocast(policy=policy):
            model(x)
        found.append([pair for pair in names if pair[0] != "cast"])
    assert found == [
        [("linear_gelu_linear", "bfloat16"), ("linear", "float32")],
        *[[("linear_gelu_linear", "float32"), ("linear", "bfloat16")]] * 2,
        [("linear", "float32"), ("gelu", "float32"), ("linear", "bfloat16"), ("linear", "bfloat16")],
    ]


def test_an_inner_region_without_modules_is_the_one_in_force(model, x):
    model.head.forward = lambda x: (
        autocast(enabled=False)(lambda: ops.linear(x.float(), model.head.weight))().dtype,
        autocast(dtype="bfloat16")(lambda: ops.linear(x, model.head.weight))().dtype,
    )
    with autocast(policy=Policy("float16", modules={"head": "float32"})):
        assert model(x) == (ampkit.float32, ampkit.bfloat16)


def test_a_region_inside_the_models_forward_knows_the_models_paths(x):
    policy = Policy("float16", modules={"head": "bfloat16"})

    class Decorated(Model):
        @autocast(policy=policy)
        def forward(self, x):
            return super().forward(x)

    assert Decorated()(x).dtype == ampkit.bfloat16


def test_recomputed_modules_run_in_the_same_dtype_again(model, x):
    seen = []
    head = model.head.forward
    model.head.forward = lambda x: seen.append((current_path(), ampkit.get_autocast_dtype(x.device.type))) or head(x)
    with autocast(policy=Policy("float16", modules={"head": "bfloat16"})):
        out = ampkit.recompute(model, x.requires_grad_())
    out.sum().backward()
    assert seen == [("head", ampkit.bfloat16)] * 2


def test_outside_of_the_region_nothing_is_cast(model, x):
    with autocast(policy=Policy("float16", modules={"head": "bfloat16"})):
        model(x)
    assert model(x).dtype == ampkit.float32
    with autocast(dtype="float16"):
        assert model(x).dtype == ampkit.float16


def test_equal_policies_are_one_object_that_its_repr_and_its_pickle_make_again():
    policy = Policy("float16", softmax="low", modules={"head": "float32", "blocks.*.attn": ampkit.bfloat16})
    assert repr(policy) == (
        'Policy("float16", softmax="low", modules={"head": "float32", "blocks.*.attn": "bfloat16"})'
    )
    assert eval(repr(policy)) is policy
    assert pickle.loads(pickle.dumps(policy)) is policy
    assert pickle.loads(pickle.dumps(policy.in_module("head"))) is policy.in_module("head")
    assert Policy("float16", modules={}) is Policy("float16")
    fast = Policy.fast("float16", modules={"head": "float32"})
    assert eval(repr(fast)) is fast


def test_a_path_that_matches_no_module_raises_and_suggests_one(model, x):
    region = autocast(policy=Policy("float16", modules={"heads": "float32"}))
    with pytest.raises(ConfigError, match="needs the path of a module of the model, got 'heads'") as raised, region:
        model(x)
    assert "did you mean 'head'?" in str(raised.value)


def test_parts_of_a_model_that_are_called_alone_have_no_path_in_it(model, x):
    for part in (model.head, nn.Sequential(model.head)):
        region = autocast(policy=Policy("float16", modules={"blocks.*": "float32"}))
        with pytest.raises(ConfigError, match="paths begin at the outermost module that is called"), region:
            part(x)


def test_an_error_shows_the_paths_that_there_are(model, x):
    region = autocast(policy=Policy("float16", modules={"encoder.*": "float32"}))
    with pytest.raises(ConfigError, match=r"the model has blocks, blocks\.0, .*, \.\.\.; paths begin"), region:
        model(x)


def test_a_region_without_a_model_and_one_that_fails_leave_paths_unchecked(model, x):
    with autocast(policy=Policy("float16", modules={"heads": "float32"})):
        nn.MSELoss()(x, x)
    with pytest.raises(ZeroDivisionError), autocast(policy=Policy("float16", modules={"heads": "float32"})):
        model(1 / 0)
    with autocast(policy=Policy("float16", modules={"heads": "float32"})):
        pass


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        (["head"], "a dict from module paths to dtypes"),
        ({"head": "float64"}, "needs float16, bfloat16, float32 or a recipe, got float64"),
        ({"head.": "float32"}, "module paths such as"),
        ({3: "float32"}, "module paths such as"),
        ({"head": "low"}, "low"),
    ],
)
def test_bad_entries_are_refused_when_the_policy_is_made(modules, says):
    with pytest.raises((ConfigError, DTypeError), match=says):
        Policy("float16", modules=modules)


def test_a_recipe_for_modules_without_a_weight_matrix_is_refused_where_the_model_is_called():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    x = ampkit.ones(2, 4)
    norm = Policy("bfloat16", modules={"1": "mxfp8"})
    says = r"Policy, modules, 1: needs modules with a weight matrix.*got a LayerNorm"
    with pytest.raises(ConfigError, match=says), autocast(policy=norm):
        model(x)
    with autocast(policy=Policy("bfloat16", modules={"*": "mxfp8", "1": "float32"})):
        model(x)  # a glob that also names other modules, and a dtype


def test_paths_begin_below_a_module_that_wraps_the_model_as_for_an_average_or_for_ranks():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    policy = Policy("float16", modules={"1": "float32"})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        for whole in (model, AveragedModel(model), nn.parallel.DistributedDataParallel(model)):
            with autocast(policy=policy):
                assert whole(ampkit.ones(2, 4)).dtype == ampkit.float32
    finally:
        distributed.destroy_process_group()
    assert not distributed.is_initialized()
