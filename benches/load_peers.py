"""Loading a safetensors file of 1 GB into a model, beside safetensors with PyTorch, in one run.

    python benches/load_peers.py --peer-python <venv with torch and safetensors>/bin/python [--device cpu] [--rounds 5]

The interpreter that runs this file must have our netcl. Each load happens in a process of its own, in turn, since its peak of
memory is a figure too; the file is in the page cache. Printed are milliseconds of the call and the peak of resident memory.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, WIDTH = 16, 4096


def side_netcl(path, device):
    from netcl import io, nn
    from netcl.core.device import manager

    queue = manager.default(device).queue
    model = nn.Sequential(*[nn.Linear(queue, WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    queue.finish()

    def load():
        io.load_model(path, model=model)
        queue.finish()

    return load


def side_torch(path, device):
    import torch
    from safetensors.torch import load_model

    torch.set_num_threads(2)
    where = "cuda" if device == "gpu" else "cpu"
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False, device=where) for _ in range(LAYERS)])

    def load():
        load_model(model, path, device=where)
        if where == "cuda":
            torch.cuda.synchronize()

    return load


def make(path):
    """The file, as our own writer writes it."""
    import numpy as np

    from netcl import io

    rng = np.random.default_rng(0)
    io.save_tensors({f"{i}.weight": rng.random((WIDTH, WIDTH), np.float32) for i in range(LAYERS)}, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", nargs=2, metavar=("SIDE", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        side, path = options.worker
        if side == "make":
            return make(path)
        load = (side_netcl if side == "netcl" else side_torch)(path, options.device)
        started = time.perf_counter()
        load()
        print((time.perf_counter() - started) * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.safetensors")
        # Not here: a child's peak of memory begins with its parent's.
        subprocess.check_call([sys.executable, __file__, "--worker", "make", path])
        figures = {"netcl": [], "torch": []}
        for _ in range(options.rounds):
            for side, found in figures.items():
                python = sys.executable if side == "netcl" else options.peer_python
                command = [python, __file__, "--device", options.device, "--worker", side, path]
                environment = {**os.environ, "NETCL_NUM_THREADS": "2"}
                found.append([float(figure) for figure in subprocess.check_output(command, env=environment).split()])
    for side, found in figures.items():
        times, peaks = zip(*found, strict=True)
        print(f"{side:6} {min(times):7.0f} ms at best, {statistics.median(times):7.0f} in the middle, peak {max(peaks):6.0f} MiB")
    return None


if __name__ == "__main__":
    main()
