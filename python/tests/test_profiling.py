"""Profiles: every launch, copy and block of memory of a scope, with its module, line and device times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

import netcl
import netcl.nn as nn
import netcl.optim as optim
from netcl import Tensor
from netcl.core.device import manager
from netcl.profiling import EventTimer, ProfileRecord, profile
from netcl.runtime import capture


@pytest.fixture(params=find_device_selectors())
def dev(request):
    return manager.default(request.param)


class Net(nn.Module):
    def __init__(self, queue):
        super().__init__()
        self.fc1 = nn.Linear(queue, 16, 32)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(queue, 32, 4))

    def forward(self, x):
        return self.body(self.fc1(x))


def make(dev):
    model = Net(dev.queue)
    x = Tensor.from_host(dev.queue, np.ones((8, 16), np.float32))
    return model, optim.SGD(model.parameters(), lr=0.1), x


def train(model, opt, x):
    loss = (model(x) * model(x)).mean()
    loss.backward()  # the line of the gradients
    opt.step()
    opt.zero_grad()
    return loss


def row(rows, path):
    return next(row for row in rows if row.path == path)


def test_a_training_step_by_kernel_module_and_line(dev):
    model, opt, x = make(dev)
    train(model, opt, x)
    with profile() as p:
        loss = train(model, opt, x)
        loss.item()
    assert {row.kind for row in p.kernels} == {"kernel", "download"} and all(row.total_ms > 0 for row in p.kernels)
    assert sum(row.share for row in p.kernels) == pytest.approx(1.0)
    assert sum(row.calls for row in p.kernels) == len(p.commands)
    rated = [row for row in p.kernels if row.ceiling is not None]
    assert rated and all(row.gbps > 0 and row.ceiling > 0 for row in rated)
    assert all((row.source is not None) == (dev.backend == "cl") for row in p.kernels if row.kind == "kernel")

    for path in ("Net", "Net.fc1", "Net.body", "Net.body.0", "Net.body.1"):
        assert row(p.modules, path).forward_ms > 0 and row(p.modules, path).backward_ms > 0, path
    net, parts = row(p.modules, "Net"), [row(p.modules, path) for path in ("Net.fc1", "Net.body")]
    assert net.total_ms == pytest.approx(net.own_ms + sum(part.total_ms for part in parts))
    assert row(p.modules, "optimizer").calls >= 1

    lines = {line.line.rsplit(":", 1)[0].rsplit("/", 1)[-1] for line in p.lines}
    assert "test_profiling.py" in lines, p.lines
    source = Path(__file__).read_text().splitlines()
    text = [source[int(line.line.rsplit(":", 1)[1]) - 1] for line in p.lines if "test_profiling" in line.line]
    assert any("loss.backward()" in line for line in text) and any("opt.step()" in line for line in text), text
    assert p.span_ms > 0 and p.device_ms == pytest.approx(sum(row.total_ms for row in p.kernels))
    for word in ("GFLOP/s", "body", "memory of", "test_profiling.py", dev.device_name):
        assert word in str(p), str(p)


def test_device_times_lie_inside_of_the_scope_and_after_their_calls(dev):
    model, opt, x = make(dev)
    with profile(ceilings=False) as p:
        train(model, opt, x)
    for command in p.commands:
        assert 0 <= command.host_ms[0] <= command.host_ms[1] <= p.span_ms
        assert command.device_ms[0] >= command.host_ms[0] and command.device_ms[1] >= command.device_ms[0]
        assert command.device_ms[1] <= p.span_ms * 1.01 + 1
    assert all(row.ceiling is None for row in p.kernels)


def test_replayed_steps_keep_modules_and_lines(dev):
    model, opt, x = make(dev)
    train(model, opt, x)
    step = capture(lambda x: train(model, opt, x))
    step(x)
    plain = step(x).item()
    with profile(ceilings=False) as p:
        step(x)
        step(x)
    assert len(p.commands) == 2 * step.stats()["launches"]
    for path in ("Net.fc1", "Net.body.1"):
        assert row(p.modules, path).forward_ms > 0 and row(p.modules, path).backward_ms > 0, path
    assert any("test_profiling.py" in line.line for line in p.lines)
    assert np.isfinite(plain)


def test_copies_and_memory(dev):
    data = np.ones((256, 1024), np.float32)
    with profile(ceilings=False) as p:
        x = Tensor.from_host(dev.queue, data)
        y = x * x
        z = y + y
        del y
        z.to_host()
    kinds = [command.kind for command in p.commands]
    assert kinds.count("upload") == 1 and kinds.count("download") <= 1
    upload = next(command for command in p.commands if command.kind == "upload")
    assert upload.bytes == data.nbytes
    (memory,) = p.memory
    assert memory.device == dev.device_name and memory.allocations >= 3
    assert memory.peak_bytes - memory.before_bytes >= 3 * data.nbytes
    assert memory.points[-1][1] < memory.peak_bytes
    assert sum(holder.bytes for holder in memory.holders) >= 3 * data.nbytes
    assert all(a[0] <= b[0] for a, b in zip(memory.points, memory.points[1:], strict=False))


def test_results_are_the_same_inside_and_outside(dev):
    """A queue without device times is replaced by one with them: no order may be lost on the way."""
    x = Tensor.from_host(dev.queue, np.arange(4096, dtype=np.float32))
    expected = np.arange(4096, dtype=np.float32)
    for turn in range(6):
        if turn % 2:
            with profile(ceilings=False):
                x = x + 1.0
        else:
            x = x + 1.0
        expected += 1
    np.testing.assert_array_equal(x.to_host(), expected)


def test_nested_scopes_each_see_what_runs_while_they_are_open():
    queue = manager.default("cpu").queue
    with profile(ceilings=False) as outer:
        Tensor.from_host(queue, np.ones(4, np.float32))
        with profile(ceilings=False) as inner:
            Tensor.from_host(queue, np.ones(4, np.float32))
        Tensor.from_host(queue, np.ones(4, np.float32))
    assert len(inner.commands) == 1 and len(outer.commands) == 3


def test_an_exception_ends_the_scope_and_keeps_what_ran():
    queue = manager.default("cpu").queue
    p = profile(ceilings=False)
    with pytest.raises(ZeroDivisionError), p:
        Tensor.from_host(queue, np.ones(4, np.float32))
        raise ZeroDivisionError
    assert len(p.commands) == 1
    Tensor.from_host(queue, np.ones(4, np.float32))
    assert len(p.commands) == 1
    with p:
        pass
    assert p.commands == [] and "no device" in str(p)


def test_a_scope_is_used_in_order():
    p = profile(ceilings=False)
    with pytest.raises(RuntimeError, match="before the end of the scope"):
        _ = p.kernels
    with pytest.raises(RuntimeError, match="never entered"):
        p.__exit__(None, None, None)
    with p, pytest.raises(RuntimeError, match="open already"):
        p.__enter__()


def test_other_threads_and_devices_are_seen():
    devices = [manager.default(selector) for selector in find_device_selectors()]
    seen = []

    def work(device):
        model = Net(device.queue)
        seen.append(model(Tensor.from_host(device.queue, np.ones((2, 16), np.float32))).to_host())

    with profile(ceilings=False) as p:
        threads = [threading.Thread(target=work, args=(device,)) for device in devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {command.device for command in p.commands} == {device.device_name for device in devices}
    assert len({command.thread for command in p.commands}) == len(devices) == len(seen)
    assert all(command.module.startswith("Net") for command in p.commands if command.kind == "kernel" and "fc1" in command.module)


def test_a_queue_that_other_code_knows_stays_and_still_has_times(dev):
    if dev.backend != "cl":
        pytest.skip("the native CPU has no handles")
    from netcl.core.backend.opencl import CommandQueue, Context

    queue = CommandQueue(Context([dev.queue.device]))
    assert queue.int_ptr
    x = Tensor.from_host(queue, np.ones(1 << 16, np.float32))
    with profile(ceilings=False) as p:
        y = x + x
        pointer = queue.int_ptr
    assert pointer == queue.int_ptr and [c.kind for c in p.commands] == ["kernel"]
    assert p.commands[0].device_ms == p.commands[0].host_ms
    np.testing.assert_array_equal(y.to_host(), 2)


# ---- timers --------------------------------------------------------------------------------------------------------


def test_a_timer_times_its_launches_on_the_device(dev):
    x = Tensor.from_host(dev.queue, np.ones(1 << 18, np.float32))
    netcl.relu(x).to_host()
    with EventTimer(dev.queue) as timer:
        start = time.perf_counter()
        netcl.relu(netcl.relu(x))
    wall = (time.perf_counter() - start) * 1e3
    assert 0 < timer.elapsed_ms <= wall and timer.busy_ms > 0
    assert len(timer.records) == 2 and all(isinstance(record, ProfileRecord) for record in timer.records)
    with EventTimer("cpu") as other:
        netcl.relu(x)
    assert bool(other.records) == (dev.backend == "cpu")


def test_a_timer_of_single_events(dev):
    timer = EventTimer(dev.queue)
    with pytest.raises(TypeError, match="an event of netcl or PyOpenCL"):
        timer.time_event(3)
    if dev.backend != "cl":
        return
    from netcl.core.backend.opencl import CommandQueue, Context

    queue = CommandQueue(Context([dev.queue.device]), profiling=True)
    x = Tensor.from_host(queue, np.ones(1 << 16, np.float32), async_copy=True)
    record = timer.time_event(x.pending_event, "upload")
    assert record.name == "upload" and record.duration_ms > 0


# ---- the trace -----------------------------------------------------------------------------------------------------


def check_trace(events):
    """The rules of the JSON format, as Perfetto's importer and the format's document have them."""
    flows = defaultdict(list)
    tracks = defaultdict(list)
    for event in events:
        assert event["ph"] in "XMCsf" and isinstance(event["pid"], int) and isinstance(event["tid"], int), event
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            continue
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], (int, float)) and event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        else:
            flows[event["id"]].append(event)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert set(tracks) <= named
    for slices in tracks.values():
        stack = []
        for start, end, name in sorted(slices, key=lambda slice: (slice[0], -slice[1])):
            while stack and stack[-1] <= start + 1e-6:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-6, f"{name} ends after what it is inside of"
            stack.append(end)
    for ends in flows.values():
        assert [end["ph"] for end in ends] == ["s", "f"] and ends[1]["bp"] == "e"
        for end in ends:
            inside = tracks[end["pid"], end["tid"]]
            assert any(start - 1e-6 <= end["ts"] <= stop + 1e-6 for start, stop, _ in inside), "a flow binds to a slice"
        assert ends[0]["ts"] <= ends[1]["ts"]
    return tracks, flows


def test_traces_follow_the_rules_of_the_format(dev, tmp_path):
    model, opt, x = make(dev)
    with profile(ceilings=False) as p:
        train(model, opt, x).item()
    p.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks, flows = check_trace(events)
    assert len(flows) == len(p.commands)
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert {"host", "kernels", "copies", "modules", dev.device_name} <= names
    modules = [e for e in events if e.get("cat") == "module"]
    assert {"Net", "fc1", "body", "backward", "optimizer"} <= {e["name"] for e in modules}
    with pytest.raises(OSError, match="cannot be written"):
        p.trace(tmp_path / "nowhere" / "trace.json")
    assert tracks


def test_pages_load_nothing_from_elsewhere(dev, tmp_path):
    model, opt, x = make(dev)
    with profile() as p:
        train(model, opt, x)
    p.html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'<script id="profile" type="application/json">(.*?)</script>', page, re.DOTALL)[1])
    assert {kernel["name"] for kernel in data["kernels"]} == {row.name for row in p.kernels}
    assert len(data["commands"]) == len(p.commands) and data["memory"][0]["peak"] == p.memory[0].peak_bytes
    assert not re.search(r'(src|href)\s*=|url\(|@import|fetch\(', page)


# ---- the documented ways -------------------------------------------------------------------------------------------

FAQ = """
import time
import numpy as np
import netcl
from netcl import Tensor
from netcl.core.device import manager
from netcl.profiling import EventTimer
from netcl.profiling.autotuner import autotune_matmul, autotune_conv2d

for selector in {selectors!r}:
    dev = manager.default(selector)
    x = Tensor.from_host(dev.queue, np.ones(1 << 16, np.float32), async_copy=True)
    dev.queue.finish()
    start = time.perf_counter()
    y = x + x
    dev.queue.finish()
    assert time.perf_counter() > start
    if dev.backend == "cl":
        assert dev.queue.profiling
        event = x.pending_event
        assert event is None or event.profile.end >= event.profile.start
"""


def test_the_ways_of_the_faq():
    environment = {**os.environ, "NETCL_PROFILE_EVENTS": "1"}
    program = FAQ.format(selectors=find_device_selectors())
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
