"""The module system: hooks, freezing, moving, summaries, containers, configurations, initialisers, folding."""

import copy
import json
import pickle

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import functional as F, init


@pytest.fixture
def queue():
    return manager.default("cpu").queue


def drawn(queue, *shape, seed=0, dtype="float32") -> Tensor:
    return Tensor.from_host(queue, np.random.default_rng(seed).normal(size=shape), dtype)


class Branches(nn.Module):
    """Three branches, two of which share their weights."""

    def __init__(self, queue):
        self.shared = nn.Linear(queue, 4, 3)
        self.branches = nn.ModuleDict({"left": self.shared, "right": self.shared, "own": nn.Linear(queue, 4, 3)})
        self.head = nn.Linear(queue, 9, 2)

    def forward(self, x):
        parts = [F.relu(self.branches["left"](x)), F.tanh(self.branches["right"](-x)), self.branches["own"](x)]
        return self.head(F.cat(parts, 1))


def test_shared_weights_are_one_parameter_with_several_names(queue):
    model = Branches(queue)
    assert [name for name, _ in model.named_parameters()] == [
        *("shared.weight", "shared.bias", "branches.own.weight", "branches.own.bias", "head.weight", "head.bias")
    ]
    assert model.num_parameters() == 15 + 15 + 20
    state = model.state_dict()
    assert np.array_equal(state["shared.weight"], state["branches.right.weight"]) and len(state) == 10
    other = Branches(queue)
    other.load_state_dict(state)
    x = drawn(queue, 5, 4)
    np.testing.assert_array_equal(other(x).to_host(), model(x).to_host())
    # The gradient of what is shared is the sum over its uses.
    model(x).sum().backward()
    total = model.shared.weight.grad.to_host().copy()
    model.zero_grad()
    left, right = copy.deepcopy(model.shared), copy.deepcopy(model.shared)
    model.branches.update({"left": left, "right": right})
    model(x).sum().backward()
    np.testing.assert_allclose(left.weight.grad.to_host() + right.weight.grad.to_host(), total, rtol=1e-5, atol=1e-6)
    assert model.shared.weight.grad is None


def test_a_list_of_modules_is_warned_of(queue, recwarn):
    model = nn.Module()
    model.sizes, model.table, model.apart = [1, 2], {}, (nn.ReLU(),)
    model.layers = nn.ModuleList([nn.ReLU()])
    assert not recwarn.list
    with pytest.warns(UserWarning, match="Module.layers is a list of modules, whose parameters are not found .* nn.ModuleList") as seen:
        model.layers = [nn.Linear(queue, 1, 1)]
    assert seen[0].filename == __file__ and model.parameters() == []
    with pytest.warns(UserWarning, match="nn.ModuleDict"):
        model.named = {"a": nn.ReLU()}


# ---- hooks -----------------------------------------------------------------------------------------------------------


def test_forward_hooks_see_and_replace(queue):
    layer = nn.Linear(queue, 2, 2)
    x = drawn(queue, 3, 2)
    plain = layer(x).to_host().copy()
    seen = []
    before = layer.register_forward_pre_hook(lambda module, args: seen.append(("before", module, args)))
    double = layer.register_forward_pre_hook(lambda module, args: args[0] * 2.0)
    after = layer.register_forward_hook(lambda module, args, out: seen.append(("after", args, out)))
    negate = layer.register_forward_hook(lambda module, args, out: -out)
    changed = layer(x).to_host()
    bias = layer.bias.to_host()
    np.testing.assert_allclose(changed, -(2 * (plain - bias) + bias), rtol=1e-5, atol=1e-6)
    assert seen[0][:2] == ("before", layer) and seen[0][2][0] is x and seen[1][0] == "after"
    # Hooks are part of a copy, and leave with their handles; a second removal does nothing.
    assert len(copy.deepcopy(layer)._hooks.after) == 2
    for handle in (before, double, after, negate, negate):
        handle.remove()
    np.testing.assert_array_equal(layer(x).to_host(), plain)
    with layer.register_forward_hook(lambda *_: 7):
        assert layer(x) == 7
    np.testing.assert_array_equal(layer(x).to_host(), plain)
    with pytest.raises(TypeError, match="a hook is a function, not int"):
        layer.register_forward_hook(3)


def test_backward_hooks_see_this_modules_share(queue):
    layer = nn.Linear(queue, 2, 3)
    x = drawn(queue, 4, 2).requires_grad_()
    seen = []
    handle = layer.register_full_backward_hook(lambda module, into, out: seen.append((into, out)))
    # x is used outside as well: that part is not the layer's.
    (layer(x).sum() + (x * 5.0).sum()).backward()
    ((into,), (out,)) = seen[0]
    np.testing.assert_array_equal(out.to_host(), np.ones((4, 3)))
    share = np.ones((4, 3)) @ layer.weight.to_host()
    np.testing.assert_allclose(into.to_host(), share, rtol=1e-6)
    np.testing.assert_allclose(x.grad.to_host(), share + 5, rtol=1e-6)
    handle.remove()
    with layer.register_full_backward_hook(lambda module, into, out: (into[0] * 0.0,)):
        x.grad = None
        layer(x).sum().backward()
        assert not x.grad.to_host().any()
    assert len(seen) == 1
    # Where no input has a gradient the outputs' is all there is.
    layer.register_full_backward_hook(lambda module, into, out: seen.append((into, out)))
    layer(drawn(queue, 1, 2)).sum().backward()
    assert seen[1][0] == (None,) and seen[1][1][0].shape == (1, 3)
    with netcl.autograd.no_grad():
        layer(x)
    assert len(seen) == 2


# ---- modes and places --------------------------------------------------------------------------------------------------


def test_freezing(queue):
    model = nn.Sequential(nn.Linear(queue, 2, 3), nn.Linear(queue, 3, 1))
    assert model[0].freeze() is model[0]
    model(drawn(queue, 2, 2)).sum().backward()
    assert model[0].weight.grad is None and model[1].weight.grad is not None
    assert model.summary().endswith("13 parameters, 4 of them trained")
    model.unfreeze()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_moving_by_name(queue):
    layer = nn.BatchNorm2d(queue, 3)
    # The number of batches stays a whole number.
    assert layer.to("float64") is layer
    assert [t.dtype for t in [*layer.parameters(), *layer.buffers()]] == ["float64"] * 4 + ["int64"]
    last = find_device_selectors()[-1]
    layer.to(last, "float32")
    assert layer.weight.backend == ("cpu" if last == "cpu" else "cl") and layer.weight.dtype == "float32"
    layer.to(device=manager.default("cpu"))
    assert layer.running_mean.backend == "cpu"
    layer.to("cpu").to(queue)
    for wrong in ({"queue": queue, "device": "cpu"}, {"queue": "float64", "dtype": "float32"}):
        with pytest.raises(TypeError, match="not two"):
            layer.to(**wrong)
    with pytest.raises(ValueError, match="there is no device '99'|99"):
        layer.to("99")


def test_devices_of_constructors(queue):
    for made in (
        nn.Conv2d(queue, 3, 4, 3),
        nn.Conv2d(3, 4, 3, queue=queue),
        nn.Conv2d(3, 4, kernel_size=3, device="cpu"),
        nn.LayerNorm((4,), queue=queue),
        nn.LayerNorm(queue, [4]),
        nn.ResNet(nn.resnet.BasicBlock, [1, 1, 1, 1], base_channels=2, device="cpu"),
    ):
        assert made.parameters()[0].backend == "cpu"
    assert nn.LSTM(2, 3, queue=queue, dtype="float64").weight_hh_l0.dtype == "float64"
    with pytest.raises(TypeError, match="a queue or a device, not both"):
        nn.Linear(2, 3, queue=queue, device="cpu")


def test_summary(queue):
    model = nn.Sequential(nn.Conv2d(queue, 1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(queue, 8, 3))
    model[2].eval()
    assert model.summary((5, 1, 4, 4)).splitlines() == [
        "module  kind        output        parameters",
        "--------------------------------------------",
        "(top)   Sequential  (5, 3)",
        "  0     Conv2d      (5, 2, 2, 2)          20",
        "  1     Flatten     (5, 8)",
        "  2     Dropout     (5, 8)",
        "  3     Linear      (5, 3)                27",
        "--------------------------------------------",
        "47 parameters, 47 of them trained",
    ]
    # Modes and hooks are as before.
    assert [part.training for part in model] == [True, True, False, True] and not model[0]._hooks.after
    assert "output" not in model.summary()
    lstm = nn.LSTM(queue, 2, 3)
    assert "(4, 1, 3), (1, 1, 3), (1, 1, 3)" in lstm.summary((4, 1, 2))


# ---- containers --------------------------------------------------------------------------------------------------------


def test_containers(queue):
    model = nn.Sequential({"body": nn.Linear(queue, 2, 3), "act": nn.ReLU()})
    assert [name for name, _ in model.named_parameters()] == ["body.weight", "body.bias"] and model.act is model[1]
    stack = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    stack.insert(1, nn.GELU())
    stack.extend([nn.SiLU()])
    stack[0] = nn.Identity()
    assert [type(part).__name__ for part in stack] == ["Identity", "GELU", "Tanh", "SiLU"] and len(stack[1:3]) == 2
    del stack[1]
    assert list(stack._modules) == ["0", "1", "2"]
    table = nn.ModuleDict({"items": nn.ReLU()})
    table["b"] = nn.Linear(queue, 1, 1)
    assert "items" in table and table.keys() == ["items", "b"] and len(table.values()) == 2 and list(table) == ["items", "b"]
    assert dict(table.items())["b"] is table["b"] and [name for name, _ in table.named_parameters()] == ["b.weight", "b.bias"]
    del table["items"]
    with pytest.raises(KeyError, match="there is no module 'c'; there are 'b'"):
        table["c"]
    with pytest.raises(TypeError, match="ModuleDict takes modules, not int"):
        table["c"] = 1
    assert model.get_submodule("body") is model[0]
    with pytest.raises(AttributeError, match="has no module 'body.x': Linear has none"):
        model.get_submodule("body.x")


def test_containers_of_parameters(queue):
    scales = nn.ParameterList([nn.Parameter(np.ones(2, np.float32), queue=queue), Tensor.from_host(queue, [2.0, 3.0])])
    first = scales[0]
    scales.append(np.zeros((1, 2), np.float32))
    scales += [first]
    assert [name for name, _ in scales.named_parameters()] == ["0", "1", "2"] and len(scales) == 4 and scales[3] is first
    assert all(isinstance(scale, Tensor) and scale.requires_grad and scale.is_leaf for scale in scales)
    assert isinstance(scales[1:], nn.ParameterList) and scales[1:][0] is scales[1]
    assert repr(scales) == "ParameterList(0: float32(2,), 1: float32(2,), 2: float32(1, 2))  # 6 parameters"
    scales[1] = first
    del scales[2:]
    assert list(scales.state_dict()) == ["0", "1"] and scales.num_parameters() == 2

    tables = nn.ParameterDict({"left": first})
    tables["items"] = Tensor.from_host(queue, [1.0])
    assert tables["left"] is first and tables.keys() == ["left", "items"] and "items" in tables and tables.get("x") is None
    with pytest.raises(KeyError, match="there is no parameter 'x'; there are 'left', 'items'"):
        tables["x"]
    with pytest.raises(KeyError, match="cannot name a parameter"):
        tables["a.b"] = first
    assert tables.pop("items").to_host() == [1.0] and dict(tables.items()) == {"left": first}

    class Model(nn.Module):
        def __init__(self):
            self.scales, self.tables = scales, nn.ParameterDict({"a": np.full(2, 3.0, np.float32)})

        def forward(self, x):
            return x * self.scales[0] * self.tables["a"]

    model = Model().to(queue)
    model(Tensor.from_host(queue, [1.0, 2.0])).sum().backward()
    np.testing.assert_array_equal(model.tables["a"].grad.to_host(), [1, 2])
    twin = copy.deepcopy(model)
    assert list(twin.state_dict()) == ["scales.0", "scales.1", "tables.a"] and twin.scales[0] is not first
    assert pickle.loads(pickle.dumps(twin.tables))["a"].requires_grad


def test_residual(queue):
    inner, around = nn.Linear(queue, 3, 2), nn.Linear(queue, 3, 2)
    x = drawn(queue, 4, 3)
    block = nn.Residual(inner, shortcut=around, activation=nn.ReLU())
    np.testing.assert_array_equal(block(x).to_host(), np.maximum(inner(x).to_host() + around(x).to_host(), 0))
    same = nn.Residual(nn.Linear(queue, 3, 3))
    np.testing.assert_array_equal(same(x).to_host(), same.inner(x).to_host() + x.to_host())
    with pytest.raises(ValueError, match=r"gives shape \(4, 2\), the shortcut \(4, 3\); give a shortcut="):
        nn.Residual(inner)(x)
    with pytest.raises(TypeError, match="Residual takes modules, not function"):
        nn.Residual(lambda x: x)


# ---- configurations ----------------------------------------------------------------------------------------------------


def every_layer(queue):
    """One layer of each kind that a configuration can name, with unusual settings."""
    return [
        nn.Linear(queue, 3, 4, bias=False),
        nn.Conv1d(queue, 2, 4, 3, pad=(2, 0)),
        nn.Conv2d(queue, 2, 4, (3, 1), pad=1, groups=2),
        nn.DepthwiseConv2d(queue, 3, 3, pad=1),
        nn.ConvTranspose1d(queue, 2, 4, 3, 2),
        nn.ConvTranspose2d(queue, 2, 4, 3, 2, 1, 1),
        nn.BatchNorm1d(queue, 3, momentum=None),
        nn.BatchNorm2d(queue, 3, eps=1e-3),
        nn.InstanceNorm1d(queue, 3),
        nn.InstanceNorm2d(queue, 3, affine=True, track_running_stats=True),
        nn.LayerNorm(queue, (4, 4), bias=False),
        nn.GroupNorm(queue, 2, 4),
        nn.RMSNorm(queue, 4),
        nn.Embedding(queue, 5, 3, padding_idx=-1),
        nn.EmbeddingBag(queue, 5, 3, mode="max", padding_idx=-1),
        nn.Bilinear(queue, 2, 3, 4),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool1d(2),
        nn.AvgPool2d((2, 1)),
        nn.AvgPool1d(3),
        nn.AdaptiveAvgPool2d((2, None)),
        nn.AdaptiveAvgPool1d(2),
        nn.AdaptiveMaxPool2d(1),
        nn.AdaptiveMaxPool1d(1),
        nn.GlobalAvgPool2d(),
        nn.ZeroPad1d(1),
        nn.ZeroPad2d((1, 2, 3, 4)),
        nn.ConstantPad1d(1, 2.0),
        nn.ConstantPad2d(1, 2.0),
        nn.ReflectionPad1d(1),
        nn.ReflectionPad2d(1),
        nn.ReplicationPad1d(1),
        nn.ReplicationPad2d((1, 1, 2, 2)),
        nn.CircularPad1d(1),
        nn.CircularPad2d((1, 0, 0, 1)),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        nn.Unfold((2, 3), padding=1),
        nn.Fold(4, 2, stride=2),
        nn.Flatten(2),
        nn.Unflatten(1, (2, 2)),
        nn.Identity(),
        nn.Concat(-1),
        nn.Upsample(scale_factor=2),
        nn.Dropout(0.1, seed=3),
        nn.Dropout1d(0.2),
        nn.Dropout2d(0.2),
        nn.PReLU(queue, 3),
        nn.LeakyReLU(0.3),
        nn.ELU(0.5),
        nn.CELU(0.5),
        nn.Hardshrink(0.25),
        nn.Softshrink(0.25),
        nn.Tanhshrink(),
        nn.Threshold(0.5, -1.0),
        nn.Softmin(0),
        nn.Softmax2d(),
        nn.GLU(1),
        nn.GELU("tanh"),
        nn.Softplus(2.0),
        nn.HardTanh(-2.0, 2.0),
        nn.Softmax(0),
        nn.LogSoftmax(0),
        nn.MSELoss("sum"),
        nn.L1Loss(),
        nn.HuberLoss(delta=0.5),
        nn.SmoothL1Loss(beta=0.5),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.NLLLoss(),
        nn.BCELoss(),
        nn.BCEWithLogitsLoss(),
        nn.KLDivLoss("batchmean"),
        nn.CosineEmbeddingLoss(0.1),
        nn.TripletMarginLoss(0.5),
        nn.MarginRankingLoss(0.5),
        nn.HingeEmbeddingLoss(0.5),
        nn.SoftMarginLoss(),
        nn.MultiMarginLoss(2),
        nn.MultiLabelMarginLoss(),
        nn.MultiLabelSoftMarginLoss(),
        nn.PoissonNLLLoss(full=True),
        nn.GaussianNLLLoss(full=True),
        nn.CTCLoss(2, zero_infinity=True),
        nn.MultiheadAttention(queue, 4, 2, bias=False),
        nn.TransformerDecoderLayer(queue, 4, 2, 8, activation="gelu"),
        nn.TransformerEncoderLayer(queue, 4, 2, 8, norm_first=True),
        nn.LSTM(queue, 2, 3, 2, bidirectional=True),
        nn.GRU(queue, 2, 3, bias=False),
        nn.RNN(queue, 2, 3, nonlinearity="relu"),
        nn.LSTMCell(queue, 2, 3),
        nn.GRUCell(queue, 2, 3, bias=False),
        nn.RNNCell(queue, 2, 3, nonlinearity="relu"),
        nn.Residual(nn.Tanh(), activation=nn.ReLU()),
        nn.ReLU(),
        nn.ReLU6(),
        nn.SELU(),
        nn.SiLU(),
        nn.Mish(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.LogSigmoid(),
        nn.Softsign(),
        nn.HardSigmoid(),
        nn.HardSwish(),
        nn.Sequential(nn.ReLU(), nn.Residual(nn.Sequential(nn.ReLU(), nn.Tanh()))),
        nn.GPT(queue, 5, 4, 1, 2, 4),
        nn.TransformerBlock(queue, 4, 2, 6, activation="relu"),
        nn.CausalSelfAttention(queue, 4, 2, causal=False),
        nn.PositionalEmbedding(queue, 5, 4),
        nn.SinusoidalEmbedding(queue, 5, 4),
        nn.SwiGLU(queue, 4),
        nn.QuantizedLinear(queue, 40, 3, bits=4, group=32, bias=False),
        nn.RotaryAttention(queue, 4, 2, qk_norm=False),
        nn.DecoderBlock(queue, 4, 2, hidden=6),
        nn.ChannelShuffle(2),
        nn.LocalResponseNorm(2, k=2.0),
        nn.CosineSimilarity(0),
        nn.PairwiseDistance(1.0, keepdim=True),
        nn.UpsamplingNearest2d(scale_factor=2),
        nn.UpsamplingBilinear2d((3, 4)),
        nn.AlphaDropout(0.3),
        nn.FeatureAlphaDropout(0.3),
        nn.RReLU(0.1, 0.3),
        nn.LPPool1d(2.0, 3),
        nn.LPPool2d(2.0, 2),
    ]


def test_every_layer_becomes_a_configuration_and_comes_back(queue):
    model = nn.Sequential(*every_layer(queue))
    config = nn.to_config(model)
    again = nn.build_sequential(queue, json.loads(json.dumps(config)))
    assert repr(again) == repr(model) and nn.to_config(again) == config
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}
    again.load_state_dict(model.state_dict())
    described = {entry["type"] for entry in config}
    assert {made.__name__ for made in nn.get_registry().values()} <= described | {"TransformerEncoder", "Transformer"}
    for layer in model:
        assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


def test_configurations_that_cannot_be_built_say_where(queue):
    for match, config in {
        r"config is a list of layers, not dict": {"type": "ReLU"},
        r"config\[0\] is a dictionary with a \"type\"": ["ReLU"],
        r"config\[1\]: there is no layer type 'Relu'; there are .*ReLU": [{"type": "ReLU"}, {"type": "Relu"}],
        r"config\[0\]: Linear does not take 'inputs' and lacks 'in_features'; its arguments are in_features, out_features, bias": [
            {"type": "Linear", "args": {"inputs": 3, "out_features": 3}}
        ],
        r"config\[0\].layers\[1\]: Conv2d: kernel_size is 0; it must be at least 1": [
            {"type": "Sequential", "args": {"layers": [{"type": "ReLU"}, {"type": "Conv2d", "args": {
                "in_channels": 1, "out_channels": 1, "kernel_size": 0}}]}}
        ],
        r"\"args\" is a dictionary": [{"type": "Linear", "args": [1, 2]}],
        r"has 'in_features'; arguments of the layer belong into \"args\"": [{"type": "Linear", "in_features": 3}],
        r"config\[0\]: Residual lacks 'inner'": [{"type": "Residual", "args": {}}],
        r"config\[0\]: Sequential lacks 'layers'": [{"type": "Sequential"}],
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=match):
            nn.build_sequential(queue, config)
    with pytest.raises(TypeError, match="to_config describes a Sequential, not a ReLU"):
        nn.to_config(nn.ReLU())

    class Scale(nn.Module):
        def __init__(self, factor, queue=None):
            self.factor, self.place = factor, queue

    with pytest.raises(ValueError, match="a Scale cannot be described; make its type known with register_layer"):
        nn.to_config(nn.Sequential(Scale(2)))
    try:
        describe = lambda layer: {"factor": layer.factor} if isinstance(layer, Scale) else None  # noqa: E731
        nn.register_layer("Scale", Scale, to_config=describe, required_args=["factor"], queue_required=True)
        config = nn.to_config(nn.Sequential(Scale(2), nn.ReLU()))
        assert config[0] == {"type": "Scale", "args": {"factor": 2}}
        assert nn.build_sequential(queue, config)[0].place is queue
        with pytest.raises(ValueError, match=r"config\[0\] \(Scale\) lacks 'factor'"):
            nn.build_sequential(queue, [{"type": "Scale"}])
    finally:
        del nn.factory._REGISTERED["Scale"]


def test_configurations_from_files(queue, tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(nn.example_mlp_config(4, 8, 3)))
    model = nn.build_sequential_from_json(queue, tmp_path / "model.json")
    assert model(drawn(queue, 2, 4)).shape == (2, 3)
    with netcl.device("cpu"):
        assert nn.build_sequential(nn.example_mlp_config(4)).num_parameters() == 4 * 128 + 128 + 128 * 10 + 10


# ---- first values ------------------------------------------------------------------------------------------------------


def test_orthogonal_and_truncated_starts(queue):
    for shape, gain in (((6, 4), 1.0), ((4, 6), 2.0), ((4, 2, 3, 1), 1.0)):
        weight = nn.Parameter(np.zeros(shape), queue=queue)
        assert init.orthogonal_(weight, gain, seed=3) is weight
        rows = weight.to_host().reshape(shape[0], -1).astype(np.float64)
        product = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
        np.testing.assert_allclose(product, gain**2 * np.eye(len(product)), atol=1e-5)
    first = weight.to_host().copy()
    assert np.array_equal(init.orthogonal_(weight, seed=3).to_host(), first)
    assert not np.array_equal(init.orthogonal_(weight, seed=4).to_host(), first)
    weight = nn.Parameter(np.zeros((200, 300)), queue=queue)
    values = init.trunc_normal_(weight, std=0.5, a=-1.0, b=0.5, seed=1).to_host()
    assert values.min() >= -1 and values.max() <= 0.5 and values.max() > 0.49
    # The mean and deviation of a normal distribution cut at -2 and 1 deviations.
    assert values.mean() == pytest.approx(0.5 * -0.229637, abs=5e-3) and values.std() == pytest.approx(0.5 * 0.7215, rel=2e-2)
    # Far in a tail as well, where probabilities are too close to 1 to be told apart.
    tail = init.trunc_normal_(weight, a=9.0, b=10.0, seed=1).to_host()
    assert tail.min() >= 9 and tail.mean() == pytest.approx(9.1085, abs=5e-3)
    netcl.manual_seed(5)
    once = init.trunc_normal_(weight).to_host().copy()
    netcl.manual_seed(5)
    assert np.array_equal(init.trunc_normal_(weight).to_host(), once)
    with pytest.raises(ValueError, match="two axes"):
        init.orthogonal_(nn.Parameter(np.zeros(3)))
    with pytest.raises(ValueError, match="bounds in order"):
        init.trunc_normal_(weight, a=2.0, b=1.0)
    with pytest.raises(ValueError, match="too far from the mean"):
        init.trunc_normal_(weight, a=50.0, b=51.0)


# ---- folding -----------------------------------------------------------------------------------------------------------


def settled(model, *shape):
    """A model whose norms have seen batches and have weights of their own, in inference."""
    for seed in range(3):
        model(drawn(model.parameters()[0].queue, *shape, seed=seed))
    for i, module in enumerate(model.modules()):
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.weight is not None:
            init.uniform_(module.weight, 0.5, 1.5, seed=i)
            init.uniform_(module.bias, -0.5, 0.5, seed=i)
    return model.eval()


@pytest.mark.parametrize("bias", [True, False])
def test_folding_keeps_the_results(queue, bias):
    model = nn.Sequential(
        nn.Conv2d(queue, 3, 4, 3, bias=bias),
        nn.BatchNorm2d(queue, 4),
        nn.ReLU(),
        nn.ConvTranspose2d(queue, 4, 5, 2, bias=bias),
        nn.BatchNorm2d(queue, 5, affine=False),
        nn.Flatten(),
        nn.Linear(queue, 5 * 25, 6, bias=bias),
        nn.BatchNorm1d(queue, 6),
    )
    x = drawn(queue, 2, 3, 6, 6, seed=9)
    before = settled(model, 8, 3, 6, 6)(x).to_host().copy()
    fused = nn.fuse_conv_bn(model)
    assert [type(part).__name__ for part in fused if isinstance(part, (nn.BatchNorm2d, nn.BatchNorm1d))] == []
    np.testing.assert_allclose(fused(x).to_host(), before, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model(x).to_host(), before)
    alone = nn.fuse_conv_bn(model[0], model[1])
    np.testing.assert_allclose(alone(x).to_host(), model[:2](x).to_host(), rtol=1e-4, atol=1e-5)
    assert alone.bias is not None and (model[0].bias is not None) == bias


def test_folding_a_resnet(queue):
    model = settled(nn.ResNet18(queue, base_channels=4, stem="imagenet"), 2, 3, 64, 64).freeze()
    x = drawn(queue, 2, 3, 64, 64, seed=9)
    fused = nn.fuse_conv_bn(model)
    # Frozen parameters are parameters still: those of 20 convolutions, all with a bias now, and of the head.
    assert len(fused.parameters()) == 2 * 20 + 2 and not any(parameter.requires_grad for parameter in fused.parameters())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in fused.modules())
    np.testing.assert_allclose(fused(x).to_host(), model(x).to_host(), rtol=1e-3, atol=1e-4)


def test_what_is_not_folded(queue):
    conv, norm = nn.Conv2d(queue, 2, 2, 1), nn.BatchNorm2d(queue, 2)
    model = nn.Sequential(conv, norm, conv)
    with pytest.raises(ValueError, match=r"is in training mode; call eval\(\) first"):
        nn.fuse_conv_bn(model)
    # The convolution is used again without the norm.
    assert isinstance(nn.fuse_conv_bn(model.eval())[1], nn.BatchNorm2d)
    with pytest.raises(TypeError, match="a BatchNorm1d cannot be folded into a Conv2d"):
        nn.fuse_conv_bn(conv, nn.BatchNorm1d(queue, 2).eval())


def test_batch_norm_remembers_and_forgets(queue):
    norm = nn.BatchNorm2d(queue, 2)
    norm(drawn(queue, 4, 2, 3, 3))
    state = norm.state_dict()
    assert state["num_batches_tracked"] == 1 and state["num_batches_tracked"].dtype == np.int64
    norm.eval()(drawn(queue, 4, 2, 3, 3))
    assert int(norm.num_batches_tracked) == 1
    norm.reset_running_stats()
    assert int(norm.num_batches_tracked) == 0 and not norm.running_mean.to_host().any() and (norm.running_var.to_host() == 1).all()
    # Files without the counter load, and its value is kept.
    del state["num_batches_tracked"]
    assert norm.load_state_dict(state) == ([], []) and int(norm.num_batches_tracked) == 0
    assert norm.load_state_dict({**state, "num_batches_tracked": np.int64(7)}) == ([], [])
    assert int(norm.num_batches_tracked) == 7 and int(copy.deepcopy(norm).num_batches_tracked) == 7
