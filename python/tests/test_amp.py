"""Mixed precision from Python: scopes, layers, loss scaling, compiled and captured steps, 16-bit inference."""

import gzip
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import IndexTensor, Tensor, amp, manual_seed, nn, optim
from netcl.amp import GradScaler, autocast, autocast_dtype, autocast_policies
from netcl.core.device import manager
from netcl.nn import functional as F
from netcl.runtime import capture

DTYPES = ["float16", "bfloat16"]


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def tensor(queue, shape, seed=0, dtype="float32", grad=False):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    made = Tensor.from_host(queue, values, dtype)
    return ag.tensor(made) if grad else made


def network(queue):
    manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(queue, 1, 4, 3, padding=1), nn.BatchNorm2d(queue, 4), nn.ReLU(), nn.Flatten(), nn.Linear(queue, 64, 3)
    )


def batch(queue, i):
    labels = IndexTensor.from_host(queue, (np.arange(6) + i) % 3)
    return tensor(queue, (6, 1, 4, 4), seed=i), labels


def test_the_scope():
    assert autocast_dtype() is None
    with autocast():
        assert autocast_dtype() == "float16"
        with autocast(enabled=False):
            assert autocast_dtype() is None
        with autocast("cuda", dtype="bfloat16"):
            assert autocast_dtype() == "bfloat16"
            seen = []
            other = threading.Thread(target=lambda: seen.append(autocast_dtype()))
            other.start()
            other.join()
            assert seen == [None]
        assert autocast_dtype() == "float16"
    assert autocast_dtype() is None
    with pytest.raises(KeyError), autocast(dtype="half"):
        assert autocast_dtype() == "float16"
        raise KeyError
    assert autocast_dtype() is None


def test_the_decorator():
    @autocast(dtype="bfloat16")
    def inside(x):
        """Says something."""
        return autocast_dtype(), x

    assert inside(3) == ("bfloat16", 3) and inside.__doc__ == "Says something."
    assert autocast_dtype() is None
    assert autocast(False)(autocast_dtype)() is None


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"autocast\(dtype='float16'\)"):
        autocast("float16")
    with pytest.raises(ValueError, match="no device type 'gpu0'"):
        autocast("gpu0")
    with pytest.raises(ValueError, match="use float16 or bfloat16"), autocast(dtype="float32"):
        pass
    assert autocast_dtype() is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_have_the_dtypes_of_the_table(dtype):
    queue = manager.default("cpu").queue
    x, weight = tensor(queue, (3, 4)), tensor(queue, (4, 4), grad=True)
    narrow = x.to(dtype=dtype)
    images, filters = tensor(queue, (2, 3, 5, 5)), tensor(queue, (2, 3, 3, 3), grad=True)
    heads = tensor(queue, (1, 2, 3, 4))
    labels = IndexTensor.from_host(queue, np.array([0, 1, 2]))
    results = {
        "matmul": lambda: x @ weight,
        "linear": lambda: ag.linear(x, weight),
        "einsum": lambda: ag.einsum("ij,kj->ik", x, weight),
        "conv2d": lambda: ag.conv2d(images, filters),
        "scaled_dot_product_attention": lambda: ag.scaled_dot_product_attention(heads, heads, heads),
        "sum": lambda: narrow.sum(),
        "mean": lambda: ag.mean(narrow),
        "softmax": lambda: ag.softmax(narrow),
        "exp": lambda: ag.exp(narrow),
        "cross_entropy": lambda: ag.cross_entropy(narrow, labels),
        "mse_loss": lambda: ag.mse_loss(narrow, x),
        "add": lambda: narrow + x,
        "cat": lambda: ag.cat([narrow, x]),
        "bias_add": lambda: ag.bias_add(narrow, weight[0]),
        "layer_norm": lambda: ag.layer_norm(narrow, 4, weight[0]),
    }
    wanted = {"16-bit": dtype, "float32": "float32", "widest input": "float32", "first input": dtype, "input's dtype": dtype}
    policies = autocast_policies()
    with autocast(dtype=dtype):
        for name, operation in results.items():
            assert operation().dtype == wanted[policies[name]], name
        assert ag.relu(narrow).dtype == dtype and ag.relu(x).dtype == "float32"
        assert (tensor(queue, (2, 4), dtype="float64") @ tensor(queue, (4, 2), dtype="float64")).dtype == "float64"
        narrow += x
        assert narrow.dtype == dtype
    # Without autocast the wider dtype wins.
    assert (narrow + x).dtype == "float32"


def test_the_book_has_the_table():
    page = Path(__file__).resolve().parents[2] / "docs" / "src" / "reference" / "amp.md"
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    found = {op: row[0] for row in rows if len(row) == 2 for op in re.findall("`([a-z0-9_]+)`", row[1])}
    assert found == autocast_policies()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_near_those_of_float32(queue, dtype):
    model, (x, y) = network(queue), batch(queue, 0)

    def gradients():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        found = [p.grad.to_host() for p in model.parameters()]
        assert all(grad.dtype == np.float32 for grad in found)
        for p in model.parameters():
            p.grad = None
        return loss.item(), found

    loss, plain = gradients()
    with autocast(dtype=dtype):
        narrow_loss, narrow = gradients()
        assert model(x).dtype == dtype
    bound = 0.01 if dtype == "float16" else 0.08
    assert abs(loss - narrow_loss) < bound
    for ours, theirs in zip(narrow, plain):
        np.testing.assert_allclose(ours, theirs, atol=bound)
    assert all(p.dtype == "float32" for p in model.parameters())


LAYERS = {
    "lstm": lambda q: (nn.LSTM(q, 4, 6, num_layers=2), (3, 2, 4)),
    "gru cell": lambda q: (nn.GRUCell(q, 4, 6), (2, 4)),
    "conv1d": lambda q: (nn.Conv1d(q, 4, 2, 3), (2, 4, 6)),
    "conv_transpose2d": lambda q: (nn.ConvTranspose2d(q, 2, 3, 2), (2, 2, 3, 3)),
    "attention": lambda q: (nn.TransformerEncoderLayer(q, 8, 2, 16), (2, 3, 8)),
    "prelu": lambda q: (nn.Sequential(nn.Linear(q, 4, 4), nn.PReLU(q)), (2, 4)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_train(name, dtype):
    layer, shape = LAYERS[name](manager.default("cpu").queue)
    layer.eval()
    x = tensor(manager.default("cpu").queue, shape)

    def run():
        result = layer(x)
        while isinstance(result, tuple):
            result = result[0]
        ag.sum(ag.square(result)).backward()
        found = [p.grad.to_host() for p in layer.parameters()]
        for p in layer.parameters():
            p.grad = None
        return result.dtype, found

    plain = run()[1]
    with autocast(dtype=dtype):
        result, narrow = run()
    assert result == ("float32" if name == "attention" else dtype)
    for ours, theirs in zip(narrow, plain):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=0.12 * max(1.0, np.abs(theirs).max()))


def test_a_function_of_ones_own_runs_in_the_dtypes_it_gets():
    queue = manager.default("cpu").queue

    class Product(ag.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return ag.matmul(grad, weight, transpose_b=True), ag.matmul(x, grad, transpose_a=True)

    x, weight = tensor(queue, (3, 4), grad=True), tensor(queue, (4, 2), grad=True)
    with autocast():
        y = Product.apply(x, weight)
        ag.sum(y).backward()
    assert y.dtype == x.grad.dtype == weight.grad.dtype == "float32"


def test_a_checkpoint_restores_the_scope():
    queue = manager.default("cpu").queue
    layer, x, seen = nn.Linear(queue, 4, 4), tensor(queue, (2, 4), grad=True), []

    def part(x):
        y = layer(x)
        seen.append(y.dtype)
        return y

    with autocast():
        loss = ag.sum(ag.checkpoint(part, x))
    loss.backward()
    assert seen == ["float16", "float16"]


def test_compiled_functions(queue):
    model, (x, _) = network(queue).eval(), batch(queue, 0)

    @ag.jit
    def outside(x):
        return ag.tanh(model(x))

    @ag.jit
    def inside(x):
        with autocast():
            return ag.tanh(model(x))

    assert outside(x).dtype == "float32"
    with autocast(), ag.no_grad():
        model(x)  # copies of weights that must not become a part of the plan
        expected = ag.tanh(model(x)).to_host()
        for _ in range(2):
            found = outside(x)
            assert found.dtype == "float16"
            np.testing.assert_allclose(found.to_host(), expected, atol=4e-3)
        for p in model.parameters():
            p *= 0.5
        changed = ag.tanh(model(x)).to_host()
        assert np.abs(changed - expected).max() > 0.01
        np.testing.assert_allclose(outside(x).to_host(), changed, atol=4e-3)
    assert outside(x).dtype == "float32"
    for _ in range(2):
        found = inside(x)
        assert found.dtype == "float16"
        np.testing.assert_allclose(found.to_host(), changed, atol=4e-3)
    ag.sum(inside(x)).backward()
    assert all(p.grad.dtype == "float32" for p in model.parameters())


def training(queue, dtype):
    model = network(queue)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scaler = GradScaler(init_scale=1024.0, growth_interval=3)

    def step(x, y, factor):
        with autocast(dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        scaler.scale_loss(loss * factor).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_device(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return model, optimizer, scaler, step


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_captured_step_trains_as_the_plain_one(queue, dtype):
    factors = [1.0, 1.0, np.inf, 1.0, 1.0, 1.0, 1.0]
    batches = [(*batch(queue, i), Tensor.from_host(queue, np.float32(f))) for i, f in enumerate(factors)]
    model, optimizer, scaler, step = training(queue, dtype)
    plain, scales = [], []
    for inputs in batches:
        before = [p.to_host().copy() for p in model.parameters()]
        plain.append(step(*inputs).item())
        same = all(np.array_equal(p.to_host(), b) for p, b in zip(model.parameters(), before))
        assert same == (len(plain) == 3), "the third step, and no other, is skipped"
        scales.append(scaler.get_scale())
    assert scales == [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0, 1024.0]
    assert optimizer.state_dict()["0.step"] == 6

    other, others_optimizer, others_scaler, other_step = training(queue, dtype)
    captured = capture(other_step)
    replayed = [captured(*inputs).item() for inputs in batches]
    assert replayed == plain and captured.recordings == 1
    for ours, theirs in zip(other.parameters(), model.parameters()):
        np.testing.assert_array_equal(ours.to_host(), theirs.to_host())
    assert others_scaler.state_dict() == scaler.state_dict()
    assert others_optimizer.state_dict()["0.step"] == 6


def test_captured_functions_are_kept_by_scope():
    queue = manager.default("cpu").queue
    layer, x = nn.Linear(queue, 4, 4), tensor(queue, (2, 4))
    step = capture(lambda x: layer(x))
    for _ in range(2):
        assert step(x).dtype == "float32"
        with autocast():
            assert step(x).dtype == "float16"
    assert step.recordings == 2


def test_the_scaler(queue):
    assert optim.AMPGradScaler is amp.GradScaler
    p = ag.tensor(Tensor.from_host(queue, np.array([1.0], np.float32)))
    optimizer = optim.SGD([p], lr=0.5)
    scaler = GradScaler(growth_interval=2)
    for _ in range(2):
        loss = ag.sum(p)
        assert scaler.scale(loss).item() == loss.item() * 65536
        scaler.scale_loss(loss).backward()
        norm = scaler.step(optimizer, [p])
        assert norm.item() == 1.0
        scaler.update()
        optimizer.zero_grad()
    assert p.item() == 0.0 and scaler.get_scale() == 131072.0
    first, second = scaler.scale([ag.sum(p), ag.sum(p)])
    (first + second).backward()
    scaler.unscale_grads(optimizer)
    assert p.grad.item() == 2.0
    with pytest.raises(RuntimeError, match="unscaled already"):
        scaler.unscale_(optimizer)
    scaler.update(new_scale=8.0)
    assert scaler.get_scale() == 8.0
    with pytest.raises(TypeError, match="a loss is a tensor"):
        scaler.scale(3.0)


def test_the_state_of_a_scaler():
    scaler = GradScaler(init_scale=4.0, growth_factor=3.0)
    state = scaler.state_dict()
    assert state == {
        "scale": 4.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 0,
    }
    other = GradScaler()
    # As PyTorch's scaler writes it: whole numbers where it counts.
    other.load_state_dict({**state, "growth_interval": 7, "_growth_tracker": 3})
    assert other.get_growth_interval() == 7 and other.get_growth_factor() == 3.0 and other.get_scale() == 4.0
    assert other.state_dict()["_growth_tracker"] == 3
    with pytest.raises(ValueError, match='no number "scale"'):
        other.load_state_dict({})
    assert repr(other) == "GradScaler(scale=4, growth_factor=3, backoff_factor=0.5, growth_interval=7)"
    other.set_growth_factor(4.0)
    other.set_backoff_factor(0.25)
    other.set_growth_interval(5)
    assert (other.get_growth_factor(), other.get_backoff_factor(), other.get_growth_interval()) == (4.0, 0.25, 5)
    with pytest.raises(ValueError, match="backoff_factor is 2"):
        GradScaler(backoff_factor=2.0)


def test_a_scaler_that_is_off():
    queue = manager.default("cpu").queue
    p = ag.tensor(Tensor.from_host(queue, np.array([1.0], np.float32)))
    optimizer, scaler = optim.SGD([p], lr=0.5), GradScaler(enabled=False)
    scaler.scale(ag.sum(p)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert p.item() == 0.5 and scaler.get_scale() == 1.0 and scaler.state_dict() == {} and not scaler.is_enabled()


@pytest.mark.parametrize("dtype", DTYPES)
def test_inference_in_16_bits(queue, dtype):
    model = network(queue).eval()
    x, _ = batch(queue, 0)
    expected = model(x).to_host()
    model.to(dtype=dtype)
    assert all(t.dtype == dtype for t in model.parameters())
    found = model(x.to(dtype=dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found.to_host().astype(np.float32), expected, atol=0.05)
    model.float()
    assert model(x).dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_small_gpt_in_16_bits(dtype):
    queue = manager.default("cpu").queue
    manual_seed(1)
    model = nn.GPT(queue, vocab_size=17, block_size=8, n_layer=2, n_head=2, n_embd=16).eval()
    tokens = IndexTensor.from_host(queue, np.arange(12).reshape(2, 6) % 17)
    with ag.no_grad():
        expected = model(tokens).to_host()
        with autocast(dtype=dtype):
            assert model(tokens).dtype == dtype
        narrow = model.half() if dtype == "float16" else model.bfloat16()
        found = narrow(tokens)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.to_host().astype(np.float32), expected, atol=0.05)


def test_the_example_trains_in_every_dtype(tmp_path, monkeypatch):
    """On images whose class is the place of a bright row."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples" / "python"))
    import mixed_precision

    drawn = np.random.default_rng(0)
    for part, count in (("train", 1280), ("t10k", 100)):
        labels = drawn.integers(0, 10, count).astype(np.uint8)
        images = drawn.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        images[np.arange(count), labels * 2 + 4] = 250
        for name, header, data in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            (tmp_path / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(header) + data.tobytes()))
    monkeypatch.setattr(mixed_precision, "FOLDER", tmp_path)
    found = mixed_precision.main("cpu", 2)
    assert list(found) == ["float32", "float16", "bfloat16"] and min(found.values()) > 0.9, found


def test_a_scaler_takes_settings_where_pytorch_has_them():
    for scaler in (
        amp.GradScaler("cuda", init_scale=1024.0),
        amp.GradScaler("cuda", 1024.0),
        amp.GradScaler(1024.0, enabled=True),
    ):
        assert scaler.get_scale() == 1024.0
    for wrong in (
        lambda: amp.GradScaler(2.0, init_scale=4.0),
        lambda: amp.GradScaler(scale=4.0),
        lambda: amp.GradScaler(*range(6)),
    ):
        with pytest.raises(TypeError, match="GradScaler"):
            wrong()
