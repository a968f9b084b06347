"""Models of the package, at small size, as ONNX files in ONNX Runtime beside ampkit."""

from __future__ import annotations

import io

import numpy as np
import pytest

import ampkit
from ampkit import models, nn, testing
from ampkit.models.efficientnet import Stage
from ampkit.models.resnet import BasicBlock, Bottleneck

onnx = pytest.importorskip("onnx", reason="needs onnx, of the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime, of the extra dev")

EFFICIENTNET = (Stage(1, 3, 1, 8, 8, 2), Stage(2, 5, 2, 8, 16, 2))
BERT = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
GPT = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 8}
RESNET = {"num_classes": 5, "stem": "cifar", "width": 8}


def image(*shape):
    return ampkit.tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def tokens(*shape):
    return ampkit.tensor(np.random.default_rng(0).integers(0, 11, shape))


CASES = {
    "mlp": (lambda: models.mlp(64, (32, 16), 10), image(3, 1, 8, 8)),
    "cnn": (lambda: models.cnn(width=4), image(3, 1, 8, 8)),
    "lenet5": (lambda: models.lenet5(image_size=12), image(2, 1, 12, 12)),
    "alexnet": (lambda: models.alexnet(5, hidden=8), image(2, 3, 63, 63)),
    "convmixer": (lambda: models.convmixer(8, 2, 3), image(2, 3, 8, 8)),
    "vgg": (lambda: models.VGG((1, 2), widths=(4, 8), hidden=8, num_classes=5), image(2, 3, 9, 9)),
    "vgg_bn": (lambda: models.VGG((1, 2), widths=(4, 8), hidden=8, num_classes=5, batch_norm=True), image(2, 3, 8, 8)),
    "resnet": (lambda: models.ResNet(BasicBlock, (1, 1, 1, 1), **RESNET), image(2, 3, 8, 8)),
    "bottlenecks": (lambda: models.ResNet(Bottleneck, (1, 1, 1, 1), **RESNET), image(2, 3, 8, 8)),
    "efficientnet": (lambda: models.EfficientNet(EFFICIENTNET, 0.2, num_classes=5), image(2, 3, 16, 16)),
    "wav2letter": (lambda: models.Wav2Letter(5, "mfcc", 3, 4, 6), image(2, 3, 60)),
    "vit": (lambda: models.vit(8, 4, 2, 2, 8, 12), image(2, 3, 8, 8)),
    "bert": (lambda: models.bert("tiny", **BERT), tokens(3, 5)),
    "gpt": (lambda: models.GPT(**GPT), tokens(3, 5)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), image(2, 5, 3)),
    "gru": (lambda: nn.GRU(3, 4, bias=False, batch_first=True), image(2, 5, 3)),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu", batch_first=True), image(2, 5, 3)),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
        image(2, 5, 8),
    ),
}


def exported(model, *args, **options):
    """A file's session, and the names of its outputs."""
    file = io.BytesIO()
    ampkit.onnx.export(model, args, file, input_names=["input"], **options)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(file.getvalue(), settings, providers=["CPUExecutionProvider"])


def outputs(model, tensor):
    """The model's outputs in eval mode, in order."""
    was = model.training
    with ampkit.no_grad():
        found = model.eval()(tensor)
    model.train(was)
    found = list(found.values()) if isinstance(found, dict) else found
    return flat(found)


def flat(found):
    return [tensor for each in found for tensor in flat(each)] if isinstance(found, (tuple, list)) else [found]


def need_equal(session, model, tensor, tolerance=None):
    found = session.run(None, {"input": tensor.numpy()})
    wanted = outputs(model, tensor)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        testing.assert_close(got, want, tolerance)


def drawn_norms(model):
    """The model with running statistics and affine weights as training leaves them, not the initial 0 and 1."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                tensor.data = ampkit.rand(*tensor.shape) + 0.5
    return model


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_in_onnx_runtime_what_it_computes_here_for_any_batch(name):
    ampkit.manual_seed(0)
    build, tensor = CASES[name]
    model = drawn_norms(build())
    session = exported(model, tensor, dynamic_shapes={"input": {0: "batch"}})
    assert session.get_inputs()[0].shape == ["batch", *tensor.shape[1:]]
    need_equal(session, model, tensor, (1e-5, 1e-5))
    need_equal(session, model, ampkit.cat([tensor * 2 if tensor.is_floating_point() else tensor, tensor]), (1e-5, 1e-5))
    need_equal(session, model, tensor[:1], (1e-5, 1e-5))


def test_segmentation_has_its_outputs_by_name():
    ampkit.manual_seed(0)
    backbone = models.ResNet(Bottleneck, (1, 1, 1, 1), width=8)
    model = drawn_norms(models.Segmentation(backbone, nn.Conv2d(256, 3, 1), nn.Conv2d(128, 3, 1)))
    session = exported(model, image(2, 3, 33, 33), dynamic_shapes={"input": {0: "batch"}})
    assert [info.name for info in session.get_outputs()] == ["out", "aux"]
    need_equal(session, model, image(3, 3, 33, 33), (1e-5, 1e-5))


@pytest.mark.parametrize(("name", "longest"), [("gpt", 6), ("bert", 9)])
def test_a_language_model_takes_other_lengths_too(name, longest):
    model = CASES[name][0]()
    session = exported(model, tokens(2, 5), dynamic_shapes={"input": {0: "batch", 1: "length"}})
    for shape in ((1, 1), (3, longest)):
        need_equal(session, model, tokens(*shape), (1e-5, 1e-5))


@pytest.mark.parametrize("name", ["cnn", "gpt", "vit", "lstm"])
def test_a_model_under_autocast_computes_in_float16_as_it_does_here(name):
    ampkit.manual_seed(0)
    build, tensor = CASES[name]
    model = build()
    with ampkit.autocast(dtype=ampkit.float16):
        session = exported(model, tensor)
        need_equal(session, model, tensor, (4e-3, 4e-3))


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_a_model_of_float16_weights_computes_as_it_does_here(name):
    ampkit.manual_seed(0)
    build, tensor = CASES[name]
    model = build().half()
    tensor = tensor.half() if tensor.is_floating_point() else tensor
    need_equal(exported(model, tensor), model, tensor, (4e-3, 4e-3))


def test_bfloat16_operands_are_rounded_and_computed_in_float32():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    file = io.BytesIO()
    with ampkit.autocast(dtype=ampkit.bfloat16):
        ampkit.onnx.export(model, image(3, 6), file, verify=True)
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(file.getvalue())).graph
    types = {info.name: info.type.tensor_type.elem_type for info in graph.value_info}
    products = [node for node in graph.node if node.op_type == "Gemm"]
    assert len(products) == 2
    assert all(types[node.output[0]] == onnx.TensorProto.FLOAT for node in products)
    assert graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16
