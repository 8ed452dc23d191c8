"""Data sets, the loader, and changes of samples on the host and on the device."""

from netcl.data import augment, augment_gpu, filters
from netcl.data.dataloader import *
from netcl.data.dataset import *
from netcl.data.sampler import *

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "BatchSampler",
    "CharTokenizer",
    "ConcatDataset",
    "CsvTable",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FashionMNIST",
    "ImageDataset",
    "ImageFolder",
    "IterableDataset",
    "LengthBatchSampler",
    "NpyDataset",
    "NpzDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TextDataset",
    "WeightedRandomSampler",
    "augment",
    "augment_gpu",
    "default_collate",
    "digits",
    "filters",
    "idx",
    "random_split",
    "read_text",
]
