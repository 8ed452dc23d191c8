"""Linear layers with weights of 8 and 4 bits: values, files, copies, models of both kinds, errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import netcl
from netcl import nn
from netcl._netcl import nn as _nn
from netcl.core.device import manager
from netcl.io import load_model, save_model

CPU = manager.default("cpu").queue


def unpacked(layer: nn.QuantizedLinear) -> np.ndarray:
    """The weight that the words and scales of a layer stand for."""
    words, bits = layer.weight.to_host().view(np.uint32), layer.bits
    values = (words[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32))) & (2**bits - 1)
    values = values.reshape(layer.out_features, -1)[:, : layer.in_features].astype(np.float64) - 2 ** (bits - 1)
    group = layer.in_features if bits == 8 else layer.group
    return values * np.repeat(layer.scale.to_host().astype(np.float64), group, axis=1)[:, : layer.in_features]


def drawn(*shape: int, dtype: str = "float32") -> Any:
    values = np.random.default_rng(3).standard_normal(shape)
    return netcl.tensor(values.astype(np.float32), device="cpu").to(dtype=dtype)


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (4, 32), (4, 128)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_layer_is_its_weight_rounded(bits, group, dtype):
    linear = nn.Linear(CPU, 150, 7, dtype=dtype)
    layer = nn.QuantizedLinear.from_linear(linear, bits, group)
    weight, exact = unpacked(layer), linear.weight.to(dtype="float32").to_host()
    assert np.abs(weight - exact).max() <= 0.6 * np.abs(exact).max() / (127 if bits == 8 else 7)
    eps = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for rows in (1, 3, 17, 33):
        x = drawn(rows, 150, dtype=dtype)
        expected = x.to(dtype="float32").to_host() @ weight.T + linear.bias.to(dtype="float32").to_host()
        np.testing.assert_allclose(layer(x).to(dtype="float32").to_host(), expected, rtol=eps, atol=5 * eps)
    x = drawn(2, 150).requires_grad_()
    layer.float()(x).sum().backward()
    np.testing.assert_allclose(x.grad.to_host(), np.broadcast_to(weight.sum(0), (2, 150)), rtol=1e-2, atol=2e-2)
    assert layer.bias.shape == (7,) and layer.parameters() == [] and list(layer.state_dict()) == ["weight", "scale", "bias"]


@pytest.mark.parametrize("ending", ["netcl", "safetensors"])
def test_a_file_brings_it_back(tmp_path: Path, ending):
    model = nn.quantize(nn.Sequential(nn.Linear(CPU, 40, 9), nn.ReLU(), nn.Linear(CPU, 9, 3, bias=False)), bits=4, group=32)
    assert repr(model[0]) == "QuantizedLinear(in_features=40, out_features=9, bits=4, group=32, bias=True)"
    x, path = drawn(2, 40), tmp_path / f"model.{ending}"
    save_model(model, path)
    first, last = nn.QuantizedLinear(CPU, 40, 9, 4, 32), nn.QuantizedLinear(CPU, 9, 3, 4, 32, bias=False)
    fresh = nn.Sequential(first, nn.ReLU(), last)
    for again in [load_model(path, model=fresh), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]:
        np.testing.assert_array_equal(again(x).to_host(), model(x).to_host())
    if ending == "netcl":
        np.testing.assert_array_equal(load_model(path, CPU)(x).to_host(), model(x).to_host())


class Own(nn.Module):
    """A model of Python's, with a layer used twice and blocks that Rust computes."""

    def __init__(self) -> None:
        self.first = nn.Linear(CPU, 32, 32)
        self.again = self.first
        self.block = nn.DecoderBlock(CPU, 32, 2)
        self.encoder = nn.TransformerEncoderLayer(CPU, 32, 2, 48)
        self.head = nn.Linear(CPU, 32, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(self.block(self.again(self.first(x)))))


def test_models_composed_in_python():
    model = Own().eval()
    x = drawn(1, 6, 32)
    before = model(x).to_host()
    assert nn.quantize(model, skip="head") is model
    kinds = {name: type(part) for name, part in model.named_modules()}
    assert kinds["head"] is nn.Linear and model.again is model.first
    for name in ["first", "block.attn.qkv", "block.ffn.down", "encoder.self_attn.out_proj", "encoder.linear1"]:
        assert kinds[name] is nn.QuantizedLinear, name
    after = model(x).to_host()
    assert not np.array_equal(after, before)
    np.testing.assert_allclose(after, before, atol=0.1)
    # Without their blocks' Rust layers copies and files have to find the same kinds again.
    for other in [copy.deepcopy(model), nn.quantize(Own().eval(), skip="head")]:
        other.load_state_dict(model.state_dict())
        np.testing.assert_array_equal(other(x).to_host(), after)


@pytest.mark.parametrize("bits", [8, 4])
def test_generation_with_a_cache_is_that_without(bits):
    netcl.manual_seed(1)
    model = nn.GPT(CPU, 17, 24, n_layer=2, n_head=2, n_embd=32).eval()
    for weight in model.parameters():
        if weight.ndim == 2:
            _nn.assign(weight, weight.detach() * 20.0)
    nn.quantize(model, bits=bits, group=32)
    known = [[3, 1, 4]]
    found = model.generate(known, 15, temperature=0)
    with netcl.no_grad():
        for _ in range(15):
            known[0].append(int(model(np.array(known)).to_host()[0, -1].argmax()))
    np.testing.assert_array_equal(found, known)


def test_what_is_wrong_is_said():
    linear = nn.Linear(CPU, 4, 2)
    assert isinstance(nn.quantize(linear), nn.QuantizedLinear)
    model = nn.Sequential(linear, nn.ReLU())
    with pytest.raises(ValueError, match="bits is 3; weights have 8 or 4"):
        nn.quantize(model, bits=3)
    with pytest.raises(ValueError, match="group is 48; with 4 bits use 32, 64 or 128"):
        nn.quantize(model, 4, 48)
    with pytest.raises(ValueError, match="skip names 'head', where there is no Linear; there are 0"):
        nn.quantize(model, skip=["head"])
    linear.weight = netcl.tensor(np.full((2, 4), np.nan, np.float32), device="cpu", requires_grad=True)
    with pytest.raises(ValueError, match=r"^0: quantize: row 0 of the weight holds infinity or NaN"):
        nn.quantize(model)
    assert type(model[0]) is nn.Linear
    with pytest.raises(ValueError, match=r"expected input \(\.\.\., 4\), got \(1, 3\)"):
        nn.QuantizedLinear(CPU, 4, 2)(drawn(1, 3))
