"""PyTorch's data sets and samplers in our loader, as they are. Skipped where PyTorch is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from netcl.data import DataLoader

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")


class Squares(data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.full((2, 3), float(index)), index * index


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style(workers):
    x, y = zip(*DataLoader(Squares(), batch_size=4, num_workers=workers), strict=True)
    assert all(isinstance(batch, np.ndarray) and batch.dtype == np.float32 for batch in x)
    np.testing.assert_array_equal(np.concatenate(x)[:, 0, 0], np.arange(10))
    np.testing.assert_array_equal(np.concatenate(y), np.arange(10) ** 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterable(workers):
    assert [batch.tolist() for batch in DataLoader(Stream(), batch_size=3, num_workers=workers)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_the_same_batches_as_its_loader():
    tensors = data.TensorDataset(torch.randn(9, 4), torch.arange(9))
    sampler = data.SubsetRandomSampler(range(9), torch.Generator().manual_seed(3))
    theirs = [[field.numpy() for field in batch] for batch in data.DataLoader(tensors, batch_size=2, sampler=sampler)]
    sampler.generator.manual_seed(3)
    ours = list(DataLoader(tensors, batch_size=2, sampler=sampler))
    assert len(ours) == len(theirs)
    for batch, expected in zip(ours, theirs, strict=True):
        for field, value in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(field, value)
            assert field.dtype == value.dtype


def test_worker_processes_take_them_too():
    y = [batch[1] for batch in DataLoader(Squares(), batch_size=5, num_workers=1, workers="process")]
    np.testing.assert_array_equal(np.concatenate(y), np.arange(10) ** 2)
