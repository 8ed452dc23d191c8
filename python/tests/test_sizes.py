"""Sizes that no machine has, lengths that overflow, and panics: exceptions with a text, never the end of the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
import netcl._netcl as extension
from netcl import Tensor, ops
from netcl.core.device import manager


@pytest.fixture(params=find_device_selectors(), scope="module")
def queue(request):
    selector = request.param
    return manager.default(int(selector) if selector.isdigit() else selector).queue


def tensor(queue, *shape: int) -> Tensor:
    return Tensor.from_host(queue, np.arange(np.prod(shape), dtype="float32").reshape(shape))


def raised(code: str) -> list[str]:
    """The exceptions of lines of Python that each run by themselves, in a process of their own: a failure may end it."""
    setup = """
        import sys, numpy as np, netcl
        from netcl import Tensor, nn, ops, autograd as ag
        from netcl.core.device import manager
        q = manager.default("cpu").queue
        x = Tensor.from_host(q, np.zeros((1, 1, 4), "float32"))
        image = Tensor.from_host(q, np.zeros((1, 1, 4, 4), "float32"))
        huge = ops.expand(Tensor.from_host(q, np.zeros(1, "float32")), (10**6, 10**6))
        for line in sys.stdin.read().splitlines():
            try:
                exec(line)
                print("nothing:", line)
            except Exception as error:
                print(f"{type(error).__name__}: {line}" if str(error) else f"no text: {line}")
    """
    lines = textwrap.dedent(code).strip()
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(setup)], input=lines, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, f"ended with {run.returncode} after\n{run.stdout}\n{run.stderr[-2000:]}"
    return run.stdout.splitlines()


def test_lengths_beyond_the_memory_are_memory_errors():
    found = raised("""
        ops.arange(0, 1e12, queue=q)
        ops.arange(0, 1e19, queue=q)
        ops.arange(0, 10, 1e-18, queue=q)
        ops.arange(-1.7e308, 1.7e308, queue=q)
        ops.permutation(10**12, q)
        ops.permutation(2**62, q)
        Tensor.from_shape(q, (10**6, 10**6))
        ops.uniform((10**6, 10**6), queue=q)
        ops.contiguous(huge)
        huge + 1.0
        ag.relu(huge)
        ops.one_hot(netcl.IndexTensor.from_host(q, [0, 1]), 2**50)
        ops.adaptive_avg_pool1d(x, 2**31 - 1)
        ag.adaptive_avg_pool1d(x, 2**31 - 1)
        ops.adaptive_max_pool1d(x, 2**40)
        ops.adaptive_avg_pool2d(image, (2**31 - 1, 1))
        ops.chunk(ops.expand(x, (2**50, 1, 4)), 2**50)
        ops.split(ops.expand(x, (2**50, 1, 4)), 1)
        ops.repeat(x, [2**20, 2**20, 1])
        ops.interpolate(image, size=(2**30, 2**20))
        nn.Linear(2**25, 2**25)
        nn.Embedding(2**40, 16)
        ops.tril(huge)
        ops.expand(Tensor.from_shape(q, 1), (2**59,)) @ ops.expand(Tensor.from_shape(q, 1), (2**59,))
    """)
    assert len(found) == 24
    assert [line for line in found if not line.startswith("MemoryError: ")] == []


def test_products_that_overflow_are_errors():
    found = raised("""
        Tensor.from_shape(q, (2**32, 2**32))
        Tensor.from_shape(q, (2**62, 4))
        Tensor.from_shape(q, (2**32, 2**32, 0))
        Tensor.from_shape(q, 2**64)
        netcl.reshape(x, (2**32, 2**32))
        netcl.reshape(x, (2**62, 4))
        ops.expand(x, (2**62, 1, 4))
        ops.repeat(x, [2**63 - 1, 2, 2])
        ops.repeat(ops.expand(x, (2**40, 1, 4)), [2**40, 1, 1])
        ops.split(x, [2**63 - 1, 2**63 - 1, 6], -1)
        x[2**63 - 1]
        x[-(2**63)]
        ops.pad(x, [(2**62, 2**62)])
        ops.conv2d(image, image, stride=2**62, padding=2**62, dilation=2**62)
        ops.conv2d(image, image, padding=2**63 - 1)
        ops.max_pool1d(x, 2**62, 2**62, 2**61)
        nn.Linear(2**40, 2**40)
        Tensor.from_host(q, np.broadcast_to(np.float32(1), (10**6, 10**6)))
    """)
    assert len(found) == 18
    assert [line for line in found if line.startswith(("nothing", "no text"))] == []


def test_slices_of_any_numbers_are_taken_like_numpy_takes_them(queue):
    array = np.arange(5, dtype="float32")
    x = tensor(queue, 5)
    for start in (None, -(2**62), -3, 0, 4, 2**62):
        for stop in (None, -(2**62), -1, 3, 2**62):
            for step in (-(2**63), -(2**62), -2, -1, 1, 3, 2**62, 2**63 - 1):
                at = slice(start, stop, step)
                assert x[at].to_host().tolist() == array[at].tolist(), at


def test_a_tensor_prints_its_corners_and_reads_nothing_else(queue):
    text = repr(ops.expand(tensor(queue, 1), (10**6, 10**6)))
    row = "[0., 0., 0., ..., 0., 0., 0.]"
    assert text.startswith(f"Tensor([{row},\n        {row},\n        {row},\n        ...,\n        {row},")
    assert "shape=(1000000, 1000000)" in text

    def numbers(text: str) -> list[float]:
        return [float(word) for word in text.split(", shape=")[0].removeprefix("Tensor(").replace("[", " ").replace("]", " ").replace(",", " ").split() if word != "..."]

    values = np.arange(20 * 4 * 30, dtype="float32").reshape(20, 4, 30)
    edges = values[[0, 1, 2, -3, -2, -1]][:, :, [0, 1, 2, -3, -2, -1]]
    x = Tensor.from_host(queue, values)
    assert numbers(repr(x)) == edges.ravel().tolist()
    turned = ops.permute(x, (2, 1, 0))
    assert numbers(repr(turned)) == edges.transpose(2, 1, 0).ravel().tolist()
    assert numbers(repr(ops.flip(x, 0))) == edges[::-1].ravel().tolist()
    # 1000 elements are shown whole.
    assert numbers(repr(tensor(queue, 10, 100))) == list(range(1000))


def test_tensors_of_many_axes_and_of_none_print_shortly(queue):
    one = tensor(queue, 1)
    assert len(repr(ops.expand(one, (2,) * 12))) < 10**6
    assert repr(ops.expand(one, (7,) * 20)).startswith("Tensor([...], shape=(7, 7,")
    assert repr(Tensor.from_shape(queue, (10**9, 0))).startswith("Tensor([], shape=(1000000000, 0)")
    assert repr(Tensor.from_shape(queue, ())).startswith("Tensor(0., shape=()")


def test_printing_inside_a_captured_step_records_nothing():
    x = tensor(manager.default("cpu").queue, 40, 50)
    texts = []

    @netcl.runtime.capture
    def step(x):
        texts.append(repr(x))
        return netcl.autograd.relu(x)

    step(x)
    assert step(x).to_host().tolist() == x.to_host().tolist()
    assert all("shape=(40, 50)" in text for text in texts)


@pytest.mark.parametrize("count", [10_001, 2**32, 2**62])
def test_layers_are_counted_before_they_are_made(count):
    layer = netcl.nn.TransformerEncoderLayer(4, 2)
    for make in (
        lambda: netcl.nn.GRU(2, 3, num_layers=count),
        lambda: netcl.nn.LSTM(2, 3, num_layers=count),
        lambda: netcl.nn.GPT(vocab_size=5, block_size=4, n_layer=count, n_head=1, n_embd=4),
        lambda: netcl.nn.KVCache(count, 1, 1, 2, 4),
        lambda: netcl.nn.TransformerEncoder(layer, count),
    ):
        with pytest.raises(ValueError, match="at most 10,000 layers"):
            make()


class Sequence:
    """Says that it has a million million elements."""

    def __len__(self):
        return 10**12

    def __getitem__(self, at):
        if at > 2:
            raise IndexError
        return at


def test_what_a_sequence_says_of_its_length_is_not_believed(queue):
    x = tensor(queue, 2, 3, 4)
    assert ops.permute(x, Sequence()).shape == (2, 3, 4)
    assert netcl.autograd.permute(x, Sequence()).shape == (2, 3, 4)
    for call in (ops.cat, ops.stack, netcl.autograd.cat, netcl.autograd.stack):
        with pytest.raises(TypeError):
            call(Sequence())
    with pytest.raises(TypeError, match="list of tensors"):
        ops.cat(ops.expand(x, (10**12, 2, 3, 4)))
    with pytest.raises(TypeError, match="lr_lambda is a function"):
        netcl.optim.LambdaLR(netcl.optim.SGD([x], lr=0.1), ops.expand(x, (10**12, 2, 3, 4)))
    for given in (5, "abc", {0: 1}, {1, 2}):
        with pytest.raises((TypeError, ValueError), match="axis|axes"):
            ops.permute(x, given)


def test_an_output_size_is_not_read_out_of_a_tensor(queue):
    many = ops.expand(tensor(queue, 1), (10**6, 10**6))
    with pytest.raises(TypeError, match="output_size is made of whole numbers"):
        ops.adaptive_avg_pool1d(tensor(queue, 2, 3, 8), many)
    with pytest.raises(TypeError, match="whole number"):
        netcl.nn.Unflatten(0, many)


def test_a_panic_is_an_exception_with_its_text():
    with pytest.raises(RuntimeError, match="^what went wrong$") as caught:
        extension._panic("what went wrong")
    assert isinstance(caught.value, Exception)
    # Through Python code that Rust calls, and out of it again.
    def body(*args):
        extension._panic("inside")

    with pytest.raises(RuntimeError, match="inside"):
        netcl.autograd.jit(body)(tensor(manager.default("cpu").queue, 2))


def test_a_schedule_steps_once_inside_a_kernel_capture():
    parameter = tensor(manager.default("cpu").queue, 2).requires_grad_()
    optimizer = netcl.optim.SGD([parameter], lr=1.0)
    schedule = netcl.optim.StepLR(optimizer, 1, gamma=0.5)
    kept = netcl.runtime.KernelCapture()
    kept.begin()
    schedule.step()
    kept.end()
    assert schedule.get_last_lr() == [0.5]


def test_sizes_whose_products_overflow_are_refused():
    found = raised("""
        nn.DepthwiseConv2d(3, 2**32)
        nn.LSTMCell(3, 2**63 - 1)
        nn.MultiheadAttention(2**62, 1)
        nn.ParameterList(huge)
        nn.build_sequential_from_json(0)
        netcl.data.augment.MixUp(2**40)(np.ones((4, 1, 2, 2), np.float32), np.arange(4))
    """)
    assert [line.partition(":")[0] for line in found] == ["ValueError"] * 3 + ["TypeError"] * 2 + ["ValueError"]
