"""The replayed step of a small MLP beside our own eager one and PyTorch's, in alternating runs.

    python benches/replay_peers.py <bench binary> [--device <part of a device's name>] [--cuda]

The interpreter must have PyTorch; the binary is the executable that ``cargo bench -p netcl --bench replay --no-run`` names. It
stays alive as a worker, and all are asked in turn, so that a busy machine slows all; ratios are medians over the rounds, and
above 1 the replay is faster. With ``--cuda`` PyTorch runs on the GPU, eagerly and with the whole step as one CUDA graph.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", help="the executable of the Rust benchmark")
parser.add_argument("--device", default="netcl", help="part of the device's name; 'netcl' is the native CPU")
parser.add_argument("--cuda", action="store_true", help="PyTorch on the GPU")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=7)
options = parser.parse_args()

# Every library reads these when it is first imported.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)


def torch_steps():
    """PyTorch's ways to make the step, by name: a function, and one that waits for it."""
    import torch
    from torch import nn

    torch.set_num_threads(options.threads)
    device = "cuda" if options.cuda else "cpu"
    x = torch.randn(32, 784, device=device)
    y = torch.arange(32, device=device) * 7 % 10
    wait = torch.cuda.synchronize if options.cuda else lambda: None

    def make(capturable):
        model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
        # As slow as ours: gradients that vanish would be slow to compute with.
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-7, capturable=capturable)

        def step():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    steps = {f"PyTorch eager ({device})": (make(False), wait)}
    if options.cuda:
        step = make(True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        steps["PyTorch as one CUDA graph"] = (graph.replay, wait)
    return steps


def median_seconds(step, wait):
    """The median over half a second of blocks of ten steps, as the worker takes it."""
    times, start = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < 0.5:
        begin = time.perf_counter()
        for _ in range(10):
            step()
        wait()
        times.append((time.perf_counter() - begin) / 10)
    return statistics.median(times)


def main():
    command = [options.binary, "--worker", options.device]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    about = json.loads(ours.stdout.readline())
    print(f"MLP 784-128-10, batch 32, Adam, {options.threads} threads; ours on {about['device']}")

    def ask(kind):
        ours.stdin.write(f"{kind}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline().split()[0])

    ways = {"replayed": lambda: ask("replay"), "eager": lambda: ask("eager")}
    for name, (step, wait) in torch_steps().items():
        median_seconds(step, wait)
        ways[name] = lambda step=step, wait=wait: median_seconds(step, wait)
    rounds = [{name: way() for name, way in ways.items()} for _ in range(options.rounds)]
    launches = {"replayed": len(about["replayed"]), "eager": about["eager"]}
    for name in ways:
        seconds = statistics.median(round[name] for round in rounds)
        ratio = statistics.median(round[name] / round["replayed"] for round in rounds)
        count = f", {launches[name]} launches" if name in launches else ""
        print(f"{name:28} {seconds * 1e6:8.1f} us   {ratio:5.2f} of the replay{count}")
    print("replayed launches: " + ", ".join(about["replayed"]))
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()
