"""``netcl.utils.checkpoint``: gradients of the plain run, to the bit, with less memory."""

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl.autograd as ag
from netcl import Tensor, manual_seed
from netcl.core.device import manager
from netcl.nn import GELU, Dropout, Linear, Sequential
from netcl.utils.checkpoint import checkpoint


@pytest.mark.parametrize("selector", find_device_selectors())
def test_the_same_gradients_and_random_numbers(selector):
    queue = manager.default(selector).queue
    x = Tensor.from_host(queue, np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32))
    results = []
    for wrapped in (False, True):
        manual_seed(3)
        blocks = [Sequential(Linear(queue, 6, 6), GELU(), Dropout(0.4)) for _ in range(3)]
        y = leaf = ag.tensor(x)
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False) if wrapped else block(y)
        ag.sum(y * y).backward()
        parameters = [p for block in blocks for p in block.parameters()]
        results.append([y.to_host(), leaf.grad.to_host(), *(p.grad.to_host() for p in parameters)])
    for ours, plain in zip(results[1], results[0]):
        np.testing.assert_array_equal(ours, plain)


def test_random_numbers_always_repeat():
    with pytest.raises(ValueError, match="preserve_rng_state"):
        checkpoint(ag.exp, ag.tensor([1.0]), preserve_rng_state=False)
