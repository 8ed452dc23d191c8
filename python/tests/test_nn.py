"""Modules, layers, initialisers and optimizers."""

import copy
import pickle

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
from netcl import autograd as ag, nn
from netcl.core.device import manager
from netcl.core.tensor import Tensor
from netcl.nn import functional as F, init, layers
from netcl.nn.activation import Activation
from netcl.nn.module import Module
from netcl.optim import SGD

devices = pytest.mark.parametrize("selector", find_device_selectors())


@pytest.fixture
def queue():
    return manager.default("cpu").queue


class Block(Module):
    """Every kind of member, without a call of super().__init__()."""

    def __init__(self, queue):
        self.scale = nn.Parameter(np.full(3, 2.0), queue=queue)
        self.inner = nn.Linear(queue, 3, 3, bias=False)
        self.again = self.inner
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(queue, 3, 2))
        self.register_buffer("seen", Tensor.from_host(queue, [1.0]))
        self.register_buffer("scratch", Tensor.from_host(queue, [1.0]), persistent=False)
        self.constant = Tensor.from_host(queue, [1.0])

    def forward(self, x):
        self.last = self.inner(x) * self.scale
        return self.body(self.last)


def test_attributes_become_members(queue):
    block = Block(queue)
    assert [name for name, _ in block.named_parameters()] == ["scale", "inner.weight", "body.1.weight", "body.1.bias"]
    assert [name for name, _ in block.named_buffers()] == ["seen", "scratch"]
    assert [name for name, _ in block.named_modules()] == ["", "inner", "body", "body.0", "body.1"]
    assert block.num_parameters() == 3 + 9 + 6 + 2
    # A result has requires_grad as well, but is no parameter.
    block(Tensor.from_host(queue, np.ones((1, 3))))
    assert block.last.requires_grad and len(block.parameters()) == 4
    # Replaced, removed, turned into something else.
    block.scale = nn.Parameter(np.zeros(1))
    assert block.parameters()[0].shape == (1,)
    block.scale = "not a tensor"
    assert len(block.parameters()) == 3 and block.scale == "not a tensor"
    del block.again, block.inner
    assert len(block.parameters()) == 2
    block.body = None
    assert block.parameters() == [] and block.body is None
    with pytest.raises(AttributeError, match="Block has no attribute 'inner'"):
        _ = block.inner
    with pytest.raises(KeyError, match="already"):
        block.register_buffer("seen", None)
    with pytest.raises(KeyError, match="dot"):
        block.register_parameter("a.b", None)
    with pytest.raises(NotImplementedError, match="Module has no forward"):
        Module()(1)


def test_printing(queue):
    assert repr(nn.Sequential(nn.Linear(queue, 2, 32), nn.Sequential(nn.ReLU(), nn.LeakyReLU(0.5)), nn.Flatten())) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=32, bias=True)  # 96 parameters\n"
        "  (1): Sequential(\n"
        "    (0): ReLU()\n"
        "    (1): LeakyReLU(negative_slope=0.5)\n"
        "  )\n"
        "  (2): Flatten(start_dim=1, end_dim=-1)\n"
        ")  # 96 parameters"
    )


def test_modes_freezing_and_gradients(queue):
    block = Block(queue)
    assert all(module.training for module in block.modules())
    assert block.eval() is block and not any(module.training for module in block.modules())
    block.train()
    x = Tensor.from_host(queue, np.ones((2, 3)))
    F.sum(block(x)).backward()
    assert all(parameter.grad is not None for parameter in block.parameters())
    block.zero_grad(set_to_none=False)
    assert all(not parameter.grad.to_host().any() for parameter in block.parameters())
    block.zero_grad()
    block.inner.requires_grad_(False)
    F.sum(block(x)).backward()
    assert block.inner.weight.grad is None and block.scale.grad is not None
    assert len(block.parameters()) == 4
    visited = []
    block.apply(lambda module: visited.append(type(module).__name__))
    assert visited[-1] == "Block" and "Linear" in visited


@devices
def test_moving_keeps_values_gradients_and_sharing(selector, queue):
    target = manager.default(selector).queue
    block, x = Block(queue), np.ones((2, 3), np.float32)
    before = block(Tensor.from_host(queue, x))
    F.sum(before).backward()
    grad, kept = block.scale.grad.to_host().copy(), block.scale
    assert block.to(target) is block
    assert block.scale is kept
    assert block.inner is block.again and block.scale.requires_grad and block.scale.is_leaf
    assert all(t.backend == ("cpu" if selector == "cpu" else "cl") for t in [*block.parameters(), *block.buffers()])
    np.testing.assert_array_equal(block.scale.grad.to_host(), grad)
    np.testing.assert_allclose(block(Tensor.from_host(target, x)).to_host(), before.to_host(), rtol=1e-5)
    block.to(dtype="float64")
    assert {t.dtype for t in [*block.parameters(), *block.buffers()]} == {"float64"}


@devices
def test_state_dicts(selector):
    queue = manager.default(selector).queue
    block, other = Block(queue), Block(queue)
    state = block.state_dict()
    assert list(state) == ["scale", "seen", "inner.weight", "again.weight", "body.1.weight", "body.1.bias"]
    assert all(type(array) is np.ndarray and array.dtype == np.float32 for array in state.values())
    weight = other.inner.weight
    assert other.load_state_dict(state) == ([], [])
    assert other.inner.weight is weight and weight.requires_grad and weight.is_leaf
    x = Tensor.from_host(queue, np.ones((2, 3)))
    np.testing.assert_array_equal(other(x).to_host(), block(x).to_host())
    # Copies, not views: training on does not change them.
    init.zeros_(block.scale)
    assert (state["scale"] == 2).all() and not block.scale.to_host().any()

    values = other.state_dict()
    with pytest.raises(nn.StateDictError) as problem:
        named = {name: array for name, array in state.items() if name not in ("scale", "seen")}
        other.load_state_dict({**named, "extra": np.ones(1), "inner.bias": np.ones(3), "body.1.bias": np.ones(3)})
    assert isinstance(problem.value, KeyError) and isinstance(problem.value, ValueError)
    assert str(problem.value) == (
        "the state_dict does not fit Block, and nothing was loaded:\n"
        "  missing 'scale', 'seen'\n"
        "  unexpected 'extra', 'inner.bias'\n"
        "  'body.1.bias' has shape (3,), the module's has (2,)"
    )
    with pytest.raises(ValueError, match=r"'body.1.bias' has shape \(3,\), the module's has \(2,\)"):
        other.load_state_dict({"scale": np.ones(3), "body.1.bias": np.ones(3)}, strict=False)
    with pytest.raises(ValueError, match="'again.weight' differs from 'inner.weight', which is the same tensor"):
        other.load_state_dict({**state, "scale": np.zeros(3), "again.weight": np.zeros((3, 3))})
    with pytest.raises(ValueError, match="'seen' holds <U3 values instead of numbers"):
        other.load_state_dict({**state, "scale": np.zeros(3), "seen": ["one"]})
    assert all(np.array_equal(other.state_dict()[name], values[name]) for name in values)
    keys = other.load_state_dict({"scale": np.array([1.0, 2.0, 3.0]), "extra": 1}, strict=False)
    assert keys.unexpected_keys == ["extra"] and "seen" in keys.missing_keys
    assert other.scale.to_host().tolist() == [1, 2, 3]
    # One name of what is shared is enough, and tensors do as well as arrays.
    del state["again.weight"]
    assert other.load_state_dict({**state, "scale": block.scale}) == ([], [])
    assert not other.scale.to_host().any()


def test_copies_and_pickles(queue):
    block = Block(queue)
    x = Tensor.from_host(queue, np.ones((2, 3)))
    expected = block(x).to_host().copy()
    del block.last
    with netcl.device("cpu"):
        # A pickle is read on the active device.
        pickled = pickle.loads(pickle.dumps(block))
    for twin in (copy.deepcopy(block), pickled):
        np.testing.assert_array_equal(twin(x).to_host(), expected)
        assert twin.scale is not block.scale and len(twin.parameters()) == 4
        assert twin.inner is twin.again and twin.scale.requires_grad and not twin.seen.requires_grad
        init.zeros_(twin.scale)
    np.testing.assert_array_equal(block(x).to_host(), expected)


def test_a_saved_value_that_was_overwritten_is_refused(queue):
    layer = nn.Linear(queue, 2, 2)
    loss = F.sum(layer(Tensor.from_host(queue, np.ones((1, 2))).requires_grad_()))
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(RuntimeError, match="overwritten in place"):
        loss.backward()


def test_linear(queue):
    layer = nn.Linear(queue, 3, 5)
    x = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    expected = x @ layer.weight.to_host().T + layer.bias.to_host()
    np.testing.assert_allclose(layer(Tensor.from_host(queue, x)).to_host(), expected, rtol=1e-5, atol=1e-6)
    bound = 1 / np.sqrt(3)
    assert (np.abs(layer.weight.to_host()) <= bound).all() and (np.abs(layer.bias.to_host()) <= bound).all()
    assert nn.Linear(queue, 3, 5, bias=False).bias is None
    with netcl.device("cpu"):
        for made in (nn.Linear(3, 5), nn.Linear(None, 3, 5), nn.Linear(in_features=3, out_features=5)):
            assert made.weight.backend == "cpu" and made.weight.shape == (5, 3) and made.bias.shape == (5,)
        assert nn.Linear(3, 5, False).bias is None
        assert nn.Linear(3, 5, queue=queue).bias is not None
    assert nn.Linear(queue, 3, 5, dtype="float64").weight.dtype == "float64"


def test_activations_are_their_functions(queue):
    x = Tensor.from_host(queue, np.linspace(-4, 4, 12).reshape(3, 4), dtype="float64")
    pairs = [
        (nn.ReLU(), F.relu(x)),
        (nn.ReLU6(), F.relu6(x)),
        (nn.LeakyReLU(0.2), F.leaky_relu(x, 0.2)),
        (nn.ELU(2.0), F.elu(x, 2.0)),
        (nn.SELU(), F.selu(x)),
        (nn.GELU(), F.gelu(x)),
        (nn.GELU("tanh"), F.gelu_tanh(x)),
        (nn.GELU(approximate=True), F.gelu_tanh(x)),
        (nn.SiLU(), F.silu(x)),
        (nn.Swish(), F.silu(x)),
        (nn.Mish(), F.mish(x)),
        (nn.Tanh(), F.tanh(x)),
        (nn.Sigmoid(), F.sigmoid(x)),
        (nn.LogSigmoid(), F.logsigmoid(x)),
        (nn.Softplus(2.0, 3.0), F.softplus(x, 2.0, 3.0)),
        (nn.Softsign(), F.softsign(x)),
        (nn.HardTanh(-2.0, 3.0), F.hardtanh(x, -2.0, 3.0)),
        (nn.HardSigmoid(), F.hardsigmoid(x)),
        (nn.HardSwish(), F.hardswish(x)),
        (nn.Softmax(0), F.softmax(x, 0)),
        (nn.LogSoftmax(), F.log_softmax(x, -1)),
        (nn.Identity(), x),
        (nn.Flatten(0), netcl.reshape(x, (12,))),
    ]
    for module, expected in pairs:
        np.testing.assert_array_equal(module(x).to_host(), expected.to_host(), err_msg=repr(module))
    # In training its slopes are random.
    steady, slope = nn.RReLU(0.25, 0.75).eval()(x), F.leaky_relu(x, 0.5)
    np.testing.assert_array_equal(steady.to_host(), slope.to_host())
    tested = {type(module) for module, _ in pairs} | {nn.RReLU}
    # test_nn_golden.py holds these against PyTorch.
    tested |= {nn.CELU, nn.GLU, nn.Hardshrink, nn.Softmax2d, nn.Softmin, nn.Softshrink, nn.Tanhshrink, nn.Threshold}
    for name in layers.__all__:
        made = getattr(layers, name)
        if isinstance(made, type) and issubclass(made, Activation):
            assert made in tested, name
    # PyTorch's programs say so; it changes nothing.
    for made in (nn.ReLU(inplace=True), nn.ReLU(True), nn.LeakyReLU(0.2, inplace=True)):
        made(x)
    with pytest.raises(TypeError):
        nn.ReLU(outplace=True)


def test_containers(queue):
    model = nn.Sequential(nn.Linear(queue, 2, 3), nn.ReLU())
    model.append(nn.Linear(queue, 3, 1))
    assert len(model) == 3 and isinstance(model[1], nn.ReLU) and model[-1] is model[2] and len(model[:2]) == 2
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    stack = nn.ModuleList(nn.Linear(queue, 2, 2) for _ in range(2))
    assert len(stack) == 2 and len(stack.parameters()) == 4 and list(stack)[1] is stack[1]
    with pytest.raises(TypeError, match="takes modules, not function"):
        nn.Sequential(nn.Linear(queue, 2, 3), lambda x: x)
    with pytest.raises(TypeError, match="takes modules, not int"):
        nn.ModuleList([1])


def test_initialisers(queue):
    weight = nn.Parameter(np.zeros((300, 200)), queue=queue)

    def std(result) -> float:
        assert result is weight
        return float(weight.to_host().std())

    assert std(init.uniform_(weight, -1.0, 1.0)) == pytest.approx(1 / np.sqrt(3), rel=0.02)
    assert std(init.normal_(weight, 1.0, 0.5)) == pytest.approx(0.5, rel=0.02)
    assert std(init.xavier_uniform_(weight, 2.0)) == pytest.approx(2 * np.sqrt(2 / 500), rel=0.02)
    assert std(init.xavier_normal_(weight)) == pytest.approx(np.sqrt(2 / 500), rel=0.02)
    assert std(init.kaiming_uniform_(weight, nonlinearity="relu")) == pytest.approx(np.sqrt(2 / 200), rel=0.02)
    assert std(init.kaiming_normal_(weight, mode="fan_out")) == pytest.approx(np.sqrt(2 / 300), rel=0.02)
    init.kaiming_uniform(weight)
    assert np.abs(weight.to_host()).max() == pytest.approx(1 / np.sqrt(200), rel=0.01)
    assert (init.ones_(weight).to_host() == 1).all() and not init.zeros_(weight).to_host().any()
    assert weight.is_leaf and weight.requires_grad
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3) and init.calculate_gain("leaky_relu", 1.0) == 1
    first = init.normal_(weight, seed=5).to_host().copy()
    np.testing.assert_array_equal(init.normal_(weight, seed=5).to_host(), first)
    with pytest.raises(ValueError, match="no gain is known for 'swoosh'|no gain is known for \"swoosh\""):
        init.kaiming_uniform_(weight, nonlinearity="swoosh")
    with pytest.raises(ValueError, match="fan_in"):
        init.kaiming_uniform_(weight, mode="fan")
    with pytest.raises(ValueError, match="at least two axes"):
        init.xavier_uniform_(nn.Parameter(np.zeros(3)))


# ---- optimizers -----------------------------------------------------------------------------------------------------


def parameter(values, grad=None, queue=None) -> Tensor:
    made = nn.Parameter(np.array(values), queue=queue)
    if grad is not None:
        made.grad = Tensor.from_host(made.queue, np.array(grad))
    return made


@devices
def test_sgd_steps(selector):
    queue = manager.default(selector).queue
    p, idle = parameter([1.0, 2.0], [1.0, -2.0], queue), parameter([5.0], queue=queue)
    opt = SGD([p, idle], lr=0.5, momentum=0.5)
    opt.step()
    assert p.to_host().tolist() == [0.5, 3.0]
    opt.step()
    assert p.to_host().tolist() == [-0.25, 4.5] and idle.to_host().tolist() == [5.0]
    opt.lr = 0.0
    opt.step()
    assert p.to_host().tolist() == [-0.25, 4.5]
    opt.zero_grad(set_to_none=False)
    assert p.grad.to_host().tolist() == [0, 0] and idle.grad is None
    opt.zero_grad()
    assert p.grad is None


def test_groups(queue):
    first, second = parameter([1.0], [1.0], queue), parameter([1.0], [1.0], queue)
    opt = SGD([{"params": [first]}, {"params": [second], "lr": 0.25, "weight_decay": 1.0}], lr=0.5)
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.25]
    assert dict(opt.param_groups[1])["weight_decay"] == 1.0 and len(opt.param_groups[0]["params"]) == 1
    opt.step()
    assert (first.item(), second.item()) == (0.5, 0.5)
    opt.param_groups[0]["lr"] = 0.0
    opt.param_groups[1].lr = 0.5
    opt.param_groups[1]["weight_decay"] = 0.0
    opt.step()
    assert (first.item(), second.item()) == (0.5, 0.0)
    third = parameter([1.0], [1.0], queue)
    opt.add_param_group({"params": [third], "lr": 1.0})
    opt.step()
    assert third.item() == 0.0
    opt.lr = 0.125
    assert [group.lr for group in opt.param_groups] == [0.125] * 3
    with pytest.raises(KeyError, match="momentums"):
        opt.add_param_group({"params": [third], "momentums": 1.0})
    with pytest.raises(KeyError):
        opt.param_groups[0]["lr2"] = 1.0


def test_a_run_goes_on_from_a_state_dict(queue):
    def run(p, opt, steps):
        for step in steps:
            p.grad = Tensor.from_host(queue, [step, -0.5])
            opt.step()
        return p.to_host().tolist()

    def make(values):
        p = parameter(values, queue=queue)
        return p, SGD([p], lr=0.5, momentum=0.5, weight_decay=0.25)

    expected = run(*make([1.0, 2.0]), range(6))
    p, opt = make([1.0, 2.0])
    halfway = run(p, opt, range(3))
    state = opt.state_dict()
    settings = ["groups.0.lr", "groups.0.momentum", "groups.0.weight_decay"]
    assert sorted(state) == ["0.momentum_buffer", "0.step", *settings]
    resumed, other = make(halfway)
    other.lr = 99.0
    other.load_state_dict(state)
    assert run(p, opt, range(3, 6)) == expected and run(resumed, other, range(3, 6)) == expected
    with pytest.raises(ValueError, match="unknown tensor \"7.momentum_buffer\""):
        other.load_state_dict({**state, "7.momentum_buffer": np.zeros(2)})
    with pytest.raises(ValueError, match=r"has shape \(3,\), its parameter has shape \(2,\)"):
        other.load_state_dict({**state, "0.momentum_buffer": np.zeros(3)})


def test_what_an_optimizer_refuses(queue):
    p = parameter([1.0], queue=queue)
    for match, arguments in {
        "learning rate is -1": {"lr": -1.0},
        "nesterov needs a momentum": {"nesterov": True},
        "weight decay": {"weight_decay": -0.5},
        "momentum is -1": {"momentum": -1.0},
    }.items():
        with pytest.raises(ValueError, match=match):
            SGD([p], **arguments)
    with pytest.raises(ValueError, match="no parameters"):
        SGD([])
    with pytest.raises(ValueError, match="given before"):
        SGD([p, p])
    with pytest.raises(ValueError, match="only leaves"):
        SGD([p * 2.0])
    with pytest.raises(TypeError, match=r"use \[tensor\]"):
        SGD(p)
    with pytest.raises(TypeError, match="parameters are tensors"):
        SGD([np.ones(3)])
    assert repr(SGD((t for t in [p]), lr=0.5)).startswith("SGD(lr=0.5, momentum=0")


def test_a_step_is_not_recorded(queue):
    p = parameter([2.0], [1.0], queue)
    opt = SGD([p], lr=0.1)
    loss = p * p
    opt.step()
    assert p.is_leaf
    with pytest.raises(RuntimeError, match="overwritten in place"):
        loss.backward()
    assert ag.is_grad_enabled()


def test_layers_of_one_function_are_that_function(queue):
    images = Tensor.from_host(queue, np.random.default_rng(1).normal(size=(2, 4, 6, 5)), dtype="float64")
    other = Tensor.from_host(queue, np.random.default_rng(2).normal(size=(2, 4, 6, 5)), dtype="float64")
    pairs = [
        (nn.CosineSimilarity(1)(images, other), F.cosine_similarity(images, other, dim=1)),
        (nn.PairwiseDistance(1.0)(images, other), F.pairwise_distance(images, other, 1.0)),
        (nn.ChannelShuffle(2)(images), F.channel_shuffle(images, 2)),
        (nn.LocalResponseNorm(3)(images), F.local_response_norm(images, 3)),
        (nn.LPPool2d(2.0, 2)(images), F.lp_pool2d(images, 2.0, 2)),
        (nn.LPPool1d(3.0, 2)(images[0]), F.lp_pool1d(images[0], 3.0, 2)),
        (nn.UpsamplingNearest2d(scale_factor=2)(images), F.interpolate(images, scale_factor=2)),
        (
            nn.UpsamplingBilinear2d((9, 7))(images),
            F.interpolate(images, size=(9, 7), mode="bilinear", align_corners=True),
        ),
        (nn.AlphaDropout(0.5).eval()(images), images),
        (nn.FeatureAlphaDropout(0.5).eval()(images), images),
    ]
    for number, (found, expected) in enumerate(pairs):
        np.testing.assert_array_equal(found.to_host(), expected.to_host(), err_msg=str(number))
