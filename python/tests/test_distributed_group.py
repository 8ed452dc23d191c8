"""Collectives over ranks: threads of this process, and processes that meet in shared memory."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netcl import IndexTensor, Tensor
from netcl.core.device import manager
from netcl.distributed import Group, init, threads

SOON = 30.0
DTYPES = ["float32", "float64", "float16", "int32", "int64"]


def tensor(values: np.ndarray) -> Any:
    if values.dtype.kind == "i":
        return IndexTensor.from_host(manager.default("cpu").queue, values, dtype=str(values.dtype))
    return Tensor.from_host(manager.default("cpu").queue, values, dtype=str(values.dtype))


def on_threads(n: int, work: Callable[[Group], Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return [rank.result(SOON) for rank in [pool.submit(work, group) for group in threads(n)]]


def check_every_collective(group: Group, dtypes: list[str]) -> None:
    """All of them against NumPy; every rank knows what the others have."""
    rank, size = group.rank, group.size
    for dtype in dtypes:
        for shape in [(), (0, 3), (1,), (7, 5), (20_011,)]:
            of = [(np.arange(np.prod(shape)).reshape(shape) * (r + 3) % 13).astype(dtype) for r in range(size)]
            same = lambda x, expected: np.testing.assert_array_equal(np.asarray(x.to_host()), expected)  # noqa: E731
            for op, function in [("sum", np.sum), ("max", np.max), ("min", np.min)]:
                expected = function(of, axis=0)
                x = tensor(of[rank])
                assert group.all_reduce(x, op) is x
                same(x, expected)
                same(group.reduce(tensor(of[rank]), op, root=size - 1), expected if rank == size - 1 else of[rank])
                same(group.reduce_scatter([tensor(of[rank])] * size, op), expected)
            same(group.broadcast(tensor(of[rank]), root=1), of[1])
            for found, expected in zip(group.all_gather(tensor(of[rank])), of, strict=True):
                assert type(found) is type(tensor(of[0])) and found.dtype == dtype
                same(found, expected)
            gathered = group.gather(tensor(of[rank]))
            assert (gathered is None) == (rank != 0)
            for found, expected in zip(gathered or [], of, strict=False):
                same(found, expected)
            same(group.scatter([tensor(x) for x in of] if rank == 1 else None, root=1), of[rank])
            for sender, found in enumerate(group.all_to_all([tensor(of[(rank + to) % size]) for to in range(size)])):
                same(found, of[(sender + rank) % size])
    if "float32" in dtypes:
        mean = group.all_reduce(tensor(np.full(3, rank, np.float32)), op="mean")
        np.testing.assert_allclose(mean.to_host(), np.full(3, (size - 1) / 2))
    uneven = group.all_gather(tensor(np.full((rank, 2), rank, np.float32)))
    assert [x.shape for x in uneven] == [(r, 2) for r in range(size)]
    group.barrier()


def test_every_collective_over_threads():
    on_threads(3, lambda group: check_every_collective(group, DTYPES))


def test_a_process_that_nobody_launched_is_alone():
    group = init()
    assert (group.rank, group.size, group.kind) == (0, 1, "alone")
    assert repr(group) == 'Group(rank=0, size=1, kind="alone")'
    assert group.all_reduce(tensor(np.ones(2, np.float32)), "mean").to_host().tolist() == [1.0, 1.0]


def test_wrong_arguments_are_named():
    group = init()
    x = tensor(np.ones(2, np.float32))
    for wrong, error, text in [
        (lambda: group.all_reduce(x, "product"), ValueError, 'op "product" is unknown: use one of sum, mean, max, min'),
        (lambda: group.all_reduce(np.ones(2)), TypeError, "expected a Tensor or an IndexTensor, got ndarray"),
        (lambda: group.broadcast(x, root=1), ValueError, "there is no rank 1: the ranks are 0 to 0"),
        (lambda: group.all_to_all(x), TypeError, "give a list of 1 tensors, one for each rank"),
        (lambda: group.all_to_all([x, x]), ValueError, "more than 1 tensors for 1 ranks"),
        (lambda: group.reduce_scatter([]), ValueError, "0 tensors for 1 ranks; give one for each"),
        (lambda: threads(0), ValueError, "there may be 1 to 64"),
        (lambda: init(object()), AttributeError, "rank"),
    ]:
        with pytest.raises(error, match=text.replace("(", r"\(")):
            wrong()


def test_threads_that_disagree_learn_both_calls():
    def work(group: Group) -> str:
        with pytest.raises(ValueError) as raised:
            group.all_reduce(tensor(np.ones(3 + (group.rank == 1), np.float32)))
        group.barrier()
        return str(raised.value)

    texts = on_threads(3, work)
    assert "rank 1 called all_reduce(sum) of float32 (4,), but rank 0 called all_reduce(sum) of float32 (3,)" in texts[0]
    assert "rank 0 called" in texts[1]


def test_an_exception_on_one_rank_ends_the_others_calls():
    def work(group: Group) -> str:
        with pytest.raises((RuntimeError, KeyError)) as raised, group:
            if group.rank == 0:
                raise KeyError("lost my notes")
            group.barrier()
        return str(raised.value)

    texts = on_threads(3, work)
    assert texts[1] == texts[2] and "barrier: rank 0 gave up: KeyError: 'lost my notes'" in texts[1]


class Letters:
    """Ranks of threads whose bytes Python moves, as an adapter does."""

    def __init__(self, rank: int, size: int, table: dict[str, Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.table, self.barrier = rank, size, table, barrier

    def exchange(self, call: str, parts: list[bytes]) -> tuple[list[str], list[Any]]:
        self.table[self.rank] = call, parts
        self.barrier.wait(SOON)
        given = [self.table[rank] for rank in range(self.size)]
        self.barrier.wait(SOON)
        # Bytes and arrays are both understood.
        parts = [parts[self.rank] if i % 2 else np.frombuffer(parts[self.rank], np.uint8) for i, (_, parts) in enumerate(given)]
        return [text for text, _ in given], parts


def test_an_object_of_python_moves_the_bytes():
    table, barrier = {}, threading.Barrier(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        groups = [init(Letters(rank, 3, table, barrier)) for rank in range(3)]
        assert groups[1].kind == "python"
        ranks = [pool.submit(check_every_collective, group, ["float32", "int64"]) for group in groups]
        assert [rank.result(SOON) for rank in ranks] == [None] * 3

    class Broken(Letters):
        def exchange(self, call: str, parts: list[bytes]) -> Any:
            return self.table["answer"](call)

    x = tensor(np.ones(3, np.float32))
    for answer, error in [
        (lambda call: ([call], [b"short"]), ValueError),
        (lambda call: ([call], []), ValueError),
        (lambda call: ([call], ["text"]), TypeError),
        (lambda call: 3, TypeError),
        (lambda call: 1 / 0, ZeroDivisionError),
    ]:
        with pytest.raises(error):
            init(Broken(0, 1, {"answer": answer}, barrier)).all_reduce(x)


# ---- processes -------------------------------------------------------------------------------------------------------------------------

if sys.platform == "linux":

    class Ranks:
        """Processes that run a program as ranks; they end with the test."""

        def __init__(self, n: int, folder: Path, program: str, **environment: str) -> None:
            head = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_distributed_group import *\ngroup = init()\n"
            common = {**os.environ, "NETCL_RANKS": str(n), "NETCL_RENDEZVOUS": str(folder), **environment}
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-c", head + textwrap.dedent(program)],
                    env={**common, "NETCL_RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for rank in range(n)
            ]

        def read(self, rank: int) -> str:
            return self.processes[rank].communicate(timeout=SOON)[0]

    @pytest.fixture
    def launch(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
        started: list[Ranks] = []

        def start(n: int, program: str, **environment: str) -> Ranks:
            started.append(Ranks(n, tmp_path, program, **environment))
            return started[-1]

        yield start
        for process in (process for ranks in started for process in ranks.processes):
            process.kill()
            process.communicate()
        assert not list(tmp_path.iterdir()), "the memory outlives the ranks"

    def test_every_collective_over_processes(launch):
        ranks = launch(4, "check_every_collective(group, ['float32', 'float16', 'int64']); print('all', group)")
        for rank in range(4):
            text = ranks.read(rank)
            assert f'all Group(rank={rank}, size=4, kind="processes")' in text, text

    WORK = """
        x = tensor(np.ones(30_000, np.float32))
        print("ready", flush=True)
        try:
            while True:
                group.all_reduce(x, "max")
                {more}
        except BaseException as error:
            print(type(error).__name__, error)
    """

    def test_a_killed_rank_is_named_to_all(launch):
        ranks = launch(3, WORK.format(more=""))
        assert "ready" in ranks.processes[1].stdout.readline()
        time.sleep(0.1)
        ranks.processes[1].kill()
        killed = time.monotonic()
        for rank in (0, 2):
            text = ranks.read(rank)
            assert f"RuntimeError all_reduce: rank 1 has ended (process {ranks.processes[1].pid})" in text, text
        assert time.monotonic() - killed < 3

    def test_a_rank_that_hangs_is_named_after_the_limit(launch):
        ranks = launch(3, WORK.format(more="time.sleep(60 if group.rank == 2 else 0)"), NETCL_RANK_TIMEOUT="1")
        for rank in (0, 1):
            text = ranks.read(rank)
            assert "RuntimeError all_reduce: rank 2 did not answer for 1s" in text, text

    def test_a_rank_that_waits_can_be_interrupted(launch):
        ranks = launch(2, WORK.format(more="time.sleep(60 if group.rank == 1 else 0)"))
        assert "ready" in ranks.processes[0].stdout.readline()
        time.sleep(0.3)
        ranks.processes[0].send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        assert "KeyboardInterrupt" in ranks.read(0)
        assert time.monotonic() - interrupted < 3
