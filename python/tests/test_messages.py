"""What wrong calls say: the operation, what was given, and what to do."""

import numpy as np
import pytest

import netcl
from netcl import Tensor, autograd as ag, nn, ops, optim
from netcl.nn import functional as F
from netcl.runtime import capture

CPU = netcl.manager.default("cpu").queue


def ones(*shape):
    return ag.tensor(np.ones(shape, np.float32), requires_grad=True, queue=CPU)


LAYERS = {
    "Linear": lambda: nn.Linear(CPU, 3, 4),
    "Conv1d": lambda: nn.Conv1d(CPU, 3, 4, 3),
    "Conv2d": lambda: nn.Conv2d(CPU, 3, 4, 3),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(CPU, 3, 4, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(CPU, 3, 4, 3),
    "BatchNorm1d": lambda: nn.BatchNorm1d(CPU, 3),
    "BatchNorm2d": lambda: nn.BatchNorm2d(CPU, 3),
    "LayerNorm": lambda: nn.LayerNorm(CPU, 3),
    "RMSNorm": lambda: nn.RMSNorm(CPU, 3),
    "GroupNorm": lambda: nn.GroupNorm(CPU, 1, 3),
    "ReLU": nn.ReLU,
    "LeakyReLU": nn.LeakyReLU,
    "GELU": nn.GELU,
    "PReLU": lambda: nn.PReLU(CPU),
    "HardTanh": nn.HardTanh,
    "Softmax": nn.Softmax,
    "Dropout": nn.Dropout,
    "Dropout2d": nn.Dropout2d,
    "MaxPool2d": lambda: nn.MaxPool2d(2),
    "AvgPool2d": lambda: nn.AvgPool2d(2),
    "Flatten": nn.Flatten,
    "Upsample": lambda: nn.Upsample(scale_factor=2),
    "LSTM": lambda: nn.LSTM(CPU, 3, 4),
    "GRU": lambda: nn.GRU(CPU, 3, 4),
    "MultiheadAttention": lambda: nn.MultiheadAttention(CPU, 4, 2),
    "CrossEntropyLoss": nn.CrossEntropyLoss,
    "MSELoss": nn.MSELoss,
}


class Foreign:
    """A tensor of another library."""

    def __dlpack__(self):
        raise AssertionError("nobody asked for it")


Foreign.__module__, Foreign.__name__ = "torch", "Tensor"


def test_a_selector_that_finds_nothing_says_what_is_there():
    assert netcl.device("cpu").queue == CPU
    for wrong in [lambda: netcl.device("no such device"), lambda: nn.Linear(2, 3, device="no such device")]:
        with pytest.raises(ValueError, match=r"no device matches \"no such device\"; available: .*cpu \("):
            wrong()
    assert netcl.manager.default("no such device") is None


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_says_what_it_takes(name):
    layer = LAYERS[name]()
    others = (5, 5) if name == "MultiheadAttention" else (np.array([0]),) if name.endswith("Loss") else ()
    for wrong, kind in [(5, "int"), (None, "NoneType"), ("text", "str"), ({}, "dict")]:
        with pytest.raises(TypeError) as raised:
            layer(wrong, *others)
        assert str(raised.value) == f"{name}: expected a Tensor, got {kind}"
    for wrong, words in [
        ([1.0, 2.0], "a list: use netcl.tensor"),
        (np.zeros(2), "a NumPy array: use netcl.tensor"),
        (Foreign(), "a torch.Tensor: use netcl.from_dlpack"),
    ]:
        with pytest.raises(TypeError, match=rf"^{name}: expected a Tensor, got {words}"):
            layer(wrong, *others)


def test_a_layer_inside_a_model_says_where_it_is():
    class Model(nn.Module):
        def __init__(self):
            self.blocks = nn.ModuleList([nn.ReLU(), nn.Linear(CPU, 3, 4)])
            self.body = nn.Sequential(nn.Sequential(nn.Linear(CPU, 3, 4)))

        def forward(self, x, inner):
            return self.body(x) if inner else self.blocks[1](x)

    for inner, path in [(True, "body.0.0"), (False, "blocks.1")]:
        with pytest.raises(TypeError) as raised:
            Model()(5, inner)
        assert str(raised.value) == f"{path} (Linear): expected a Tensor, got int"
    with pytest.raises(TypeError, match=r"conv1 \(Conv2d\): expected a Tensor, got int"):
        nn.ResNet18(CPU, base_channels=4)(5)


def test_errors_of_ones_own_modules_stay_what_they_are():
    class Own(nn.Module):
        def forward(self, x):
            return x.nothing

    with pytest.raises(AttributeError, match="'dict' object has no attribute 'nothing'"):
        nn.Sequential(Own())({})
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        nn.Linear(CPU, 3, 4)()


WRONG = [
    (lambda: Tensor.from_shape(CPU, (2**64,)), ValueError, r"cannot hold the length 18446744073709551616: .*below 2\*\*63"),
    (lambda: Tensor.from_shape(CPU, (2**63,)), ValueError, "cannot hold the length 9223372036854775808"),
    (lambda: ag.reshape(ones(2), (10**30,)), ValueError, "cannot hold the length 1000000000"),
    (lambda: Tensor.from_shape(CPU, (2.5,)), TypeError, "a shape is made of whole numbers, not 2.5"),
    (lambda: Tensor.from_shape(CPU, ("a",)), TypeError, "a shape is made of whole numbers, not str$"),
    (lambda: ag.einsum("ij,jk->ik", ones(2, 3), ones(2, 3)), ValueError, "axis 'j' has length 2 in operand 1, but 3 before"),
    (lambda: ag.einsum("...i,...i->...", ones(2, 3), ones(4, 3)), ValueError, 'the last axis of "..." has length 4 in operand 1'),
    (lambda: ag.einsum("ij->ik", ones(2, 3)), ValueError, "the output has axis 'k', which no operand has"),
    (lambda: ag.einsum("ij->ii", ones(2, 3)), ValueError, "the output has axis 'i' twice"),
    (lambda: ag.einsum("ij", 5), TypeError, "einsum: operands are tensors, not int$"),
    (lambda: ag.sum(ones(2, 3), 1.0), TypeError, "axis is a whole number or a tuple of them, not 1.0"),
    (lambda: ops.sum(ones(2, 3), "a"), TypeError, "axis is a whole number or a tuple of them, not 'a'"),
    (lambda: ones(2, 3).mean((0, 0.5)), TypeError, r"axis is a whole number or a tuple of them, not \(0, 0.5\)"),
    (lambda: ag.permute(ones(2, 3), "ab"), TypeError, "axis is a whole number or a tuple of them, not 'ab'"),
    (lambda: ag.squeeze(ones(1, 3), 0.0), TypeError, "axis is a whole number or a tuple of them, not 0.0"),
    (lambda: ag.cat(5), TypeError, "cat: a list of tensors is needed, not int"),
    (lambda: ag.cat(ones(2, 3)), TypeError, "cat: a list of tensors is needed, not Tensor"),
    (lambda: ops.stack([ones(2), 5]), TypeError, "stack: a list of tensors is needed, not int"),
    (lambda: ag.repeat(ones(2), "a"), TypeError, "repeat: times is made of whole numbers, and 'a' is given"),
    (lambda: ag.split(ones(4), 0.5), TypeError, "split: lengths is made of whole numbers, and 0.5 is given"),
    (lambda: ag.where(None, ones(2), ones(2)), TypeError, "a Tensor, an array or a number is needed, not None"),
    (lambda: F.mse_loss(ones(2), None), TypeError, "a Tensor, an array or a number is needed, not None"),
    (lambda: ag.leaky_relu(ones(2), "a"), TypeError, "leaky_relu: negative_slope is a number, not str"),
    (lambda: nn.Dropout("a"), TypeError, "Dropout: p is a number, not 'a'"),
    (lambda: nn.Conv2d(CPU, 3, 4, np.ones((2, 3))), TypeError, "Conv2d: kernel_size is a whole number or 2 of them"),
    (
        lambda: nn.Linear(64, 10, bais=False),
        TypeError,
        r"^Linear: .*'bais'; its arguments are \(in_features, out_features, bias=True, \*, device=None, dtype=None\)$",
    ),
    (lambda: nn.Softmax(dims=1), TypeError, r"'dims'; its arguments are \(axis=-1, \*, dim=None\)$"),
    (lambda: optim.SGD(5, lr=0.1), TypeError, "params must be a list of tensors, not int"),
    (lambda: optim.SGD(["a"], lr=0.1), TypeError, "parameters are tensors, not str$"),
    (lambda: optim.clip_grad_norm(5, 1.0), TypeError, "params must be a list of tensors, not int"),
    (lambda: optim.SGD([ones(2)], lr=0.1).step("a"), TypeError, "step: max_norm is a number, not str"),
    (lambda: optim.SGD([ones(2)], lr=0.1).step(closure=5), TypeError, "step: closure is a function .*, not int"),
    (lambda: optim.SGD([ones(2)], lr=0.1).load_state_dict([]), TypeError, "load_state_dict: a dict .* is needed, not list"),
    (lambda: optim.SGD([ones(2)], lr=0.1).load_state_dict({0: 1.0}), TypeError, "load_state_dict: names are texts"),
    (lambda: optim.SGD([ones(2)], lr=0.1).load_state_dict({"a": {}}), TypeError, '"a" holds a dict; it takes numbers and arrays'),
    (
        lambda: optim.SGD([ones(2)], lr=0.1).load_state_dict({"state": {}, "param_groups": [{"lr": 0.1}]}),
        ValueError,
        "state_dict of an optimizer of PyTorch .*, which cannot be loaded",
    ),
    (lambda: ag.jit(5), TypeError, "jit: a function or a module is needed, not int"),
    (lambda: capture("a"), TypeError, "capture: a function is needed, not str"),
    (lambda: ag.jit(lambda x: (x for _ in "ab"))(ones(2)), TypeError, "jit: the result is a generator, .* use a list or a tuple"),
    (lambda: ag.jit(lambda x: {"a": map(abs, [x])})(ones(2)), TypeError, r"jit: the result\['a'\] is a map"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_calls_say_what_is_wrong(case):
    call, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        call()


def test_no_message_shows_the_inside():
    for call, kind, _ in WRONG:
        with pytest.raises(kind) as raised:
            call()
        for inside in ("<class", "Letter(", "Sequence", "has no attribute", "`Vec`"):
            assert inside not in str(raised.value)


def test_a_step_with_a_closure_is_that_of_pytorch():
    x = ag.tensor(np.float32([1.0, -2.0]), requires_grad=True, queue=CPU)
    opt = optim.SGD([x], lr=0.5)

    def closure():
        assert ag.is_grad_enabled()
        opt.zero_grad()
        loss = ag.sum(x * x)
        loss.backward()
        return loss

    with ag.no_grad():
        assert opt.step(closure).item() == 5.0
    np.testing.assert_array_equal(x.to_host(), [0.0, 0.0])
    assert opt.step(closure=closure).item() == 0.0 and opt.step() is None


def test_trained_weights_are_not_shipped():
    from netcl.nn import models

    for asked in ({"pretrained": True}, {"weights": "DEFAULT"}):
        with pytest.raises(ValueError, match=r"resnet18: no trained weights come with netcl.*load_model"):
            models.resnet18(**asked)
    assert models.vit_b_16(num_classes=2, image_size=32, pretrained=False, weights=None).num_classes == 2


def test_bytes_of_images_are_to_become_floats():
    images = np.zeros((1, 3, 8, 8), np.uint8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with pytest.raises(TypeError, match=r"^0 \(Conv2d\): expected a Tensor of floats, got one of int64: use x.float\(\), .* / 255"):
        model(netcl.tensor(images))
    with pytest.raises(TypeError, match=r"got a NumPy array of bytes: use netcl.tensor\(x.astype\(.float32.\) / 255\)"):
        model(images)
    # A layer's own mistake about other tensors stays what it is.
    with pytest.raises(TypeError, match="expected a float tensor"):
        nn.Bilinear(2, 2, 3)(netcl.ones(1, 2), netcl.tensor([[1, 2]]))


def test_a_mask_of_the_other_order_of_axes_names_the_order():
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    lengths_first = netcl.ones(5, 3, 4)
    with pytest.raises(ValueError, match=r"attn_mask has shape \(5, 5\); .*batch_first=False makes it the second"):
        layer(lengths_first, netcl.zeros(5, 5))
