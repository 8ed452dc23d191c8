"""What a call from Python costs: a small Tensor.from_host and to_host beside NumPy's own copy, and the import.

Run it with the interpreter that netcl is installed in: ``python benches/python_overhead.py``. Best of several repeats, so
that a busy machine shows the cost of the call and not of its neighbours.
"""

import subprocess
import sys
import time
import timeit

import numpy as np

from netcl.core.device import manager
from netcl.core.tensor import Tensor

q = manager.default("cpu").queue
small = np.ones(16, dtype=np.float32)
tensor = Tensor.from_host(q, small)


def microseconds(call, number=20000, repeat=9):
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def import_milliseconds(module, repeat=15):
    def once():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}" if module else ""], check=True)
        return (time.perf_counter() - start) * 1e3

    return min(once() for _ in range(repeat))


def main():
    rows = [
        ("Tensor.from_host(q, x), 16 floats", microseconds(lambda: Tensor.from_host(q, small)), "us", "< 3"),
        ("np.array(x, copy), 16 floats (peer)", microseconds(lambda: np.array(small)), "us", ""),
        ("Tensor.from_shape(q, (16,))", microseconds(lambda: Tensor.from_shape(q, (16,))), "us", ""),
        ("t.to_host(), first time", microseconds(lambda: Tensor.from_host(q, small).to_host()), "us", ""),
        ("t.to_host(), again", microseconds(tensor.to_host), "us", ""),
        ("t.shape", microseconds(lambda: tensor.shape), "us", ""),
    ]
    start = import_milliseconds("")
    for module, goal in (("netcl", "< 150"), ("numpy", "")):
        rows.append((f"import {module}, without the interpreter's start", import_milliseconds(module) - start, "ms", goal))
    for name, value, unit, goal in rows:
        print(f"{name:<48} {value:8.2f} {unit}   {('goal ' + goal) if goal else ''}")


if __name__ == "__main__":
    main()
