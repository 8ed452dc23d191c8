"""The rows of ``netcl bench`` in other frameworks, as a file of the same form.

    python benches/bench_peers.py --tool torch --python <venv with torch>/bin/python --device cuda --out torch.json
    python benches/bench_peers.py --tool netcl-0.4.4 --python <venv with netcl 0.4.4>/bin/python --out old.json
    netcl bench --peers torch.json --peers old.json

Each tool runs in a process and an environment of its own (the two netcl share an import name). Times are medians of samples after a
warm-up, taken as ``netcl bench`` takes them: several calls, waited for at the end of each sample. Rows that a tool does not have are
left out, with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

# The rows of crates/netcl-cli/src/bench/rows.rs: name, large size, small size.
ROWS = {
    "matmul_f32": ([4096, 4096, 4096], [1024, 1024, 1024]),
    "matmul_fma": ([4096, 4096, 4096], [1024, 1024, 1024]),
    "matmul_tf32": ([4096, 4096, 4096], [1024, 1024, 1024]),
    "matmul_f16": ([8192, 8192, 8192], [512, 512, 512]),
    "matmul_bf16": ([8192, 8192, 8192], [512, 512, 512]),
    "chain": ([64 << 20], [4 << 20]),
    "softmax": ([16384, 4096], [2048, 1024]),
    "sum": ([64 << 20], [4 << 20]),
    "copy": ([64 << 20], [4 << 20]),
}


class Missing(Exception):
    """The tool has no such row."""


def sample(call, finish, calls):
    """Milliseconds of a call, of so many in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    finish()
    return (time.perf_counter() - start) / calls * 1e3


def measure(call, finish, seconds):
    """Median and best of a call in milliseconds, the number of samples, and the calls of each."""
    call()
    finish()
    shortest, calls, began = float("inf"), 1, time.perf_counter()
    while True:
        shortest = min(shortest, sample(call, finish, calls))
        if time.perf_counter() - began > 0.3:
            break
        calls = min(2 * calls, 1 + int(5 / shortest))
    calls = max(1, round(5 / shortest + 0.5))
    samples, began = [], time.perf_counter()
    while len(samples) < 5 or (len(samples) < 200 and time.perf_counter() - began < seconds):
        samples.append(sample(call, finish, calls))
    return {
        "median_ms": statistics.median(samples),
        "best_ms": min(samples),
        "samples": len(samples),
        "calls_per_sample": calls,
    }


def torch_rows(device):
    import torch

    if device == "cpu":
        torch.set_num_threads(int(os.environ.get("NETCL_NUM_THREADS", torch.get_num_threads())))
    torch.manual_seed(2026)
    cuda = device.startswith("cuda")
    finish = torch.cuda.synchronize if cuda else (lambda: None)
    about = {
        "tool": "PyTorch",
        "version": torch.__version__,
        "device": {
            "name": torch.cuda.get_device_name() if cuda else "cpu",
            "platform": f"CUDA {torch.version.cuda}" if cuda else "cpu",
            "driver": driver() if cuda else "",
        },
    }

    def draw(*shape, dtype=torch.float32, low=-1.0):
        return torch.empty(*shape, device=device).uniform_(low, 1.0).to(dtype)

    def prepare(row, size):
        if row.startswith("matmul"):
            m, n, k = size
            dtype = {"matmul_f16": torch.float16, "matmul_bf16": torch.bfloat16}.get(row, torch.float32)
            torch.backends.cuda.matmul.allow_tf32 = row == "matmul_tf32"
            a, b, out = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype), torch.empty(m, n, device=device, dtype=dtype)
            return lambda: torch.matmul(a, b, out=out)
        if row == "chain":
            x, y = draw(*size), draw(*size)
            return lambda: torch.tanh(x * y + 1) * torch.sigmoid(x) + torch.relu(y)
        if row == "softmax":
            x = draw(*size)
            return lambda: torch.softmax(x, -1)
        if row == "sum":
            x = draw(*size, low=0.0)
            return lambda: x.sum()
        x, out = draw(*size), torch.empty(*size, device=device)
        return lambda: out.copy_(x)

    return about, prepare, finish


def driver():
    """NVIDIA's driver, by its own tool."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def old_netcl_rows(device):
    # Without it the published package takes its slowest kernel on processors.
    os.environ.setdefault("NETCL_MATMUL_OPTIMIZED", "1")
    import importlib.metadata

    import numpy as np

    import netcl as nc
    from netcl.core.device import manager

    handle = manager.default() if device == "auto" else manager.default(device)
    queue = handle.queue
    about = {
        "tool": "netcl",
        "version": importlib.metadata.version("netcl"),
        "device": {"name": queue.device.name.strip(), "platform": "OpenCL", "driver": queue.device.driver_version},
    }
    random = np.random.default_rng(2026)

    def draw(*shape):
        return nc.Tensor.from_host(queue, random.uniform(-1, 1, shape).astype(np.float32))

    def prepare(row, size):
        if row == "matmul_f32":
            m, n, k = size
            a, b = draw(m, k), draw(k, n)
            return lambda: nc.matmul(a, b)
        if row == "softmax":
            x = draw(*size)
            return lambda: nc.softmax(x)
        if row == "sum":
            x = draw(*size)
            return lambda: nc.reduce_sum(x)
        raise Missing("the published package has no call for it that computes the same")

    return about, prepare, queue.finish


TOOLS = {"torch": torch_rows, "netcl-0.4.4": old_netcl_rows}


def work(arguments):
    """In the tool's own process: every row, one after the other, as JSON on standard output."""
    about, prepare, finish = TOOLS[arguments.tool](arguments.device)
    rows = []
    for row, (large, small) in ROWS.items():
        if arguments.rows and not any(row.startswith(word) for word in arguments.rows.split(",")):
            continue
        size = small if arguments.small else large
        entry = {"id": row, "size": size}
        try:
            entry.update(measure(prepare(row, size), finish, arguments.time))
            print(f"{row}: {entry['median_ms']:.4f} ms", file=sys.stderr)
        except Exception as problem:  # whatever a peer raises, the other rows go on
            entry["problem"] = f"{type(problem).__name__}: {problem}"
            print(f"{row}: {entry['problem']}", file=sys.stderr)
        rows.append(entry)
    json.dump({"schema": 1, **about, "date": datetime.date.today().isoformat(), "rows": rows}, sys.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the tool's environment")
    parser.add_argument("--device", default="auto", help="torch: cpu or cuda; netcl: its selector")
    parser.add_argument("--rows", default="", help="only rows that begin so, by commas")
    parser.add_argument("--small", action="store_true", help="the sizes of small devices")
    parser.add_argument("--time", type=float, default=1.5, help="seconds for the samples of a row")
    parser.add_argument("--out", help="the file to write")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments)
    if arguments.tool == "torch" and arguments.device == "auto":
        parser.error("--device: say cpu or cuda")
    command = [arguments.python, os.path.abspath(__file__), "--worker", *sys.argv[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    text = json.dumps(json.loads(done.stdout.splitlines()[-1]), indent=2) + "\n"
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    return None


if __name__ == "__main__":
    main()
