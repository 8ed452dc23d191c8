"""Batches on a device: uploads and random changes. (That every transform agrees with the host's is tested in Rust.)"""

from collections import namedtuple

import numpy as np
import pytest
from conftest import find_device_selectors

from netcl import IndexTensor, Tensor, ops
from netcl._netcl.data import Uploader
from netcl.core.device import manager
from netcl.data import DataLoader, augment
from netcl.data.augment_gpu import AugmentGPU, cutmix, mixup

TRANSFORMS = [
    augment.RandomCrop((8, 6), padding=2, padding_mode="reflect"),
    augment.RandomHorizontalFlip(),
    augment.RandomVerticalFlip(),
    augment.CenterCrop(7),
    augment.RandomResizedCrop(8, scale=(0.3, 1.0)),
    augment.RandomRotation(20, padding_mode="edge"),
    augment.RandomAffine(5.0, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=3.0, fill=0.5),
    augment.ColorJitter(0.4, 0.4, 0.4, 0.1),
    augment.GaussianBlur(3),
    augment.RandomErasing(0.5, scale=(0.1, 0.3)),
    augment.Cutout(3, 0.25),
    augment.RandAugment(2, 9),
    augment.Normalize([0.5, 0.4, 0.3], [0.2, 0.25, 0.3]),
]


@pytest.fixture(params=find_device_selectors())
def queue(request):
    return manager.default(request.param).queue


def images(queue, count=6):
    return Tensor.from_host(queue, np.random.default_rng(0).random((count, 3, 9, 11)))


def test_all_devices_make_the_same_images(queue):
    change = AugmentGPU(TRANSFORMS, seed=3)
    changed = change(images(queue), epoch=2, indices=np.array([5, 1, 9, 2, 0, 77]))
    assert changed.shape == (6, 3, 8, 8) and changed.dtype == "float32"
    reference = change(images(manager.default("cpu").queue), 2, [5, 1, 9, 2, 0, 77]).to_host()
    np.testing.assert_allclose(changed.to_host(), reference, atol=1e-5)
    # By the numbers, not by the place in the batch.
    turned = Tensor.from_host(queue, images(queue).to_host()[::-1].copy())
    back = change(turned, epoch=2, indices=[77, 0, 2, 9, 1, 5]).to_host()[::-1]
    np.testing.assert_array_equal(back, changed.to_host())
    assert (change(images(queue), 3, [5, 1, 9, 2, 0, 77]).to_host() != changed.to_host()).any()


def test_mixing(queue):
    batch, labels = images(queue, 4), ops.one_hot([0, 1, 2, 1], 3, queue=queue)
    before = batch.to_host()
    mixed, shares = mixup(batch, labels, seed=1)
    part = shares.to_host()[0, 0]
    np.testing.assert_allclose(mixed.to_host()[1], part * before[1] + (1 - part) * before[0], atol=1e-6)
    mixed, shares = cutmix(batch, labels, seed=4)
    own = (mixed.to_host()[1] == before[1]).mean()
    assert shares.to_host()[1, 1] == pytest.approx(own, abs=1e-6) and shares.to_host().sum() == pytest.approx(4)


def test_the_host_makes_the_same_images(queue):
    batch = images(queue)
    changed = AugmentGPU(TRANSFORMS, seed=3)(batch, epoch=0).to_host()
    loader = DataLoader(list(batch.to_host()), batch_size=6, transforms=TRANSFORMS, seed=3)
    np.testing.assert_allclose(changed, next(iter(loader)), atol=1e-5)


def test_wrong_settings_are_named():
    with pytest.raises(TypeError, match="AugmentGPU takes transforms of netcl.data.augment, not a function"):
        AugmentGPU([lambda image: image])
    with pytest.raises(TypeError, match="not a str"):
        AugmentGPU("flip")
    with pytest.raises(TypeError, match="Resize belongs into the loader"):
        AugmentGPU([augment.Resize(4)])
    queue = manager.default("cpu").queue
    with pytest.raises(ValueError, match="2 images need as many indices, got 1"):
        AugmentGPU([])(images(queue, 2), 0, [1])
    with pytest.raises(ValueError, match="alpha must be above 0"):
        mixup(images(queue), ops.one_hot([0] * 6, 3, queue=queue), alpha=0.0)


def test_gradients_are_not_lost_silently():
    x = Tensor.from_host(manager.default("cpu").queue, np.ones((1, 1, 2, 2), np.float32))
    x.requires_grad = True
    with pytest.raises(Exception, match="augment"):
        AugmentGPU([augment.Cutout(1)])(x).sum().backward()


def test_uploads_keep_the_form_of_a_batch(queue):
    Pair = namedtuple("Pair", "image label")
    uploader = Uploader(queue)
    for i in range(5):  # more than there is staging memory for
        rng = np.random.default_rng(i)
        picture = rng.integers(0, 256, (2, 1, 3, 4)).astype(np.uint8)
        x = rng.random((2, 5), np.float32)
        batch = {"a": [x, "text", None], "p": Pair(picture, np.array([3, 4], np.int16)), 7: (np.array([True]), 1.5)}
        sent = uploader.upload(batch)
        np.testing.assert_array_equal(sent["a"][0].to_host(), x)
        assert sent["a"][1:] == ["text", None] and type(sent["p"]) is Pair and type(sent[7]) is tuple
        np.testing.assert_array_equal(sent["p"].image.to_host(), picture)
        assert sent["p"].image.shape == (2, 1, 3, 4) and sent["p"].image.dtype == "float32"
        assert type(sent["p"].label) is IndexTensor and sent["p"].label.to_host().tolist() == [3, 4]
        assert sent[7][0].to_host().tolist() == [1] and sent[7][1] == 1.5
    with pytest.raises(TypeError, match="complex"):
        uploader.upload([np.ones(3, complex)])
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        uploader.upload(loop)
