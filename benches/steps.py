"""Training steps of several tools in alternating turns: what ``resnet_peers.py``, ``network_peers.py`` and ``gpt_peers.py`` share."""

import statistics
import time

STEPS_COMPARED = 5


def turn(step, finish, seconds):
    """Milliseconds of steps in this turn, in samples of a few steps."""
    times, begin = [], time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or len(times) < 2:
        start = time.perf_counter()
        for _ in range(3):
            step()
        finish()
        if spent > seconds / 4:
            times.append((time.perf_counter() - start) / 3 * 1e3)
    return statistics.median(times)


def compare(label, made, rounds, seconds):
    """Prints the first losses and the time of a step of each tool; a tool is its step and what waits for it."""
    for name, (step, finish) in made.items():
        start = time.perf_counter()
        losses = [float(step().item())]
        first = time.perf_counter() - start
        losses += [float(step().item()) for _ in range(STEPS_COMPARED - 1)]
        finish()
        print(f"{label:<8} {name:<30} first step {first:6.2f} s, losses " + " ".join(f"{v:.6f}" for v in losses), flush=True)
    turns = {name: [] for name in made}
    for _ in range(rounds):
        for name, (step, finish) in made.items():
            turns[name].append(turn(step, finish, seconds))
    medians = {name: statistics.median(each) for name, each in turns.items()}
    best = min((value for name, value in medians.items() if name.startswith("PyTorch")), default=None)
    for name, median in medians.items():
        beside = "" if best is None else f"  {best / median:6.2f}x of PyTorch's better"
        print(f"{label:<8} {name:<30} {median:9.3f} ms{beside}", flush=True)


def show_profile(step, finish):
    """Prints our launches of one step by kernel, those that take the longest first."""
    from netcl.profiling import profile

    with profile() as p:
        step()
        finish()
    print(f"device {p.device_ms:.2f} ms in {sum(row.calls for row in p.kernels)} launches")
    for row in p.kernels[:40]:
        print(f"{row.total_ms:9.3f} ms {row.calls:5d} x {row.name[:90]:<90} {row.gbps or 0:8.0f} GB/s")


def netcl_training(model, optimizer, x, y, precision, queue, captured=True):
    """Our step of training on one batch by cross-entropy, and what waits for it; ``amp`` is autocast to bfloat16."""
    import netcl as nc
    from netcl import amp
    from netcl.nn import functional as F

    def plain(x, y):
        with amp.autocast(dtype="bfloat16", enabled=precision == "amp"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    function = nc.runtime.capture(plain) if captured else plain

    def step():
        nc.set_matmul_precision("high" if precision == "amp" else precision)
        return function(x, y)

    return step, queue.finish
