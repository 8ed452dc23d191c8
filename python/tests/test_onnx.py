"""Models from ONNX files, written here byte by byte: no other package is needed."""

import importlib.util
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import nn
from netcl.nn import functional as F


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(field, content):
    """A field of a protobuf message: a number, a text or bytes."""
    if isinstance(content, int):
        return varint(field << 3) + varint(content)
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def node(op, inputs, outputs, name):
    return part(1, b"".join([*(part(1, i) for i in inputs), *(part(2, o) for o in outputs), part(3, name), part(4, op)]))


def floats(name, array):
    dims = b"".join(part(1, length) for length in array.shape)
    return part(5, dims + part(2, 1) + part(8, name) + part(9, array.astype("<f4").tobytes()))


def port(field, name, dims, kind=1):
    shape = b"".join(part(1, part(2, d) if isinstance(d, str) else part(1, d)) for d in dims)
    return part(field, part(1, name) + part(2, part(1, part(1, kind) + part(2, shape))))


RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.normal(size=(3, 4)).astype(np.float32), RANDOM.normal(size=4).astype(np.float32)


def model(*more, out="y"):
    graph = [node("MatMul", ["x", "fc.weight"], ["h"], "product"), node("Add", ["h", "fc.bias"], ["z"], "sum"), *more]
    graph += [node("Relu", ["z"], ["y"], "act"), part(2, "small"), floats("fc.weight", WEIGHT), floats("fc.bias", BIAS)]
    graph += [port(11, "x", ["batch", 3]), port(12, out, ["batch", 4])]
    return part(1, 8) + part(8, part(2, 17)) + part(7, b"".join(graph))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(model())
    return file


@pytest.mark.parametrize("selector", find_device_selectors())
def test_a_model_runs_and_trains(path, selector):
    network = netcl.onnx.load(path, device=selector)
    assert isinstance(network, nn.Module) and network.inputs == ["x"] and network.outputs == ["y"]
    given = RANDOM.normal(size=(5, 3)).astype(np.float32)
    x = netcl.tensor(given, device=selector)
    expected = np.maximum(given @ WEIGHT + BIAS, 0)
    for result in (network(x), network(x=x)):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert sorted(name for name, _ in network.named_parameters()) == ["fc.bias", "fc.weight"]
    optimizer = netcl.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = F.mse_loss(network(x), netcl.zeros_like(network(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_captured_model(path):
    network = netcl.onnx.load(path, device="cpu")
    captured = netcl.runtime.capture(lambda x: network(x))
    for _ in range(3):
        x = netcl.tensor(RANDOM.normal(size=(2, 3)).astype(np.float32), device="cpu")
        assert captured(x).numpy().tobytes() == network(x).numpy().tobytes()


def test_weights_are_saved_and_loaded(path, tmp_path):
    network, other = (netcl.onnx.load(path, device="cpu") for _ in range(2))
    with netcl.no_grad():
        network.fc.weight.mul_(2.0)
    netcl.save(network.state_dict(), tmp_path / "weights.safetensors")
    other.load_state_dict(netcl.load(tmp_path / "weights.safetensors", map_location="cpu"))
    np.testing.assert_array_equal(other.fc.weight.numpy(), 2 * WEIGHT)


def test_missing_operators_are_reported_at_once(tmp_path):
    file = tmp_path / "strange.onnx"
    file.write_bytes(model(node("Strange", ["z"], ["a"], "first"), node("Stranger", ["a"], ["b"], "second"), out="b"))
    assert netcl.onnx.check(file)["missing"].keys() == {"Strange", "Stranger"}
    with pytest.raises(ValueError, match=r"(?s)Strange.*first.*Stranger.*second"):
        netcl.onnx.load(file, device="cpu")


@pytest.mark.parametrize("content", [b"", b"no model", struct.pack("<Q", 1 << 63) * 4, model()[:-9]])
def test_what_is_no_model(tmp_path, content):
    file = tmp_path / "broken.onnx"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.onnx"):
        netcl.onnx.load(file, device="cpu")


def test_the_command_runs_a_model(path, tmp_path):
    given = RANDOM.normal(size=(2, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", given)
    run = [sys.executable, "-m", "netcl", "run", path, "--input", f"x={tmp_path / 'x.npy'}", "--output", f"y={tmp_path / 'y.npy'}"]
    done = subprocess.run([*map(str, run), "--device", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), np.maximum(given @ WEIGHT + BIAS, 0), rtol=1e-5, atol=1e-6)
    shown = subprocess.run([sys.executable, "-m", "netcl", "inspect", str(path)], capture_output=True, text=True)
    assert shown.returncode == 0 and "MatMul" in shown.stdout


class Residual(nn.Module):
    """A module of Python's: it slices, adds in place and concatenates."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        y += y[:, :, ::1, :] * 0.5
        pooled = netcl.cat([y.mean((2, 3)), y.flatten(2).max(dim=2)[0]], 1)
        return F.softmax(self.head(pooled), -1), {"pooled": pooled}


def runtime(file, *inputs):
    """The results of onnxruntime, after the ONNX project's own check."""
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(file), full_check=True)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return session.run(None, {port.name: given for port, given in zip(session.get_inputs(), inputs, strict=True)})


def exported(model, file, *shape_or_inputs):
    """Compares the model, the file in onnxruntime (where it is installed) and the file read again, for two batches."""
    model.eval()
    netcl.onnx.save(model, file, *(netcl.tensor(given, device="cpu") for given in shape_or_inputs))
    again = netcl.onnx.load(file, device="cpu")
    assert {n for n, _ in again.named_parameters()} == {n for n, _ in model.named_parameters()}
    for count in (1, 3):
        inputs = [np.concatenate([given] * 3)[:count] for given in shape_or_inputs]
        expected = flat(model(*(netcl.tensor(given, device="cpu") for given in inputs)))
        read = flat(again(*(netcl.tensor(given, device="cpu") for given in inputs)))
        for got, wanted in zip(read, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
        if RUNTIME:
            for got, wanted in zip(runtime(file, *inputs), expected, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


RUNTIME = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


def flat(result):
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, tuple):
        return [array for item in result for array in flat(item)]
    return [result.numpy()]


def images(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def test_models_of_ours_are_written_and_run_elsewhere(tmp_path):
    queue = netcl.device("cpu").queue
    with netcl.device("cpu"):
        exported(Residual(), tmp_path / "residual.onnx", images(2, 3, 8, 8))
        exported(nn.ResNet18(queue, num_classes=5, base_channels=8), tmp_path / "resnet.onnx", images(2, 3, 32, 32))
        exported(nn.LSTM(queue, 5, 6, num_layers=2, batch_first=True, bidirectional=True), tmp_path / "lstm.onnx", images(2, 7, 5))
        exported(nn.GRU(queue, 5, 6, batch_first=True), tmp_path / "gru.onnx", images(2, 7, 5))
        gpt = nn.GPT(queue, vocab_size=17, block_size=8, n_layer=2, n_head=2, n_embd=16)
        exported(gpt, tmp_path / "gpt.onnx", RANDOM.integers(0, 17, (2, 8)))


def test_several_inputs_and_names(tmp_path):
    class Two(nn.Module):
        def forward(self, a, b):
            return a @ b.transpose(0, 1), a.sum()

    file = tmp_path / "two.onnx"
    a, b = images(2, 3), images(4, 3)
    netcl.onnx.save(Two().eval(), file, netcl.tensor(a), netcl.tensor(b), input_names=["a", "b"], output_names=["c", "s"])
    again = netcl.onnx.load(file, device="cpu")
    assert again.inputs == ["a", "b"] and again.outputs == ["c", "s"]
    np.testing.assert_allclose(again(netcl.tensor(a, device="cpu"), netcl.tensor(b, device="cpu"))[0].numpy(), a @ b.T, rtol=1e-5)
    with pytest.raises(ValueError, match="3 input_names"):
        netcl.onnx.save(Two().eval(), file, netcl.tensor(a), netcl.tensor(b), input_names=["a", "b", "c"])


def test_what_cannot_be_written_is_named_with_its_module(tmp_path):
    class Determinant(nn.Module):
        def forward(self, x):
            return netcl.linalg.det(x)

    model = nn.Sequential(nn.Linear(3, 3), Determinant()).eval()
    with pytest.raises(ValueError, match=r"linalg_det \(in 1\)"):
        netcl.onnx.save(model, tmp_path / "model.onnx", netcl.zeros(2, 3, 3))
    with pytest.raises(ValueError, match=r"eval\(\)"):
        netcl.onnx.save(model.train(), tmp_path / "model.onnx", netcl.zeros(2, 3, 3))


def test_the_command_converts_models(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    netcl.io.save_model(model, tmp_path / "a.netcl")
    for arguments in (["a.netcl", "b.onnx", "--shape", "1,3"], ["b.onnx", "c.safetensors"]):
        done = subprocess.run(
            [sys.executable, "-m", "netcl", "convert", *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert netcl.load(tmp_path / "c.safetensors").keys() == {"0.weight", "0.bias"}
    x = netcl.tensor(images(5, 3), device="cpu")
    np.testing.assert_allclose(netcl.onnx.load(tmp_path / "b.onnx", device="cpu")(x).numpy(), model.to("cpu")(x).numpy(), rtol=1e-5, atol=1e-6)


def test_arrays_of_numpy_go_in_and_those_that_devices_lack_come_out(path):
    found = netcl.onnx.load(path, device="cpu")(RANDOM.normal(size=(2, 3)).astype(np.float32))
    assert isinstance(found, netcl.Tensor) and found.shape == (2, 4)
    graph = [node("DequantizeLinear", ["q", "s"], ["f"], "to floats"), node("QuantizeLinear", ["f", "t"], ["r"], "back")]
    graph += [part(2, "bytes"), floats("s", np.array(0.5)), floats("t", np.array(0.25)), port(11, "q", [2, 3], kind=2)]
    graph += [port(12, "f", [2, 3]), port(12, "r", [2, 3], kind=2)]
    path.write_bytes(part(1, 8) + part(8, part(2, 17)) + part(7, b"".join(graph)))
    image = np.array([[0, 1, 2], [100, 127, 255]], np.uint8)
    numbers, bytes_again = netcl.onnx.load(path, device="cpu")(image)
    assert np.array_equal(numbers.numpy(), image / np.float32(2))
    assert bytes_again.dtype == np.uint8 and bytes_again.tolist() == [[0, 2, 4], [200, 254, 255]]


def test_names_that_are_no_paths_of_modules(tmp_path):
    names = ["inputs", "forward", "a", "a.b", "a..c", ".d", "e.", "x:0/y"]
    graph, last = [], "x"
    for at, name in enumerate(names):
        graph.append(node("Add", [last, name], [f"h{at}"], f"sum{at}"))
        last = f"h{at}"
    graph += [part(2, "odd"), *(floats(name, np.full(2, at, np.float32)) for at, name in enumerate(names))]
    graph += [port(11, "x", [2]), port(12, last, [2])]
    file = tmp_path / "odd.onnx"
    file.write_bytes(part(1, 8) + part(8, part(2, 17)) + part(7, b"".join(graph)))
    network = netcl.onnx.load(file, device="cpu")
    assert {name for name, _ in network.named_parameters()} == set(names)
    assert network.inputs == ["x"]
    state = {name: 2 * value for name, value in network.state_dict().items()}
    assert state.keys() == set(names)
    network.load_state_dict(state)
    np.testing.assert_array_equal(network(netcl.zeros(2, device="cpu")).numpy(), np.full(2, 56, np.float32))
