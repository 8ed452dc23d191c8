"""Rows of convolutional networks beside PyTorch's, in turns in one process: convolutions, sorting, ResNet-18's step, the first step.

    python benches/convnet_rows.py --device gpu --torch-device cuda
    python benches/convnet_rows.py --device cpu --torch-device cpu --shrink 16 --rows depthwise sort

Forward and both gradients of a convolution count as one run; netcl replays a captured function, PyTorch runs eagerly, channels
last. Results are compared once. Each row also prints the rate at which netcl moves what the device must move at least: every operand and
result once. ``cold`` starts processes of their own: with nothing cached, with the program cache warm and
the driver's cold, with both warm; its figure is the time of ResNet-18's first step. A ratio above 1 means that ours is faster.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np
from steps import turn

# Images, then filters, kernel, stride, padding, groups; precision.
CONVOLUTIONS = {
    "depthwise": ((64, 512, 28, 28), (512, 3, 1, 1, 512), "highest"),
    "depthwise_s2": ((64, 512, 28, 28), (512, 3, 2, 1, 512), "highest"),
    "depthwise_5x5": ((64, 512, 28, 28), (512, 5, 1, 2, 512), "highest"),
    "depthwise_7x7": ((64, 384, 14, 14), (384, 7, 1, 3, 384), "highest"),
    "depthwise_f16": ((64, 512, 28, 28), (512, 3, 1, 1, 512), "half"),
    "3x3_64_56_tf32": ((64, 64, 56, 56), (64, 3, 1, 1, 1), "high"),
    "3x3_64_56_f16": ((64, 64, 56, 56), (64, 3, 1, 1, 1), "half"),
    "3x3_256_14_tf32": ((64, 256, 14, 14), (256, 3, 1, 1, 1), "high"),
    "7x7_s2_3_224_tf32": ((64, 3, 224, 224), (64, 7, 2, 3, 1), "high"),
}
SORTS = {"sort": (4096, 4096), "sort_1024": (16384, 1024), "sort_16384": (1024, 16384)}
ROWS = [*CONVOLUTIONS, *SORTS, "profile", "cold"]
# The largest difference, as a part of the largest result.
CLOSE = {"highest": 1e-5, "high": 5e-3, "half": 5e-3}


def convolution_operands(row, shrink):
    shape, (filters, kernel, stride, padding, groups), precision = CONVOLUTIONS[row]
    shape = (max(1, shape[0] // shrink), *shape[1:])
    random = np.random.default_rng(2026)
    sides = [(length + 2 * padding - kernel) // stride + 1 for length in shape[2:]]
    shapes = shape, (filters, shape[1] // groups, kernel, kernel), (shape[0], filters, *sides)
    dtype = np.float16 if precision == "half" else np.float32
    return [random.uniform(-1, 1, each).astype(dtype) for each in shapes], (stride, padding, groups), precision


def torch_convolution(row, options):
    import torch

    (x, weight, grad), (stride, padding, groups), precision = convolution_operands(row, options.shrink)
    images = {"memory_format": torch.channels_last}
    x, weight, grad = (torch.from_numpy(each).to(options.torch_device) for each in (x, weight, grad))
    x, grad = x.to(**images).requires_grad_(), grad.to(**images)
    weight = weight.to(**images).requires_grad_()
    torch.backends.cudnn.benchmark = True

    def step():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "high"
        y = torch.nn.functional.conv2d(x, weight, None, stride, padding, 1, groups)
        return [y.detach(), *torch.autograd.grad(y, (x, weight), grad)]

    return step, lambda found: [each.float().cpu().numpy() for each in found]


def netcl_convolution(row, options):
    import netcl as nc

    operands, (stride, padding, groups), precision = convolution_operands(row, options.shrink)
    x, weight, grad = (nc.Tensor.from_host(options.queue, each, dtype=each.dtype.name) for each in operands)
    x.requires_grad = weight.requires_grad = True

    @nc.runtime.capture
    def forward_and_backward():
        y = nc.conv2d(x, weight, None, stride=stride, padding=padding, groups=groups)
        return [y.detach(), *nc.autograd.grad(y, (x, weight), grad)]

    def step():
        nc.set_matmul_precision("highest" if precision == "half" else precision)
        return forward_and_backward()

    return step, lambda found: [each.to(dtype="float32").numpy() for each in found]


def sort_operand(row, shrink):
    rows, n = SORTS[row]
    return np.random.default_rng(2026).normal(size=(max(1, rows // shrink), n)).astype(np.float32)


def torch_sort(row, options):
    import torch

    x = torch.from_numpy(sort_operand(row, options.shrink)).to(options.torch_device)
    return (lambda: torch.sort(x, dim=1, stable=True)), lambda found: [found[0].cpu().numpy(), found[1].cpu().numpy()]


def netcl_sort(row, options):
    import netcl as nc

    x = nc.Tensor.from_host(options.queue, sort_operand(row, options.shrink))
    step = nc.runtime.capture(lambda x: nc.sort(x, 1))
    return (lambda: step(x)), lambda found: [found[0].numpy(), found[1].numpy()]


def least_bytes(row, options):
    """What forward and backward, or sorting with int64 positions, must move if caches hold nothing in between."""
    if row in SORTS:
        x = sort_operand(row, options.shrink)
        return 2 * x.nbytes + 8 * x.size
    (x, weight, grad), _, _ = convolution_operands(row, options.shrink)
    return sum(parts.nbytes * times for parts, times in ((x, 3), (weight, 3), (grad, 3)))


def compare(row, options):
    sides = (
        {"PyTorch": torch_sort, "netcl": netcl_sort}
        if row in SORTS
        else {"PyTorch": torch_convolution, "netcl": netcl_convolution}
    )
    made = {name: side(row, options) for name, side in sides.items()}
    finish = {"PyTorch": options.torch_finish, "netcl": options.queue.finish}
    expected, found = (values(step()) for step, values in made.values())
    allowed = 0.0 if row in SORTS else CLOSE[CONVOLUTIONS[row][2]]
    for ours, theirs in zip(found, expected, strict=True):
        difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30)
        if not difference <= allowed:
            print(f"{row}: results differ by {difference:.2e} of the largest, {allowed:.0e} is allowed", flush=True)
    turns = {name: [] for name in made}
    for number in range(options.rounds):
        for name in sorted(made, reverse=number % 2 == 1):
            turns[name].append(turn(made[name][0], finish[name], options.seconds))
    theirs, ours = (statistics.median(turns[name]) for name in ("PyTorch", "netcl"))
    rate = least_bytes(row, options) / ours / 1e6
    print(f"{row:18} PyTorch {theirs:8.3f} ms, netcl {ours:8.3f} ms ({rate:6.0f} GB/s), ratio {theirs / ours:.2f}", flush=True)


def profile(options):
    """ResNet-18's captured step by kernel: launches, time, bytes; beside it the passes that its activations need at least."""
    from resnet_peers import netcl_step

    import netcl as nc

    step, finish = first_step(options, netcl_step)
    for _ in range(5):
        step()
    finish()
    with nc.profiling.profile() as found:
        step()
        finish()
    launches = sum(kernel.calls for kernel in found.kernels)
    total = sum(kernel.total_ms for kernel in found.kernels)
    print(f"ResNet-18, batch {options.batch}, captured: {launches} launches, {total:.3f} ms on the device")
    for kernel in sorted(found.kernels, key=lambda kernel: -kernel.total_ms):
        moved = (kernel.gbps or 0.0) * kernel.total_ms / 1e3
        print(f"  {kernel.name:32} {kernel.calls:5} {kernel.total_ms:9.3f} ms {moved:8.3f} GB")


def first_step(options, netcl_step):
    from netcl.core.device import manager
    from netcl.nn.resnet import ResNet18

    random = np.random.default_rng(2026)
    images = random.normal(size=(options.batch, 3, 32, 32)).astype(np.float32)
    labels = (np.arange(options.batch) * 7 % 10).astype(np.int64)
    model = ResNet18(manager.default(options.device).queue, num_classes=10)
    return netcl_step(model.state_dict(), images, labels, "highest", options.device, True)


# Run by `cold` in processes of their own.
FIRST_STEP = """
import sys, time
sys.path.insert(0, sys.argv[1])
import argparse
from convnet_rows import first_step
from resnet_peers import netcl_step
options = argparse.Namespace(device=sys.argv[2], batch=int(sys.argv[3]))
begin = time.perf_counter()
step, finish = first_step(options, netcl_step)
step()
finish()
print(time.perf_counter() - begin)
"""


def cold(options):
    with tempfile.TemporaryDirectory() as folder:
        ours, driver = (os.path.join(folder, name) for name in ("netcl", "driver"))
        for label, renewed in (("nothing cached", None), ("both caches warm", None), ("driver's cache cold", "other")):
            caches = os.path.join(folder, renewed) if renewed else driver
            for path in (ours, caches):
                os.makedirs(path, exist_ok=True)
            # NVIDIA's cache, PoCL's.
            variables = {"NETCL_CACHE_DIR": ours, "CUDA_CACHE_PATH": caches, "POCL_CACHE_DIR": caches}
            here = os.path.dirname(os.path.abspath(__file__))
            command = [sys.executable, "-c", FIRST_STEP, here, options.device, str(options.batch)]
            done = subprocess.run(command, env={**os.environ, **variables}, check=True, capture_output=True, text=True)
            print(f"first step, {label:20} {float(done.stdout.split()[-1]):7.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="netcl's device")
    parser.add_argument("--torch-device", default="cuda")
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--shrink", type=int, default=1, help="divides batches and rows, for slow devices")
    parser.add_argument("--batch", type=int, default=128, help="of ResNet-18")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    if set(options.rows) & {*CONVOLUTIONS, *SORTS}:
        import torch

        from netcl.core.device import manager

        options.queue = manager.default(options.device).queue
        options.torch_finish = torch.cuda.synchronize if options.torch_device != "cpu" else lambda: None
    for row in options.rows:
        if row in ("profile", "cold"):
            {"profile": profile, "cold": cold}[row](options)
        else:
            compare(row, options)


if __name__ == "__main__":
    main()
