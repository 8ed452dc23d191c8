"""The calls that users of the published package know, as they write them; those of trainers and loaders aside."""

import numpy as np
import pytest

from netcl import optim

DEVICE = "cpu"


def optimizer(name: str):
    """An optimizer of ``netcl.optim``."""
    made = getattr(optim, name, None)
    if made is None:
        pytest.skip(f"netcl.optim has no {name} yet")
    return made


def falls(model, opt, x, y, loss_fn, steps=12) -> bool:
    """Whether steps on one batch lower the loss by a third."""
    losses = []
    for _ in range(steps):
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return losses[-1] < 0.67 * losses[0]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_the_first_mlp(name):
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn import functional
    from netcl.nn.layers import Flatten, Linear, ReLU, Sequential

    queue = manager.default(device=DEVICE).queue
    model = Sequential(
        Flatten(),
        Linear(queue, 28 * 28, 128),
        ReLU(),
        Linear(queue, 128, 10),
    )
    opt = optimizer(name)(model.parameters(), lr=1e-3 if name == "Adam" else 0.1)
    rng = np.random.default_rng(0)
    x = Tensor.from_host(queue, rng.normal(size=(32, 1, 28, 28)).astype(np.float32))
    y = Tensor.from_host(queue, rng.integers(0, 10, size=(32,)))
    assert falls(model, opt, x, y, functional.cross_entropy)


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_the_small_cnn(name):
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn import build_sequential, fast_bn_cnn_config, functional

    queue = manager.default(device=DEVICE).queue
    model = build_sequential(queue, fast_bn_cnn_config(in_ch=3, num_classes=10))
    opt = optimizer(name)(model.parameters(), lr=1e-3 if name == "AdamW" else 0.02, weight_decay=5e-4)
    rng = np.random.default_rng(0)
    x = Tensor.from_host(queue, rng.normal(size=(8, 3, 32, 32)).astype(np.float32))
    y = Tensor.from_host(queue, rng.integers(0, 10, size=(8,)))
    assert falls(model, opt, x, y, functional.cross_entropy)
    model.eval()
    assert np.array_equal(model(x).to_host(), model(x).to_host())


def test_the_declarative_model():
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn import build_sequential, get_registry, register_layer, to_config

    queue = manager.default(device=DEVICE).queue
    config = [
        {"type": "Conv2d", "args": {"in_channels": 3, "out_channels": 16, "kernel_size": 3, "stride": 1, "pad": 1}},
        {"type": "ReLU"},
        {"type": "MaxPool2d", "args": {"kernel_size": 2, "stride": 2}},
        {"type": "Flatten"},
        {"type": "Linear", "args": {"in_features": 16 * 16 * 16, "out_features": 10}},
    ]
    model = build_sequential(queue, config)
    assert model(Tensor.from_shape(queue, (2, 3, 32, 32))).shape == (2, 10)
    assert model.num_parameters() == 16 * 27 + 16 + 4096 * 10 + 10
    for before, after in zip(config, to_config(model)):
        assert after["type"] == before["type"] and before.get("args", {}).items() <= after["args"].items()
    assert callable(register_layer) and {"Conv2d", "BatchNorm2d", "Dropout"} <= set(get_registry())


def test_the_explicit_tape():
    from netcl import autograd as ag
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor

    queue = manager.default(device=DEVICE).queue
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
    x = Tensor.from_host(queue, a)
    w = Tensor.from_host(queue, b)

    x_node = ag.tensor(x, requires_grad=True)
    w_node = ag.tensor(w, requires_grad=True)

    logits = ag.relu(ag.matmul_op(x_node, w_node))
    target = ag.tensor(Tensor.from_host(queue, np.zeros((8, 3), dtype=np.float32)))
    loss = ag.mse_loss(logits, target)

    ag.Tape().backward(loss)
    product = a @ b
    upstream = 2 * np.maximum(product, 0) / product.size
    np.testing.assert_allclose(w_node.grad.to_host(), a.T @ upstream, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x_node.grad.to_host(), upstream @ b.T, rtol=1e-5, atol=1e-6)


def test_keyword_names_of_the_published_layers():
    from netcl.core.device import manager
    from netcl.core.tensor import Tensor
    from netcl.nn import (
        BatchNorm2d,
        Conv2d,
        ConvTranspose2d,
        Dropout,
        Embedding,
        GroupNorm,
        LayerNorm,
        MultiheadAttention,
        RMSNorm,
        TransformerEncoderLayer,
        Upsample,
    )
    from netcl.nn.resnet import ResNet18

    queue = manager.default(device=DEVICE).queue
    x = Tensor.from_shape(queue, (2, 4, 6, 6), fill=1.0)
    conv = Conv2d(queue, in_channels=4, out_channels=8, kernel_size=3, stride=1, pad=1, bias=True, dilation=1, groups=2)
    assert conv(x).shape == (2, 8, 6, 6)
    assert BatchNorm2d(queue, num_features=4, momentum=0.1, eps=1e-5)(x).shape == x.shape
    assert ConvTranspose2d(4, 8, 2, stride=2, pad=0, queue=queue)(x).shape == (2, 8, 12, 12)
    assert GroupNorm(2, 4, eps=1e-5, queue=queue)(x).shape == x.shape
    assert LayerNorm((6,), eps=1e-5, queue=queue)(x).shape == RMSNorm(6, eps=1e-6, queue=queue)(x).shape == x.shape
    assert Embedding(10, 3, queue=queue, init_std=0.5)([1, 2]).shape == (2, 3)
    rows = Tensor.from_shape(queue, (2, 5, 8), fill=1.0)
    assert MultiheadAttention(8, 2, bias=True, queue=queue)(rows).shape == rows.shape
    assert TransformerEncoderLayer(8, 2, dim_feedforward=16, queue=queue)(rows).shape == rows.shape
    assert Upsample(scale_factor=2, mode="bilinear")(x).shape == (2, 4, 12, 12)
    assert Dropout(p=0.5, seed=1)(x).shape == x.shape
    model = ResNet18(queue, num_classes=7, base_channels=4, use_batchnorm=False)
    assert model(Tensor.from_shape(queue, (2, 3, 8, 8))).shape == (2, 7) and not model.buffers()
