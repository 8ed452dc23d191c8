"""Models that are composed in both languages: from one seed they have the same parameters, results and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import netcl
from netcl import nn
from netcl._netcl import nn as _nn
from netcl.core.device import manager
from netcl.core.index import IndexTensor
from netcl.core.tensor import Tensor

CPU = manager.default("cpu").queue


def in_both(make: Callable[[], nn.Module], kind: str, settings: dict[str, Any]) -> tuple[nn.Module, _nn.Layer]:
    """A model of Python's and one of Rust's, in inference, whose names and first values are the same."""
    netcl.manual_seed(7)
    model = make()
    netcl.manual_seed(7)
    layer = _nn.Layer(kind, settings, CPU)
    expected, found = model.state_dict(), layer.state()
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].to_host(), values, err_msg=name)
    layer.train(False)
    return model.eval(), layer


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return Tensor.from_host(CPU, np.random.default_rng(seed).normal(size=shape), "float32")


SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 12}
ENCODER = {"type": "TransformerEncoderLayer", "args": SIZES}
DECODER = {"type": "TransformerDecoderLayer", "args": SIZES}
NORM = {"type": "LayerNorm", "args": {"normalized_shape": 8}}


@pytest.mark.parametrize(
    ("kind", "settings", "make"),
    [
        ("TransformerEncoderLayer", {**SIZES, "norm_first": True, "activation": "gelu"}, None),
        ("TransformerEncoderLayer", {**SIZES, "batch_first": False, "bias": False}, None),
        ("TransformerBlock", {"d_model": 8, "num_heads": 2, "activation": "silu"}, None),
        ("DecoderBlock", {"dim": 8, "n_head": 2}, None),
        (
            "TransformerEncoder",
            {"encoder_layer": ENCODER, "num_layers": 2, "norm": NORM},
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(CPU, **SIZES), 2, nn.LayerNorm(CPU, 8)),
        ),
    ],
    ids=["encoder-first", "encoder", "block", "decoder-block", "encoders"],
)
def test_functions_of_one_tensor(kind, settings, make):
    model, layer = in_both(make or (lambda: getattr(nn, kind)(CPU, **settings)), kind, settings)
    x = drawn(2, 3, 8)
    np.testing.assert_array_equal(model(x).to_host(), layer.forward(None, x).to_host())


@pytest.mark.parametrize(
    ("kind", "settings", "make"),
    [
        ("TransformerDecoderLayer", {**SIZES, "norm_first": True}, None),
        ("TransformerDecoderLayer", {**SIZES, "activation": "gelu"}, None),
        (
            "TransformerDecoder",
            {"decoder_layer": DECODER, "num_layers": 2},
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(CPU, **SIZES), 2),
        ),
    ],
    ids=["decoder-first", "decoder", "decoders"],
)
def test_decoders(kind, settings, make):
    model, layer = in_both(make or (lambda: getattr(nn, kind)(CPU, **settings)), kind, settings)
    x, memory = drawn(2, 3, 8), drawn(2, 5, 8, seed=1)
    np.testing.assert_array_equal(model(x, memory).to_host(), _nn.decode(layer, x, memory).to_host())


RESNET = {"num_classes": 3, "base_channels": 4}
VIT = {"image_size": 8, "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12, "num_classes": 3}


@pytest.mark.parametrize(
    ("kind", "settings", "make", "size"),
    [
        (
            "ResNet",
            {"block": "BasicBlock", "layers": (1, 2, 1, 1), "stem": "imagenet", **RESNET},
            lambda: nn.ResNet(CPU, nn.resnet.BasicBlock, (1, 2, 1, 1), stem="imagenet", **RESNET),
            32,
        ),
        (
            "ResNet",
            {"block": "Bottleneck", "layers": (1, 1, 2, 1), **RESNET},
            lambda: nn.ResNet(CPU, nn.resnet.Bottleneck, (1, 1, 2, 1), **RESNET),
            16,
        ),
        (
            "ResNet",
            {"block": "BasicBlock", "layers": (2, 2, 2, 2), "use_batchnorm": False, **RESNET},
            lambda: nn.ResNet18(CPU, use_batchnorm=False, **RESNET),
            16,
        ),
        ("MobileNetV2", {"num_classes": 3, "width_mult": 0.25}, lambda: nn.MobileNetV2(CPU, 3, 0.25), 32),
        ("VisionTransformer", VIT, lambda: nn.VisionTransformer(CPU, **VIT), 8),
    ],
    ids=["resnet", "bottlenecks", "without-norms", "mobilenet", "vit"],
)
def test_networks_for_images(kind, settings, make, size):
    model, layer = in_both(make, kind, settings)
    if kind == "VisionTransformer":
        # Its head starts as zeros, after which everything is equal.
        values = np.random.default_rng(2).normal(size=(3, 8))
        for tensor in (model.heads.head.weight, layer.state()["heads.head.weight"]):
            _nn.assign(tensor, Tensor.from_host(CPU, values, "float32"))
    x = drawn(2, 3, size, size)
    result = model(x).to_host()
    assert np.abs(result).max() > 0
    np.testing.assert_array_equal(result, layer.forward(None, x).to_host())


def test_gpt():
    settings = {"vocab_size": 11, "block_size": 6, "n_layer": 2, "n_head": 2, "n_embd": 8, "dropout": 0.1}
    model, layer = in_both(lambda: nn.GPT(CPU, **settings), "GPT", settings)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    logits = layer.forward(None, Tensor.from_host(CPU, tokens.astype(np.float32)))
    np.testing.assert_array_equal(model(tokens).to_host(), logits.to_host())
    # Beyond the block as well.
    prompt = tokens[:, :2]
    for temperature, top_p in [(0.0, None), (2.0, None), (3.0, 0.6)]:
        found = model.generate(prompt, 9, temperature, seed=3, top_p=top_p)
        expected = _nn.generate(layer, IndexTensor.from_host(CPU, prompt), 9, temperature, top_p, 3)
        np.testing.assert_array_equal(found, expected.to_host())


def test_a_layer_inside_follows_its_module():
    layer = nn.RotaryAttention(CPU, 8, 2)
    x = drawn(1, 4, 8)
    first = layer(x).to_host()
    layer.q_norm.eps = 10.0
    assert not np.array_equal(layer(x).to_host(), first)
    layer.q_norm.eps = 1e-6
    np.testing.assert_array_equal(layer(x).to_host(), first)
    layer.proj = nn.Linear(CPU, 8, 8, bias=False)
    assert not np.array_equal(layer(x).to_host(), first)
    layer.proj = nn.Identity()
    with pytest.raises(TypeError, match="RotaryAttention: proj is computed as a Linear; this module cannot take its place"):
        layer(x)


def test_sinusoidal_places():
    table = nn.SinusoidalEmbedding(CPU, 7, 6)
    angles = np.arange(7)[:, None] / 10000 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(7, 6)
    np.testing.assert_allclose(table(5, start=2).to_host(), expected[2:], rtol=1e-6, atol=1e-7)
    assert table.parameters() == [] and list(table.state_dict()) == ["weight"]
