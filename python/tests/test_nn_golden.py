"""Layers and networks against PyTorch and torchvision, with the same weights: outputs, gradients, running statistics.

The numbers are in golden/nn.npz, made by golden/make_nn.py; golden/nn_cases.py says what is computed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
from nn_cases import CASES, NETWORKS, given, numbers, sampled, value  # noqa: E402

# What needs kernels of its own; the rest is made of operations that are tested on every device.
ON_DEVICES = ["Conv2d-sizes", "BatchNorm2d", "MultiheadAttention-masks"]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "nn.npz") as file:
        values, index = file["values"], json.loads(str(file["index"]))
    found, at = {}, 0
    for name, shape in index:
        size = int(np.prod(shape))
        found[name] = values[at : at + size].reshape(shape)
        at += size
    assert at == len(values)
    return found


def of(golden, prefix: str) -> dict[str, np.ndarray]:
    """The arrays under a prefix."""
    return {name[len(prefix) :]: array for name, array in golden.items() if name.startswith(prefix)}


def keys(golden, case: str) -> list[str]:
    """The names of PyTorch's state_dict."""
    return next(name for name in of(golden, f"{case}/keys/")).split(",")


def tensors(x) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return [t for part in x for t in tensors(part)] if isinstance(x, (list, tuple)) else []


def loaded(golden, case: str, module):
    """The module with the case's weights, under PyTorch's names."""
    known = module.state_dict()
    assert [name for name in keys(golden, case) if name] == list(known)
    module.load_state_dict({name: value(case, name, known[name].shape) for name in known})
    return module


def compare(golden, case, queue, dtype: str, tolerance: float) -> None:
    module = getattr(nn, case.kind)(**case.kwargs)
    module = loaded(golden, case.name, module.to(queue, dtype)).train(case.training)

    def make(array, trained):
        if array.dtype.kind in "iu":
            return array
        return Tensor.from_host(queue, array, dtype).requires_grad_(trained)

    inputs = [given(x, f"{case.name}/input{i}", make) for i, x in enumerate(case.inputs)]
    outputs = tensors(module(*inputs, **case.call))
    expected = of(golden, f"{case.name}/output")
    assert len(outputs) == len(expected)
    loss = None
    for i, out in enumerate(outputs):
        close(out, expected[str(i)], tolerance, f"output {i}")
        part = (out * Tensor.from_host(queue, numbers(f"{case.name}/factor{i}", out.shape), dtype)).sum()
        loss = part if loss is None else loss + part
    loss.backward()
    leaves = [x if isinstance(x, Tensor) else None for x in flat(inputs)]
    for i, grad in of(golden, f"{case.name}/grad").items():
        if not i.startswith("/"):
            close(leaves[int(i)].grad, grad, tolerance, f"gradient of input {i}")
    parameters = dict(module.named_parameters())
    assert set(parameters) == set(of(golden, f"{case.name}/grad/"))
    for name, parameter in parameters.items():
        close(parameter.grad, golden[f"{case.name}/grad/{name}"], tolerance, f"gradient of {name}")
    state = module.state_dict()
    for name, array in of(golden, f"{case.name}/after/").items():
        close(state[name], array, tolerance, name)


def flat(inputs) -> list:
    return [leaf for x in inputs for leaf in (flat(x) if isinstance(x, tuple) else [x])]


def close(actual, expected: np.ndarray, tolerance: float, what: str) -> None:
    actual = actual.to_host() if isinstance(actual, Tensor) else actual
    assert actual.shape == expected.shape, what
    largest = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * largest, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layers_equal_pytorch(golden, case):
    # The golden numbers are kept in float32.
    compare(golden, case, manager.default("cpu").queue, "float64", 3e-7)


@pytest.mark.parametrize("selector", find_device_selectors()[1:])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in ON_DEVICES], ids=lambda case: case.name)
def test_layers_equal_pytorch_on_opencl(golden, case, selector):
    compare(golden, case, manager.default(selector).queue, "float32", 2e-5)


def test_every_layer_is_compared():
    # What PyTorch has no layer for, what is no layer, activations, which test_nn.py holds
    # against their functions, CTCLoss, which test_ctc.py holds against all alignments, Fold and Unfold
    # (test_functional_golden.py), and QuantizedLinear (test_quantize.py).
    elsewhere = {
        *("Concat", "DepthwiseConv2d", "Dropout", "Dropout1d", "Dropout2d", "GlobalAvgPool2d", "Identity"),
        *("Module", "CTCLoss", "Fold", "Unfold", "TransformerDecoder", "TransformerEncoder", "QuantizedLinear"),
        *(*nn.container.__all__, *nn.decoder.__all__, "GPT"),
        # Random in training; one function each, which test_nn.py holds them against; made of layers that are here.
        *("AlphaDropout", "FeatureAlphaDropout", "LPPool1d", "LPPool2d", "PairwiseDistance", "ChannelShuffle"),
        *("LocalResponseNorm", "UpsamplingNearest2d", "UpsamplingBilinear2d", "CosineSimilarity", "Transformer"),
    }
    known = {case.kind for case in CASES} | elsewhere | set(nn.activation.__all__)
    assert {name for name in nn.layers.__all__ if name != "Parameter"} <= known


@pytest.mark.parametrize("key", NETWORKS)
def test_networks_equal_torchvision(golden, key):
    layers, block, shape = NETWORKS[key]
    queue, stem = manager.default("cpu").queue, key.split("-")[0]
    made = (
        nn.ResNet18(queue, num_classes=10, stem=stem)
        if block == "BasicBlock"
        else nn.ResNet(queue, getattr(nn.resnet, block), layers, 10, stem=stem)
    )
    model = loaded(golden, key, made)
    x = Tensor.from_host(queue, numbers(f"{key}/input", shape), "float32").requires_grad_()
    close(model.eval()(x), golden[f"{key}/eval"], 1e-4, "logits in inference")
    out = model.train()(x)
    close(out, golden[f"{key}/train"], 1e-4, "logits in training")
    (out * Tensor.from_host(queue, numbers(f"{key}/factor", out.shape), "float32")).sum().backward()
    wrong = {}
    for name, parameter in [("", x), *model.named_parameters()]:
        expected = golden[f"{key}/grad" + (f"/{name}" if name else "")]
        error = np.abs(sampled(parameter.grad.to_host()) - expected).max() / expected[-1]
        if error > 1e-3:
            wrong[name] = error
    assert not wrong
    state = model.state_dict()
    for name, expected in of(golden, f"{key}/after/").items():
        close(sampled(state[name]), expected, 1e-4, name)
    assert state["bn1.num_batches_tracked"] == 4


@pytest.mark.parametrize("kind", ["ResNet18", "ResNet34", "ResNet50"])
def test_networks_have_torchvisions_names_and_sizes(golden, kind):
    state = getattr(nn.resnet, kind)(manager.default("cpu").queue, num_classes=1000, stem="imagenet").state_dict()
    ((names, size),) = of(golden, f"{kind.lower()}/keys/").items()
    assert names.split(",") == list(state) and size == np.float32(sum(array.size for array in state.values()))
