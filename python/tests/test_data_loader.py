"""The loader: orders, batches, resuming, exceptions, samplers, devices."""

from __future__ import annotations

import collections
import pickle
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest

import netcl
from netcl.core.device import manager
from netcl.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    LengthBatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    digits,
)
from netcl.data.augment import MixUp, Normalize, RandomCrop, RandomHorizontalFlip


class Numbers:
    """A data set in Python: samples are their numbers."""

    def __init__(self, length: int = 50):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def flat(batches) -> list[int]:
    return [int(number) for batch in batches for number in batch]


@pytest.fixture(params=["python", "rust"])
def numbers(request):
    """Samples that are their numbers, read by Python code or without it."""
    return Numbers(50) if request.param == "python" else np.arange(50)


# ---- orders ---------------------------------------------------------------------------------------------------------


def test_the_order_is_the_seeds_whatever_the_workers(numbers):
    orders = [[flat(loader) for _ in range(2)] for loader in (DataLoader(numbers, 7, True, w, seed=3) for w in (0, 1, 4))]
    assert orders[0] == orders[1] == orders[2]
    first, second = orders[0]
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    assert flat(DataLoader(numbers, 7, True, seed=4)) != first
    assert flat(DataLoader(numbers, 7)) == list(range(50))


def test_python_and_rust_data_sets_have_one_order_and_one_content():
    images = digits()
    python = [images[index] for index in range(200)]
    rust = Subset(images, range(200))
    for (x, y), (u, v) in zip(DataLoader(python, 16, True, 2, seed=1), DataLoader(rust, 16, True, 2, seed=1), strict=True):
        assert x.dtype == u.dtype and y.dtype == v.dtype
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)


def test_random_changes_do_not_depend_on_workers_or_batches():
    images = Subset(digits(), range(60))

    def noisy(image, seed):
        return image + np.random.default_rng(seed).random(image.shape, np.float32)

    transforms = [RandomCrop(8, padding=2), RandomHorizontalFlip(), noisy, Normalize(0.5, 0.25)]
    runs = [
        np.concatenate([x for x, _ in DataLoader(images, size, True, workers, transforms, seed=9)])
        for size, workers in [(60, 0), (7, 3), (1, 2)]
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])
    again = np.concatenate([x for x, _ in DataLoader(images, 60, True, 0, transforms, seed=10)])
    assert not np.array_equal(runs[0], again)


def test_epochs_are_counted_and_set(numbers):
    loader = DataLoader(numbers, 7, True)
    epochs = [flat(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert flat(loader) == epochs[1] and flat(loader) == epochs[2]
    with pytest.raises(ValueError, match="whole number"):
        loader.set_epoch(-1)


def test_workers_keep_their_own_values():
    local = threading.local()

    class Set(Numbers):
        def __getitem__(self, index):
            local.count = getattr(local, "count", 0) + 1
            return local.count

    assert sum(DataLoader(Set(40), 40, num_workers=1)).max() == 40


def test_two_iterators_at_once_are_two_epochs(numbers):
    loader = DataLoader(numbers, 7, True, 2)
    expected = [flat(loader), flat(loader)]
    loader.set_epoch(0)
    pairs = list(zip(loader, loader))
    assert [flat(batches) for batches in zip(*pairs)] == expected


def test_lengths(numbers):
    assert len(DataLoader(numbers, 7)) == 8 and len(DataLoader(numbers, 7, drop_last=True)) == 7
    assert len(list(DataLoader(numbers, 7, drop_last=True))) == 7
    assert len(DataLoader(numbers, batch_sampler=[[1, 2], [3]])) == 2
    assert len(DataLoader(numbers, 4, sampler=range(9))) == 3
    with pytest.raises(TypeError):
        len(DataLoader(iter(range(3))))


# ---- batches --------------------------------------------------------------------------------------------------------

Point = collections.namedtuple("Point", ["x", "y"])


def nested(index: int):
    return {
        "image": np.full((2, 3), index, np.float32),
        "label": index,
        "weight": index / 2,
        "kept": index % 2 == 0,
        "name": f"n{index}",
        "pair": (np.int16(index), [np.float64(index), Point(index, np.arange(2, dtype=np.uint8))]),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_nested_samples_become_nested_batches(workers):
    for number, batch in enumerate(DataLoader([nested(i) for i in range(6)], 3, num_workers=workers)):
        of = np.arange(3 * number, 3 * number + 3)
        assert list(batch) == ["image", "label", "weight", "kept", "name", "pair"]
        np.testing.assert_array_equal(batch["image"], np.stack([np.full((2, 3), i) for i in of]))
        np.testing.assert_array_equal(batch["label"], of)
        assert [batch[name].dtype for name in ("image", "label", "weight", "kept")] == ["float32", "int64", "float64", "bool"]
        assert batch["name"] == [f"n{i}" for i in of]
        assert type(batch["pair"]) is tuple and type(batch["pair"][1]) is list and type(batch["pair"][1][1]) is Point
        assert batch["pair"][0].dtype == np.int16 and batch["pair"][1][0].dtype == np.float64
        np.testing.assert_array_equal(batch["pair"][1][1].y, [[0, 1]] * 3)


def test_arrays_of_every_dtype_arrive_as_they_are():
    for dtype in "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split():
        x = np.arange(24).reshape(4, 3, 2).astype(dtype)
        for array in (x, np.asfortranarray(x), x[::-1], np.zeros((4, 0), dtype)):
            batch = np.concatenate([rows for (rows,) in DataLoader(TensorDataset(array), 3)])
            assert batch.dtype == array.dtype
            np.testing.assert_array_equal(batch, array)
            assert batch.flags.writeable
        assert str(next(iter(DataLoader(x, 2))).dtype) == dtype
    named = next(iter(DataLoader(TensorDataset(x=np.zeros((2, 3)), y=np.ones(2)), 2)))
    assert named["x"].shape == (2, 3) and named["y"].shape == (2,)


def test_an_array_that_no_sample_can_be_of_is_left_to_python():
    texts = np.array(["a", "bc", "d"])
    assert list(DataLoader(texts, 2))[1].tolist() == ["d"]
    big = np.arange(4, dtype=">i4")
    assert flat(DataLoader(big, 2)) == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="TensorDataset: an array of dtype"):
        TensorDataset(np.array([object()]))


def test_a_batch_outlives_its_loader():
    x, _ = next(iter(DataLoader(digits(), 8)))
    copy = x.copy()
    for _ in DataLoader(digits(), 8):
        pass
    np.testing.assert_array_equal(x, copy)


def test_collate_fn_gets_the_samples(numbers):
    batches = list(DataLoader(numbers, 20, num_workers=2, collate_fn=lambda samples: (len(samples), sum(samples))))
    assert batches == [(20, 190), (20, 590), (10, 445)]


def test_samples_that_do_not_fit_together_are_named():
    for samples, text in [
        ([np.zeros(2), np.zeros(3)], r"different shapes: \[\(2,\), \(3,\)\]"),
        ([(1, 2), (1,)], "different numbers of fields"),
        ([{"a": 1}, {"b": 1}], "one lacks 'a'"),
        ([None, None], "hold a NoneType"),
    ]:
        with pytest.raises((ValueError, TypeError), match=text) as caught:
            next(iter(DataLoader(samples, 2)))
        assert caught.value.__notes__ == ["netcl.data: the batch of samples 0, 1"]
    with pytest.raises(ValueError, match="different shapes"):
        default_collate([np.zeros(2), np.zeros(3)])


def test_a_subclass_with_its_own_getitem_is_asked():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)[0] * 2

    assert flat(DataLoader(Doubled(np.arange(5)), 2)) == [0, 2, 4, 6, 8]
    assert flat(DataLoader(Subset(Doubled(np.arange(5)), [1, 3]), 2)) == [2, 6]
    assert flat(DataLoader(ConcatDataset([np.arange(2), Doubled(np.arange(2))]), 3)) == [0, 1, 0, 2]


# ---- streams --------------------------------------------------------------------------------------------------------


class Stream:
    def __init__(self):
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(100 * self.epoch, 100 * self.epoch + 10))


@pytest.mark.parametrize("workers", [0, 3])
def test_iterables_are_batched_in_their_order(workers):
    loader = DataLoader(Stream(), 4, num_workers=workers, transforms=lambda x: x + 1)
    assert [batch.tolist() for batch in loader] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert flat(loader) == list(range(101, 111))
    assert len(list(DataLoader(Stream(), 4, drop_last=True))) == 2
    batches = iter(loader)
    next(batches)
    other = DataLoader(Stream(), 3)
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [[204, 205, 206], [207, 208, 209]]
    with pytest.raises(ValueError, match="decides its order itself"):
        DataLoader(Stream(), shuffle=True)


def test_what_a_stream_raises_comes_after_its_samples():
    def broken():
        yield from range(3)
        raise OSError("the disk is gone")

    batches = iter(DataLoader(broken(), 3, num_workers=2))
    assert next(batches).tolist() == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert list(batches) == []


# ---- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 3])
def test_a_run_goes_on_to_the_sample(numbers, workers):
    whole = DataLoader(numbers, 4, True, seed=5)
    expected = flat(whole) + flat(whole) + flat(whole)
    loader = DataLoader(numbers, 4, True, workers, seed=5)
    had = flat(loader)
    for number, batch in enumerate(loader):
        had += flat([batch])
        if number == 3:
            break
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert state == {"seed": 5, "epoch": 1, "samples": 16}
    # With another batch size, in another process if need be.
    resumed = DataLoader(numbers, 6, True, workers, seed=5)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert had + flat(resumed) + flat(resumed) == expected
    assert resumed.state_dict() == {"seed": 5, "epoch": 3, "samples": 0}
    with pytest.raises(ValueError, match="with the seed 5, this one has 6"):
        DataLoader(numbers, 4, True, seed=6).load_state_dict(state)


def test_samplers_of_all_kinds_resume():
    lengths = [1 + i % 9 for i in range(50)]
    cases = [
        dict(batch_sampler=LengthBatchSampler(lengths, 4, seed=2)),
        dict(batch_sampler=[[1, 2, 3], [4], [5, 6]]),
        dict(batch_size=4, sampler=range(0, 50, 3)),
        dict(batch_size=4, sampler=DistributedSampler(50, 1, 3, seed=2)),
    ]
    for options in cases:
        loader = DataLoader(np.arange(50), **options)
        whole = flat(loader)
        loader.set_epoch(0)
        had = flat([next(iter(loader))])
        other = DataLoader(np.arange(50), num_workers=2, **options)
        other.load_state_dict(loader.state_dict())
        assert had + flat(other) == whole


# ---- samplers -------------------------------------------------------------------------------------------------------


def test_samplers():
    assert list(SequentialSampler(4)) == [0, 1, 2, 3]
    random = RandomSampler([0] * 30, seed=1)
    first = list(random)
    random.set_epoch(1)
    assert sorted(random) == list(range(30)) and list(random) != first and len(random) == 30
    drawn = list(WeightedRandomSampler([0, 3, 1], 4000, seed=1))
    assert drawn.count(0) == 0 and 2800 < drawn.count(1) < 3200
    shares = [list(DistributedSampler(10, rank, 3, seed=1)) for rank in range(3)]
    assert [len(share) for share in shares] == [4, 4, 4] and set().union(*shares) == set(range(10))
    assert len(DistributedSampler(10, 0, 3, drop_last=True)) == 3
    assert list(DistributedSampler(SequentialSampler(4), 1, 2)) == [1, 3]
    assert list(BatchSampler(SequentialSampler(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    for batch in LengthBatchSampler(list(range(100)), 10, group=100):
        assert max(batch) - min(batch) == 9
    with pytest.raises(ValueError, match="rank 3 is not below"):
        DistributedSampler(10, 3, 3)
    with pytest.raises(ValueError, match="weight -1 of sample 1"):
        WeightedRandomSampler([1, -1], 2)
    with pytest.raises(MemoryError):
        RandomSampler(2**50)


def test_a_sampler_in_python_is_told_the_epoch_and_may_be_lazy():
    class Own:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            while True:
                yield self.epoch

    loader = DataLoader(np.arange(5), 2, num_workers=2, sampler=Own())
    assert flat([next(iter(loader))]) == [0, 0] and flat([next(iter(loader))]) == [1, 1]
    loader.close()


def test_what_a_sampler_raises_or_gives_wrong_is_raised(numbers):
    def broken():
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        list(DataLoader(numbers, 1, num_workers=2, sampler=broken()))
    with pytest.raises(TypeError, match=r"0 or more; this one gave \[-1\]"):
        list(DataLoader(numbers, 1, sampler=[-1]))
    with pytest.raises(TypeError, match="gave"):
        list(DataLoader(numbers, 1, num_workers=1, batch_sampler=[["a"]]))


# ---- exceptions -----------------------------------------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["dataset", "transform", "collate"])
def test_an_exception_keeps_its_type_and_traceback_and_names_the_sample(workers, where):
    def culprit(index):
        if index == 5:
            raise Odd("five", index)
        return index

    class Set(Numbers):
        def __getitem__(self, index):
            return culprit(index) if where == "dataset" else index

    options = {}
    if where == "transform":
        options["transforms"] = culprit
    if where == "collate":
        options["collate_fn"] = lambda samples: default_collate([culprit(sample) for sample in samples])
    batches = iter(DataLoader(Set(9), 2, num_workers=workers, **options))
    assert next(batches).tolist() == [0, 1] and next(batches).tolist() == [2, 3]
    with pytest.raises(Odd) as caught:
        next(batches)
    assert caught.value.args == ("five", 5)
    assert caught.value.__notes__ == ["netcl.data: " + ("the batch of samples 4, 5" if where == "collate" else "sample 5")]
    assert "culprit" in [entry.name for entry in caught.traceback]
    assert flat(batches) == [6, 7, 8]


def test_errors_of_rust_code_name_the_sample():
    with pytest.raises(IndexError, match="sample 7: there is no sample 7|there is no sample 7"):
        list(DataLoader(np.arange(5), 1, num_workers=1, sampler=[7]))
    with pytest.raises(ValueError, match=r"sample 3: .*channels"):
        list(DataLoader(digits(), 1, transforms=Normalize([0.5] * 3, [0.5] * 3), sampler=[3]))


def test_stop_iteration_does_not_end_the_epoch():
    class Set(Numbers):
        def __getitem__(self, index):
            return next(iter(())) if index == 1 else index

    batches = iter(DataLoader(Set(3), 1, num_workers=1))
    next(batches)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(batches)
    assert next(batches).tolist() == [2]


def test_a_batch_that_does_not_come_in_time():
    gate = threading.Event()

    class Set(Numbers):
        def __getitem__(self, index):
            gate.wait(10)
            return index

    batches = iter(DataLoader(Set(3), 1, num_workers=1, timeout=0.1))
    with pytest.raises(TimeoutError, match=r"batch 0 did not arrive within 0.1 s"):
        next(batches)
    gate.set()
    assert next(batches).tolist() == [0]


def test_an_iterator_must_not_ask_itself():
    class Set(Numbers):
        def __getitem__(self, index):
            return next(batches)

    batches = iter(DataLoader(Set(3), 1))
    with pytest.raises(RuntimeError, match="this iterator is in use"):
        next(batches)


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(batch_size=0), "batch_size"),
        (dict(num_workers=-1), "num_workers"),
        (dict(num_workers=5000), "too many"),
        (dict(prefetch=0), "prefetch"),
        (dict(seed=-1), "seed"),
        (dict(timeout=-1), "timeout"),
        (dict(workers="fork"), "'thread' or 'process'"),
        (dict(shuffle=True, sampler=[0]), "a sampler decides the order"),
        (dict(batch_size=2, batch_sampler=[[0]]), "a batch_sampler decides"),
        (dict(transforms=[MixUp(10), Normalize(0.5, 0.5)]), "change whole batches"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        iter(DataLoader(Numbers(), **options))


def test_what_is_no_data_set_is_refused():
    with pytest.raises(TypeError, match="a int is no data set"):
        DataLoader(5)
    with pytest.raises(TypeError, match="a transform is a function"):
        DataLoader([1], transforms=[3])


# ---- workers --------------------------------------------------------------------------------------------------------


def test_workers_end_with_their_epoch():
    def threads():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads"))

    before = threads()
    loader = DataLoader(Numbers(1000), 2, num_workers=4)
    with loader:
        batches = iter(loader)
        next(batches)
        assert threads() >= before + 4
    deadline = time.monotonic() + 5
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before
    assert list(batches) == []


def test_a_loader_that_is_closed_ends_a_wait_in_another_thread():
    gate = threading.Event()

    class Set(Numbers):
        def __getitem__(self, index):
            gate.wait(10)
            return index

    loader, got = DataLoader(Set(9), 1, num_workers=1), []
    waiting = threading.Thread(target=lambda: got.extend(loader))
    waiting.start()
    time.sleep(0.05)
    closing = threading.Thread(target=loader.close)
    closing.start()
    waiting.join(5)
    assert not waiting.is_alive() and got == []
    gate.set()
    closing.join(5)
    assert not closing.is_alive()


def test_processes_are_asked_for_the_same_batches(monkeypatch):
    """The loader's part of it: which batches, what is counted, when the processes end."""
    made = []

    class Workers:
        def __init__(self, dataset, collate, transforms, seed, num_workers, prefetch, timeout):
            self.dataset, self.collate, self.closed = dataset, collate, False
            made.append(self)

        def batches(self, epoch, lists):
            for indices in lists:
                if 13 in indices:
                    raise LookupError
                yield self.collate([self.dataset[index] for index in indices])

        def close(self):
            self.closed = True

    monkeypatch.setitem(sys.modules, "netcl.data._processes", types.SimpleNamespace(ProcessWorkers=Workers))
    options = dict(batch_size=4, shuffle=True, num_workers=2, seed=3, workers="process")
    loader = DataLoader(Numbers(12), **options)
    threads = DataLoader(Numbers(12), **{**options, "workers": "thread"})
    assert flat(loader) == flat(threads) and made[0].closed and flat(loader) == flat(threads)
    batches = iter(loader)
    had = flat([next(batches)])
    assert loader.state_dict() == {"seed": 3, "epoch": 2, "samples": 4}
    del batches
    assert made[2].closed
    kept = DataLoader(Numbers(12), **options, persistent_workers=True)
    kept.load_state_dict(loader.state_dict())
    assert had + flat(kept) == flat(threads) and flat(kept) == flat(threads)
    assert len(made) == 4 and not made[3].closed
    kept.close()
    assert made[3].closed


def test_a_thousand_batches_leave_nothing_behind():
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    loaders = [
        DataLoader(np.zeros((64, 1000)), 8, True, 2),
        DataLoader([np.zeros(1000) for _ in range(64)], 8, True, 2),
        DataLoader(Subset(digits(), range(200)), 16, True, 2, [RandomCrop(8, padding=2), lambda x: x * 2]),
    ]

    def run(epochs):
        for loader in loaders:
            for _ in range(epochs):
                for _ in loader:
                    pass
            for _ in range(epochs):
                next(iter(loader))

    run(5)
    before = resident()
    run(45)
    assert resident() - before < 8 << 20


def test_threads_that_the_lock_holds_up_are_told_of_processes(monkeypatch):
    from netcl.data import dataloader

    class Slow(Numbers):
        def __getitem__(self, index):
            return sum(range(20_000))

    class Waiting(Numbers):
        def __getitem__(self, index):
            time.sleep(0.01)
            return index

    def warned(dataset, seconds):
        monkeypatch.setattr(dataloader, "_warned", False)
        monkeypatch.setattr(dataloader, "_LOOK", 0.3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            end = time.monotonic() + seconds
            for _ in DataLoader(dataset, 16, num_workers=3):
                if time.monotonic() > end or caught:
                    break
        return [str(warning.message) for warning in caught]

    texts = warned(Slow(10**6), 10)
    assert (
        len(texts) == 1 and "3 worker threads make batches no faster than one" in texts[0] and "workers='process'" in texts[0]
    )
    assert warned(Waiting(10**6), 0.5) == []


# ---- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", ["cpu", "0"])
def test_batches_arrive_on_the_device(selector, device_selectors):
    if selector not in device_selectors:
        pytest.skip("no such device")
    queue = manager.default(selector).queue
    samples = [{"x": np.full((2,), i, np.float32), "y": i, "name": "n"} for i in range(6)]
    for loader in (DataLoader(samples, 3, device_queue=queue), DataLoader(samples, 3, num_workers=2).bind_queue(queue)):
        for number, batch in enumerate(loader):
            assert isinstance(batch["x"], netcl.Tensor) and isinstance(batch["y"], netcl.IndexTensor)
            assert batch["x"].queue == queue and batch["name"] == ["n"] * 3
            np.testing.assert_array_equal(batch["y"].to_host(), np.arange(3 * number, 3 * number + 3))
    images, _ = next(iter(DataLoader(digits(), 4, device_queue=queue)))
    assert images.shape == (4, 1, 8, 8) and float(np.asarray(images.to_host()).max()) == 255.0


@pytest.mark.parametrize("selector", ["cpu", "0"])
def test_a_loader_with_workers_after_a_context_exists_trains(selector, device_selectors):
    """What the FAQ warns of, and the loop of the architecture page."""
    if selector not in device_selectors:
        pytest.skip("no such device")
    import netcl.autograd as ag
    from netcl import nn, optim
    from netcl.core.tensor import Tensor

    queue = manager.default(selector).queue
    Tensor.from_host(queue, np.zeros(4, np.float32))
    netcl.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(queue, 64, 10))
    opt = optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(digits(), batch_size=128, shuffle=True, num_workers=2, transforms=Normalize(0.5, 0.5), seed=1)
    losses = []
    for _ in range(2):
        for x, y in loader:
            x_t = Tensor.from_host(queue, x)
            y_t = Tensor.from_host(queue, y)
            with ag.Tape() as tape:
                loss = ag.cross_entropy(model(x_t), y_t)
            tape.backward(loss)
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


class Pairs:
    """Tensors that Python code makes."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return netcl.full((2,), float(index), device="cpu"), index


def test_samples_of_tensors_give_tensors():
    x, y = netcl.arange(12, device="cpu").float().view(6, 2), netcl.arange(6, device="cpu")
    whole = TensorDataset(x, y)
    for dataset in (whole, Subset(whole, range(6)), ConcatDataset([whole])):
        (a, b), (c, d) = DataLoader(dataset, batch_size=4)
        assert (a.dtype, b.dtype, a.device == "cpu") == ("float32", "int64", True)
        assert a.tolist() == x[:4].tolist() and d.tolist() == [4, 5] and c.requires_grad is False
    for workers in (0, 2):
        batches = list(DataLoader(Pairs(), batch_size=3, num_workers=workers))
        # Arrays have the same methods.
        assert all(isinstance(a, netcl.Tensor) and isinstance(b, netcl.IndexTensor) for a, b in batches)
        assert [a.tolist() for a, _ in batches] == [[[0, 0], [1, 1], [2, 2]], [[3, 3], [4, 4]]]
        assert [b.tolist() for _, b in batches] == [[0, 1, 2], [3, 4]]
    assert type(next(iter(DataLoader(np.ones((4, 2)), batch_size=2)))) is np.ndarray
    assert pickle.loads(pickle.dumps(whole))[1][0].tolist() == [2, 3]
