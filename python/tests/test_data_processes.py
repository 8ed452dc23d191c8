"""The ring of batches in shared memory, and the loader's worker processes."""

from __future__ import annotations

import doctest
import gc
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import typing
from pathlib import Path

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("shared batches need Linux", allow_module_level=True)

from netcl._netcl.data import BatchRing
from netcl.data import DataLoader, augment, shared_batch
from netcl.data._processes import ProcessWorkers
from netcl.data.shared_batch import SharedBatchRing

SOON = 20.0


def children() -> set[int]:
    """The processes that this one has started and not waited for."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(condition) -> bool:
    end = time.monotonic() + SOON
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No test leaves a process, a descriptor or a name in /dev/shm behind."""
    before = children(), set(os.listdir("/dev/shm"))
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert (children(), set(os.listdir("/dev/shm"))) == before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


# ---- the ring -------------------------------------------------------------------------------------------------------


class Pair(typing.NamedTuple):
    image: np.ndarray
    label: int


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def test_every_kind_of_field_comes_back():
    batch = {
        "pair": (np.arange(6, dtype=np.float32).reshape(2, 3), [1, 2.5, None, True, "é", 10**30, float("inf")]),
        3: np.array(7, np.int64),
        "strided": np.arange(12).reshape(3, 4).T[::2],
        "empty": np.zeros((0, 5), np.float16),
        "other": [np.array(["a", "bc"]), np.array(["2020-01-01"], "M8[D]"), np.ones(2, np.complex64), b"\0\1"],
        "number": np.float32(0.5),
        "swapped": np.arange(3, dtype=">i4").astype("<i4"),
        "nothing": ((), [], {}),
        "named": Pair(np.ones(2), 3),
    }
    with SharedBatchRing(2, 1 << 16) as ring:
        assert ring.put(batch)
        assert same(ring.get(timeout=SOON), batch)
        ring.put(np.arange(3, dtype=">i4"))
        assert ring.get(SOON).tolist() == [0, 1, 2]


def test_arrays_are_the_slot_and_give_it_back_when_they_are_gone():
    ring = SharedBatchRing(1, 4096)
    other = SharedBatchRing.open(ring.path)
    ring.put([np.zeros(4, np.int32), np.zeros(3)])
    first, second = other.get(SOON)
    assert other.counts() == {"free": 0, "writing": 0, "ready": 0, "reading": 1}
    assert first.ctypes.data % 64 == 0 and first.flags.writeable and not ring.put(0, timeout=0.01)
    view = second[1:]
    del first, second
    assert not ring.put(0, timeout=0)
    other.close()
    assert view.tolist() == [0, 0]
    del view
    assert ring.put(0, timeout=0)
    assert ring.get(0) == 0


def test_what_the_ring_refuses():
    ring = SharedBatchRing(slots=1, slot_bytes=4096)
    with pytest.raises(
        ValueError, match=r"a batch of 8064 bytes does not fit into a slot of 4096; make the ring with slot_bytes=8192"
    ):
        ring.put(np.zeros(1000))
    for batch, text in [
        ([object()], r"batch\[0\] is an object of type object"),
        ({"a": np.array([None])}, r"batch\['a'\] is an array of dtype object"),
        ({(1, 2): 0}, r"has the key \(1, 2\)"),
        ({1, 2}, "type set"),
    ]:
        with pytest.raises(TypeError, match=text):
            ring.put(batch)
    with pytest.raises(TimeoutError, match="within 0.01 s"):
        ring.get(0.01)
    with pytest.raises(ValueError, match="timeout of -1"):
        ring.get(-1)
    for slots, size in [(0, 1), (1, 0), (10**9, 1), (1, 2**62)]:
        with pytest.raises(ValueError, match="SharedBatchRing"):
            SharedBatchRing(slots, size)
    with pytest.raises(FileNotFoundError):
        SharedBatchRing.open("/proc/self/fd/54321")
    ring.close()
    assert repr(ring) == "SharedBatchRing(closed)"
    with pytest.raises(ValueError, match="closed"):
        ring.put(1)


@pytest.mark.parametrize(
    "header",
    [
        {"array": ["<f4", [17], 0]},
        {"array": ["<f4", [1], 61]},
        {"array": ["<f4", [1], -8]},
        {"array": ["<f4", [-16], 0]},
        {"array": ["<f4", [-4, -4], 0]},
        {"array": ["<f8", [2**40, 2**40], 0]},
        {"array": ["|O", [1], 0]},
        {"array": ["O,i4", [1], 0]},
        {"array": ["no", [1], 0]},
        {"array": "x"},
        {"bytes": [65, 0]},
        {"bytes": [-1, 0]},
        {"dict": [[1]]},
        {"pickle": []},
        {"named": [["m", "n", ["a", "b"]], [1]]},
        {"named": ["x", []]},
        {"a": 1, "b": 2},
        {},
    ],
)
def test_damaged_headers_reach_nothing_outside_of_their_batch(header):
    ring = SharedBatchRing(1, 4096)
    ring._ring.put(json.dumps(header).encode(), [(0, np.zeros(64, np.uint8))])
    with pytest.raises(ValueError, match="holds no batch"):
        ring.get(SOON)
    gc.collect()
    assert ring.counts()["free"] == 1


def test_headers_that_are_no_json():
    ring = BatchRing(1, 1 << 20)
    outer = SharedBatchRing.open(ring.path)
    for header in [b"", b"\xff", b"[" * 100_000]:
        ring.put(header, [], 0)
        with pytest.raises(ValueError, match="holds no batch"):
            outer.get(SOON)


def test_slots_of_a_process_that_died_are_taken_back():
    ring = SharedBatchRing(1, 4096)
    ring.put(np.ones(3))
    code = "import sys, time; from netcl.data.shared_batch import SharedBatchRing as R; ring = R.open(sys.argv[1]); x = ring.get(5); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, ring.path], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"\n"
        assert not ring.put(0, timeout=0.2)
        reader.kill()
        assert ring.put(np.zeros(2), timeout=SOON)
    assert ring.get(SOON).tolist() == [0, 0]


def test_the_documentation_runs():
    result = doctest.testmod(shared_batch)
    assert result.attempted > 3
    assert not result.failed


# ---- worker processes -----------------------------------------------------------------------------------------------


class Fussy(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Samples:
    """Rows of an array, and what goes wrong on request."""

    def __init__(self):
        self.rows = np.arange(4000, dtype=np.float32).reshape(1000, 4)

    def __len__(self):
        return 1010

    def __getitem__(self, index: int):
        if index == 1001:
            raise KeyError("no such sample")
        if index == 1002:
            raise Fussy("this", "that")
        if index == 1004:
            time.sleep(60)
        if index == 1005:
            sys.exit(3)
        return self.rows[index] * 2, index, random.random() + np.random.rand()


class Images:
    """Named tuples of images and labels."""

    def __len__(self):
        return 40

    def __getitem__(self, index: int) -> Pair:
        return Pair(np.full((3, 8, 8), index * 5, np.uint8), index)


def noisy(image: np.ndarray, seed: int) -> np.ndarray:
    return image + np.random.default_rng(seed).random(image.shape, np.float32) / 100


def collate(samples):
    x, index, noise = zip(*samples, strict=True)
    return {"x": np.stack(x), "of": (np.array(index), [str(len(samples))]), "noise": np.array(noise)}


LISTS = [list(range(at, min(at + 7, 100))) for at in range(0, 100, 7)]


@pytest.fixture(scope="module")
def workers():
    with_two = ProcessWorkers(Samples(), collate, [], 5, 2)
    list(with_two.batches(0, [[0]]))
    yield with_two
    with_two.close()


def numbers(batches) -> list[int]:
    return [int(index) for batch in batches for index in batch["of"][0]]


def test_batches_come_in_order_and_do_not_depend_on_the_workers(workers):
    found = list(workers.batches(3, LISTS))
    assert numbers(found) == list(range(100))
    for batch, indices in zip(found, LISTS, strict=True):
        assert batch["x"].dtype == np.float32
        assert batch["x"].tolist() == [[2 * (4 * i + j) for j in range(4)] for i in indices]
        assert batch["of"][1] == [str(len(indices))]
    again = list(workers.batches(3, LISTS))
    other = list(workers.batches(4, LISTS))
    assert all((a["noise"] == b["noise"]).all() for a, b in zip(found, again, strict=True))
    assert not any((a["noise"] == b["noise"]).any() for a, b in zip(found, other, strict=True))


def test_a_loader_gives_the_same_with_processes_and_threads():
    changes = [augment.RandomCrop(8, padding=2), noisy, augment.MixUp(num_classes=40, alpha=0.4)]
    options = {"batch_size": 7, "shuffle": True, "seed": 3, "transforms": changes}
    with DataLoader(Images(), workers="process", num_workers=1, persistent_workers=True, **options) as processes:
        for _, threads in zip(range(2), [DataLoader(Images(), num_workers=2, **options)] * 2, strict=True):
            expected, found = list(threads), list(processes)
            assert len(found) == 6
            assert all(map(same, expected, found))
            assert isinstance(found[0], Pair) and type(found[0]) is type(expected[0])
        # In the middle of an epoch, to the sample.
        next(iter(processes))
        resumed = DataLoader(Images(), **options)
        resumed.load_state_dict(processes.state_dict())
        assert len(list(resumed)) == 5


def test_batches_may_be_kept_and_epochs_left(workers):
    # More than there are slots, with the first ones still right at the end.
    kept = list(workers.batches(0, [[i] for i in range(300)]))
    assert numbers(kept) == list(range(300))
    for count in (1, 5, 0):
        left = workers.batches(0, ([i] for i in range(10**9)))
        assert [numbers([next(left)]) for _ in range(count)] == [[i] for i in range(count)]
        left.close()
    assert numbers(workers.batches(0, LISTS)) == list(range(100))
    first = workers.batches(0, LISTS)
    next(first)
    assert numbers(workers.batches(0, LISTS)) == list(range(100))
    with pytest.raises(RuntimeError, match="another epoch"):
        next(first)
    assert list(workers.batches(0, [])) == []


def test_exceptions_keep_their_type_traceback_and_sample(workers):
    found = workers.batches(0, [[1, 2], [3, 1001], [4], [1002], [1005], [5]])
    assert numbers([next(found)]) == [1, 2]
    with pytest.raises(KeyError, match="no such sample") as caught:
        next(found)
    text = str(caught.value.__cause__)
    assert "in __getitem__" in text and "test_data_processes.py" in text
    assert caught.value.__notes__[0] == "netcl.data: sample 1001"
    assert caught.value.__notes__[1].startswith("netcl.data: in worker process ")
    # They have lost nobody, and the epoch goes on.
    assert numbers([next(found)]) == [4]
    with pytest.raises(RuntimeError, match="Fussy: this and that"):
        next(found)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        next(found)
    assert numbers(found) == [5]


def test_what_cannot_be_pickled_is_said_at_once():
    with pytest.raises(TypeError, match=r'cannot be pickled for worker processes: .*lambda.*use workers="thread"'):
        ProcessWorkers(Samples(), lambda samples: 0, [], 0, 1)


def test_a_killed_worker_is_reported_and_the_others_end():
    workers = ProcessWorkers(Samples(), collate, [], 0, 2)
    batches = workers.batches(0, [[0], [1], [1004], [1004], [1004]])
    assert numbers([next(batches), next(batches)]) == [0, 1]
    pids = workers.processes()
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=rf"worker process {pids[1]} was ended by the signal SIGKILL"):
        next(batches)
    assert time.monotonic() - began < 1.0
    assert workers.processes() == [] and not any(map(is_running, pids))


def test_a_batch_that_takes_too_long():
    workers = ProcessWorkers(Samples(), collate, [], 0, 1, timeout=0.3)
    with pytest.raises(TimeoutError, match=r"batch 1 did not arrive within 0.3 s"):
        list(workers.batches(0, [[0], [1004]]))


SCRIPT = """
    import sys, time, threading
    import numpy as np
    from netcl.data import DataLoader

    class Squares:  # of the main module, which workers must find again
        def __len__(self):
            return 10
        def __getitem__(self, index):
            if index == 9:
                time.sleep(60)
            return index * index

    loader = DataLoader(Squares(), 3, num_workers=1, workers="process")
"""
MAIN = """
    if __name__ == "__main__":
        batches = iter(loader)
        print(next(batches).tolist(), *batches._batches._workers.processes(), flush=True)
        list(batches)
"""


def start(folder: Path, code: str) -> subprocess.Popen:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_script(tmp_path, how):
    with start(tmp_path, SCRIPT + MAIN) as script:
        assert script.stdout is not None and script.stderr is not None
        line = script.stdout.readline()
        assert line.startswith("[0, 1, 4] "), line + script.stderr.read()
        pids = [int(pid) for pid in line.split()[3:]]
        began = time.monotonic()
        # As the terminal does: everyone gets the interrupt.
        (os.killpg if how == signal.SIGINT else os.kill)(script.pid, how)
        errors = script.stderr.read()
        script.wait(SOON)
        assert time.monotonic() - began < 2.0
        assert wait_until(lambda: not any(map(is_running, pids)))
    # The script's own, and nothing of its workers.
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT) and "_worker.py" not in errors, errors


def test_a_script_without_a_guard_is_told_so(tmp_path):
    code = SCRIPT + "\n    print(list(loader))\n"
    with start(tmp_path, code) as script:
        assert "if __name__ == '__main__':" in script.communicate(timeout=SOON)[1]
        assert script.returncode == 1
