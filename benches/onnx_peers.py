"""ONNX models beside onnxruntime: are the outputs equal, and how long does a run take, in alternating runs.

    python benches/onnx_peers.py model.onnx other.onnx
    python benches/onnx_peers.py model.onnx --device gpu --dim batch=8
    python benches/onnx_peers.py vad.onnx --shape input=1,576 --value sr=16000

The interpreter must have netcl and onnxruntime. Inputs are random numbers of the shapes that the model declares; lengths that it leaves
open are those of ``--dim NAME=LENGTH``, else 1; ``--shape INPUT=1,576`` gives a whole shape, ``--value INPUT=NUMBER`` fills an input.
Each library works in a process of its own, and both are asked in turn, so that a busy machine slows both; a ratio is the median over
the rounds, and above 1 ours is faster. "compiled" is ``ag.jit(model)``, "replayed" a captured run of that. With ``--device gpu`` onnxruntime
runs on CUDA where its package can, else on the CPU, as its line says.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--device", default="cpu", help="netcl's selector of a device")
    parser.add_argument("--threads", type=int, default=2, help="of each library on the CPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each library in a round")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=LENGTH")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=LENGTHS")
    parser.add_argument("--value", action="append", default=[], metavar="INPUT=NUMBER")
    parser.add_argument("--high", type=int, default=100, help="whole numbers are below this")
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled", "replayed"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def pairs(texts):
    return dict(text.split("=", 1) for text in texts)


DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
    "uint8": "uint8",
}


def examples(ports, options):
    """A random array for each (name, dtype, shape)."""
    import numpy as np

    rng = np.random.default_rng(0)
    dims, shapes, values = pairs(options.dim), pairs(options.shape), pairs(options.value)
    arrays = {}
    for name, dtype, declared in ports:
        if name in shapes:
            shape = [int(n) for n in shapes[name].split(",") if n]
        else:
            shape = [n if isinstance(n, int) and n > 0 else int(dims.get(str(n), 1)) for n in declared]
        dtype = np.dtype(DTYPES[dtype])
        if name in values:
            arrays[name] = np.full(shape, float(values[name])).astype(dtype)
        elif dtype.kind == "f":
            arrays[name] = rng.normal(size=shape).astype(dtype)
        else:
            arrays[name] = rng.integers(1, 2 if dtype.kind == "b" else options.high, size=shape).astype(dtype)
    return arrays


def peer(path, options):
    """onnxruntime: how it runs, and a function that does."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = options.threads, 1
    wanted = ["CUDAExecutionProvider"] if options.device != "cpu" else []
    providers = [one for one in wanted if one in ort.get_available_providers()] + ["CPUExecutionProvider"]
    session = ort.InferenceSession(path, settings, providers=providers)
    ports = [(port.name, port.type[len("tensor(") : -1], port.shape) for port in session.get_inputs()]
    arrays = examples(ports, options)
    if providers[0].startswith("CUDA"):
        binding = session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for port in session.get_outputs():
            binding.bind_output(port.name, "cuda")

        def step():
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
    else:

        def step():
            session.run(None, arrays)

    return f"onnxruntime {ort.__version__} ({providers[0]})", arrays, {"": step}, lambda: session.run(None, arrays)


def ours(path, options, arrays):
    """netcl in each mode."""
    import numpy as np

    import netcl
    import netcl.autograd as ag

    model = netcl.onnx.load(path, device=options.device)
    queue = netcl.device(options.device).queue
    # One whole number decides what runs: it stays on the host.
    host = {name: int(array) for name, array in arrays.items() if array.ndim == 0 and array.dtype.kind in "iu"}
    inputs = {name: netcl.tensor(array, device=options.device) for name, array in arrays.items() if name not in host} | host
    listed = [inputs[name] for name in model.inputs]

    def finished(call):
        def step():
            with ag.no_grad():
                results = call()
            queue.finish()
            return results if isinstance(results, tuple) else (results,)

        return step

    modes = {"eager": finished(lambda: model(*listed))}
    if "compiled" in options.modes:
        compiled = ag.jit(model)
        modes["compiled"] = finished(lambda: compiled(*listed))
    if "replayed" in options.modes:
        from netcl.runtime import capture

        captured = capture(ag.jit(model))
        modes["replayed"] = finished(lambda: captured(*listed))
    works = {}
    for name, step in modes.items():
        try:
            step()
            step()
            works[name] = step
        except Exception as error:
            print(f"{path} {name}: {error}", file=sys.stderr)
    works = {name: step for name, step in works.items() if name in options.modes}
    return f"netcl {netcl.__version__} ({options.device})", works, lambda: [np.asarray(one.numpy()) for one in modes["eager"]()]


def median_ms(step, seconds):
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def worker(options):
    """Answers one line for each line it reads: a mode to time, or "outputs"."""
    import numpy as np

    side, folder = options.worker.split(":", 1)
    [path] = options.models
    if side == "peer":
        name, arrays, modes, outputs = peer(path, options)
        np.savez(os.path.join(folder, "inputs.npz"), **arrays)
    else:
        arrays = dict(np.load(os.path.join(folder, "inputs.npz")))
        name, modes, outputs = ours(path, options, arrays)
    np.savez(os.path.join(folder, f"{side}.npz"), *outputs())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps([name, list(modes)]), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(median_ms(modes[json.loads(line)], options.seconds)), file=answers, flush=True)


class Side:
    def __init__(self, side, path, folder):
        given = [argument for argument in sys.argv[1:] if argument not in OPTIONS.models]
        # --modes takes all names that follow it: the path comes first.
        command = [sys.executable, __file__, path, *given, "--worker", f"{side}:{folder}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name, self.modes = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a worker has failed; its message is above")
        return json.loads(line)

    def milliseconds(self, mode):
        print(json.dumps(mode), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def difference(folder):
    """The largest difference of an output, relative to numbers above 1."""
    import numpy as np

    left, right = (np.load(os.path.join(folder, f"{side}.npz")) for side in ("peer", "ours"))
    worst = 0.0
    for name in left.files:
        a, b = left[name].astype(np.float64), right[name].astype(np.float64)
        if a.shape != b.shape:
            return f"shapes {a.shape} and {b.shape}"
        if a.size:
            worst = max(worst, float((np.abs(a - b) / np.maximum(1, np.abs(a))).max()))
    return worst


def main():
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NETCL_NUM_THREADS"):
        os.environ[variable] = str(OPTIONS.threads)
    if OPTIONS.worker:
        return worker(OPTIONS)
    failed = False
    for path in OPTIONS.models:
        with tempfile.TemporaryDirectory() as folder:
            try:
                theirs = Side("peer", path, folder)
                own = Side("ours", path, folder)
            except RuntimeError as error:
                print(f"{os.path.basename(path)}: {error}")
                failed = True
                continue
            worst = difference(folder)
            times = {"": [], **{mode: [] for mode in own.modes}}
            for _ in range(OPTIONS.rounds):
                times[""].append(theirs.milliseconds(""))
                for mode in own.modes:
                    times[mode].append(own.milliseconds(mode))
            print(
                f"{os.path.basename(path)}: {own.name} beside {theirs.name}, largest difference {worst if isinstance(worst, str) else f'{worst:.1e}'}"
            )
            print(f"  {'onnxruntime':<12} {statistics.median(times['']):9.3f} ms")
            for mode in own.modes:
                ratio = statistics.median(a / b for a, b in zip(times[""], times[mode], strict=True))
                print(f"  {mode:<12} {statistics.median(times[mode]):9.3f} ms   {ratio:5.2f}x")
            failed |= isinstance(worst, str) or not worst <= 1e-4
            theirs.close()
            own.close()
    return int(failed)


OPTIONS = arguments()
if __name__ == "__main__":
    sys.exit(main())
