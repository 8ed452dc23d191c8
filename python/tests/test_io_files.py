"""Models and tensors in files of every kind, from Python."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.io import load_model, load_tensors, save_model, save_tensors, serialization

CPU = manager.default("cpu").queue
KINDS = ("netcl", "npz", "safetensors", "safetensors.index.json", "pt", "pth")


class Net(nn.Module):
    """A class of a user's own, with a shared weight, a buffer and a counter."""

    def __init__(self):
        self.embed = nn.Embedding(CPU, 5, 4)
        self.norm = nn.BatchNorm1d(CPU, 4)
        self.head = nn.TiedLinear(self.embed.weight)
        self.register_buffer("scale", Tensor.from_host(CPU, np.array([2.0, 3.0, 4.0, 5.0], np.float32)))

    def forward(self, indices):
        return self.head(self.norm(self.embed(indices)) * self.scale)


def assert_same(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.Conv2d(CPU, 1, 2, 3, padding=1), nn.BatchNorm2d(CPU, 2), nn.GELU(), nn.Flatten(), nn.Linear(CPU, 32, 3)),
    lambda: nn.Sequential(nn.Residual(nn.Linear(CPU, 4, 4), activation=nn.ReLU()), nn.Sequential(nn.Linear(CPU, 4, 2, bias=False))),
    lambda: nn.Linear(CPU, 3, 2),
    lambda: nn.GPT(CPU, 11, 8, 8, 2, 2),
    lambda: nn.LSTM(CPU, 3, 4, num_layers=2, bidirectional=True),
])  # fmt: skip
def test_models_are_rebuilt_from_a_file(tmp_path, make):
    model = make()
    save_model(model, tmp_path / "m.netcl")
    again = load_model(tmp_path / "m.netcl", CPU)
    assert str(again) == str(model)
    assert_same(again, model)
    # The module of the documentation is the same one.
    assert serialization.load_model is load_model


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_into_a_class_of_one_s_own(tmp_path, kind):
    model, other = Net(), Net()
    model(np.array([1, 2, 3]))  # moves the averages and the counter
    path = tmp_path / f"m.{kind}"
    save_model(model, path)
    assert load_model(path, model=other) is other
    assert_same(model, other)
    assert other.head.weight is other.embed.weight
    found = load_tensors(path, CPU)
    assert found["norm.num_batches_tracked"].to_host() == 1 and found["scale"].dtype == "float32"
    with pytest.raises(ValueError, match=r"make the model first, then load_model\(path, model=\.\.\.\)"):
        load_model(path)


def test_numpy_reads_and_writes(tmp_path):
    save_model(Net(), tmp_path / "a.netcl")
    with np.load(tmp_path / "a.netcl", allow_pickle=False) as file:
        assert file["embed.weight"].shape == (5, 4)
    arrays = {"x": np.arange(6.0).reshape(2, 3), "n": np.array([1, 2**40]), "t": np.asfortranarray(np.ones((2, 3), np.float32))}
    np.savez(tmp_path / "b.npz", **arrays)
    found = load_tensors(tmp_path / "b.npz", CPU)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].to_host(), array)
    save_tensors(arrays, tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as file:
        for name, array in arrays.items():
            np.testing.assert_array_equal(file[name], array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_are_kept_or_converted(tmp_path, dtype):
    values = np.array([1.0, -2.5, 0.375], np.float32)
    tensor = Tensor.from_host(CPU, values, dtype)
    for kind in KINDS:
        path = tmp_path / f"t.{kind}"
        save_tensors({"t": tensor}, path)
        same, wide = load_tensors(path, CPU), load_tensors(path, CPU, dtype="float32")
        assert (same["t"].dtype, wide["t"].dtype) == (dtype, "float32")
        np.testing.assert_array_equal(wide["t"].to_host(), values)


def test_names_are_replaced_by_patterns(tmp_path):
    model, other = nn.Sequential(nn.Linear(CPU, 2, 3)), nn.Sequential(nn.Linear(CPU, 2, 3))
    save_tensors({f"module.layer{name}": value for name, value in model.state_dict().items()}, tmp_path / "a.pt")
    rules = [(r"^module\.", ""), (r"layer(\d+)", r"\1")]
    load_model(tmp_path / "a.pt", model=other, rename=rules)
    assert_same(model, other)
    for given in (dict(rules), map(list, rules)):
        assert set(load_tensors(tmp_path / "a.pt", CPU, rename=given)) == {"0.weight", "0.bias"}
    load_model(tmp_path / "a.pt", model=other, rename=dict(rules))
    other.load_state_dict(load_tensors(tmp_path / "a.pt", CPU), rename=dict(rules))
    for call in (
        lambda: load_model(tmp_path / "a.pt", model=other, rename="module"),
        lambda: load_tensors(tmp_path / "a.pt", rename=["module"]),
        lambda: other.load_state_dict({}, rename="module"),
    ):
        with pytest.raises(TypeError, match="rename: use a dict of patterns and replacements, such as .*, not .*module"):
            call()
    assert set(load_tensors(tmp_path / "a.pt", CPU, rename=rules)) == {"0.weight", "0.bias"}
    state = {f"layer{name}": value for name, value in model.state_dict().items()}
    other.load_state_dict(state | {"other.x": np.ones(3)}, rename=[*rules, ("^other.*", "")])
    assert_same(model, other)
    with pytest.raises(ValueError, match=r"'layer0\.weight' and 'layer0\.bias' are both renamed to 'x'"):
        other.load_state_dict(state, rename=[(".*", "x")])
    with pytest.raises(ValueError, match="is no pattern"):
        load_model(tmp_path / "a.pt", model=other, rename=[("(", "")])


def test_a_body_is_loaded_without_its_head(tmp_path):
    model, other = (nn.Sequential(nn.Linear(CPU, 2, 3), nn.Linear(CPU, 3, classes)) for classes in (4, 5))
    save_model(model, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="1.weight"):
        load_model(tmp_path / "a.pt", model=other, strict=False)
    load_model(tmp_path / "a.pt", model=other, strict=False, rename={r"^1\..*": ""})
    assert_same(model[0], other[0])


def test_a_checkpoint_without_a_configuration_names_the_model_beside_it(tmp_path):
    model = nn.Sequential(nn.Linear(CPU, 2, 3))
    save_tensors(model.state_dict(), tmp_path / "last.netcl", metadata={"progress": {"epochs": 1}})
    with pytest.raises(ValueError, match="make the model first"):
        load_model(tmp_path / "last.netcl")
    save_model(model, tmp_path / "model.netcl")
    with pytest.raises(ValueError, match=r"last\.netcl is a checkpoint, .*: load .*model\.netcl$"):
        load_model(tmp_path / "last.netcl")
    assert_same(model, load_model(tmp_path / "last.netcl", model=nn.Sequential(nn.Linear(CPU, 2, 3))))


def test_what_does_not_fit_is_listed_at_once(tmp_path):
    path = tmp_path / "a.safetensors"
    save_model(nn.Sequential(nn.Linear(CPU, 2, 3), nn.Linear(CPU, 3, 1)), path)
    model = nn.Sequential(nn.Linear(CPU, 2, 4), nn.ReLU(), nn.Linear(CPU, 3, 1))
    before = {name: value.copy() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="0.weight") as caught:
        load_model(path, model=model)
    for expected in ("0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "[3, 2]", "[4, 2]"):
        assert expected in str(caught.value)
    fits = nn.Sequential(nn.Linear(CPU, 2, 3), nn.ReLU())
    load_model(path, model=fits, strict=False)
    for name, value in before.items():
        np.testing.assert_array_equal(model.state_dict()[name], value)


def test_bad_arguments_are_named(tmp_path):
    model = nn.Linear(CPU, 2, 2)
    for kind, match, act in [
        (TypeError, r"save_model\(model, path\): the model is a netcl.nn.Module, not a str", lambda: save_model("a", model)),
        (ValueError, "endings?.*safetensors", lambda: save_model(model, tmp_path / "a.onnx")),
        (FileNotFoundError, "no.netcl", lambda: load_model(tmp_path / "no.netcl")),
        (TypeError, "'x' holds", lambda: save_tensors({"x": ["text"]}, tmp_path / "a.npz")),
    ]:
        with pytest.raises(kind, match=match):
            act()
    (tmp_path / "text.netcl").write_text("hello")
    with pytest.raises(ValueError, match="text.netcl"):
        load_model(tmp_path / "text.netcl")
    pickled = io.BytesIO()
    with zipfile.ZipFile(pickled, "w") as file:
        file.writestr("a/data.pkl", b"cos\nsystem\n(S'touch " + bytes(tmp_path / "pwned") + b"'\ntR.")
    (tmp_path / "evil.pt").write_bytes(pickled.getvalue())
    with pytest.raises(ValueError, match="os.system"):
        load_tensors(tmp_path / "evil.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_model_without_an_ending_is_a_netcl_file(tmp_path):
    save_model(nn.ReLU(), str(tmp_path / "plain"))
    assert isinstance(load_model(tmp_path / "plain.netcl"), nn.ReLU)


@pytest.mark.parametrize("selector", find_device_selectors())
def test_files_load_onto_the_device_that_is_asked_for(tmp_path, selector):
    queue = manager.default(selector).queue
    model = nn.Sequential(nn.Linear(CPU, 2, 3))
    for kind in ("netcl", "safetensors"):
        save_model(model, tmp_path / f"a.{kind}")
    there = load_model(tmp_path / "a.netcl", queue)
    assert there[0].weight.queue == queue
    np.testing.assert_array_equal(there[0].weight.to_host(), model[0].weight.to_host())
    found = load_tensors(tmp_path / "a.safetensors", queue)["0.bias"]
    assert found.queue == queue
    np.testing.assert_array_equal(found.to_host(), model[0].bias.to_host())


def test_files_of_the_published_package_load():
    golden = Path(__file__).resolve().parents[2] / "crates" / "netcl-io" / "tests" / "golden"
    model = load_model(golden / "published.netcl", CPU).eval()
    with np.load(golden / "published-run.npz") as run:
        found = model(Tensor.from_host(CPU, run["x"])).to_host()
        np.testing.assert_allclose(found, run["y"], atol=1e-5)


def test_the_example_of_a_pretrained_encoder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples" / "python"))
    import sentence_embeddings

    width, inner, config = 8, 12, {
        "hidden_size": 8, "layer_norm_eps": 1e-12, "vocab_size": 20, "max_position_embeddings": 16, "type_vocab_size": 2,
        "num_attention_heads": 2, "intermediate_size": 12, "num_hidden_layers": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {
        f"embeddings.{name}_embeddings.weight": (rows, width)
        for name, rows in (("word", 20), ("position", 16), ("token_type", 2))
    }
    linear = {f"attention.self.{name}": (width, width) for name in ("query", "key", "value")}
    linear |= {"attention.output.dense": (width, width), "intermediate.dense": (inner, width), "output.dense": (width, inner)}
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        shapes |= {f"encoder.layer.{i}.{name}.weight": shape for name, shape in linear.items()}
        shapes |= {f"encoder.layer.{i}.{name}.bias": shape[:1] for name, shape in linear.items()}
        norms += [f"encoder.layer.{i}.{name}.LayerNorm" for name in ("attention.output", "output")]
    shapes |= {f"{norm}.{end}": (width,) for norm in norms for end in ("weight", "bias")} | {
        "pooler.dense.weight": (width, width)
    }
    drawn = np.random.default_rng(0)
    save_tensors(
        {name: drawn.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}, tmp_path / "model.safetensors"
    )

    model = sentence_embeddings.load(tmp_path)
    ids, mask = np.array([[1, 5, 9, 0], [2, 3, 4, 7]]), np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    found = model(ids, mask).to_host()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    # What is padding does not matter.
    np.testing.assert_allclose(model(ids[:1, :3], mask[:1, :3]).to_host(), found[:1], atol=1e-5)
    assert abs(found[0] - found[1]).max() > 1e-2


@pytest.mark.parametrize("place", [("netcl.nn.module", "_scope.threading._os.getcwd"), ("netcl.nn.module", "Module"),
                                   ("numpy.dtypes", "np.os.getcwd"), ("os", "getcwd")])  # fmt: skip
def test_objects_name_nothing_but_tensors_and_arrays(tmp_path, place):
    """A pickle that calls a function on its way in."""
    module, name = (part.encode() for part in place)
    call = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93)R."
    path = tmp_path / "objects.bin"
    path.write_bytes(call)
    with pytest.raises(pickle.UnpicklingError, match="which is more than tensors"):
        netcl.load(path)
    state = {"model": Net().state_dict(), "parameters": list(Net().parameters()), "step": 3}
    netcl.save(state, path)
    assert netcl.load(path)["step"] == 3
