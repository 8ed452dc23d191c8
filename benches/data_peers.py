"""The loader beside PyTorch's, in one run: workers in separate processes take turns on each workload.

    python benches/data_peers.py --peer-python <venv with torch>/bin/python [--jpegs FOLDER] [--workers 2] [--rounds 5]
    python benches/data_peers.py --overlap [--device gpu]

The interpreter that runs this file must have our netcl. A workload is an epoch in shuffled batches of 64: 60,000 pictures of 28 x 28
bytes in memory with their labels, normalised; 20,000 dicts of three arrays from a list; 2,000 JPEG files (those of the folders in
FOLDER, again and again), decoded, resized to 256, cropped at random to 224 and normalised. PyTorch's workers are processes, ours
threads; its JPEG files are read with Pillow and torchvision where the latter is installed. Printed are samples per second; a ratio
above 1 means that ours is faster.

With --overlap an epoch of training on the device, its loader alone and its steps alone are timed instead: loading that is hidden
behind the steps costs nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BATCH, PICTURES, DICTS, JPEGS = 64, 60_000, 20_000, 2_000
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def pictures():
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (PICTURES, 1, 28, 28), np.uint8), rng.integers(0, 10, PICTURES)


def dicts():
    import numpy as np

    rng = np.random.default_rng(0)
    make = lambda i: {"tokens": rng.integers(0, 99, 128), "mask": rng.random(128, np.float32), "label": i % 2}  # noqa: E731
    return [make(i) for i in range(DICTS)]


def side_netcl(jpegs):
    from netcl import data
    from netcl.data import augment

    def prepare(name, workers):
        options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
        if name == "pictures":
            options["transforms"] = [augment.Normalize([0.286], [0.353])]
            return data.DataLoader(data.TensorDataset(*pictures()), **options)
        if name == "dicts":
            return data.DataLoader(dicts(), **options)
        folder = data.ImageFolder(jpegs, size=256)
        again = data.Subset(folder, [i % len(folder) for i in range(JPEGS)])
        options["transforms"] = [augment.RandomCrop(224), augment.Normalize(MEAN, DEVIATION)]
        return data.DataLoader(again, **options)

    return prepare


def side_torch(jpegs):
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    torch.set_num_threads(1)

    class Pictures(Dataset):
        def __init__(self):
            self.images, self.labels = pictures()

        def __len__(self):
            return PICTURES

        def __getitem__(self, i):
            return (torch.from_numpy(self.images[i]).float() / 255 - 0.286) / 0.353, int(self.labels[i])

    class Files(Dataset):
        """As torchvision's ImageFolder with its usual transforms, where torchvision is missing."""

        def __init__(self):
            found = sorted(os.path.join(at, name) for at, _, names in os.walk(jpegs) for name in names)
            self.files = [name for name in found if name.lower().endswith((".jpg", ".jpeg"))]

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            from PIL import Image

            image = Image.open(self.files[i]).convert("RGB").resize((256, 256), Image.BILINEAR)
            y, x = np.random.randint(0, 33, 2)
            array = torch.from_numpy(np.array(image)[y : y + 224, x : x + 224]).permute(2, 0, 1).float() / 255
            return (array - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1), 0

    def files():
        try:
            from torchvision import datasets, transforms as t
        except ImportError:
            return Files()
        steps = [t.Resize((256, 256)), t.RandomCrop(224), t.ToTensor(), t.Normalize(MEAN, DEVIATION)]
        return datasets.ImageFolder(jpegs, t.Compose(steps))

    def prepare(name, workers):
        options = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
        if name == "pictures":
            return DataLoader(Pictures(), **options)
        if name == "dicts":
            return DataLoader(dicts(), **options)
        folder = files()
        return DataLoader(Subset(folder, [i % len(folder) for i in range(JPEGS)]), **options)

    return prepare


def answer(side, jpegs):
    """Answers each workload on standard input with its samples per second."""
    prepare = side_netcl(jpegs) if side == "netcl" else side_torch(jpegs)
    loaders = {}
    for line in sys.stdin:
        name, workers = line.split()
        if line not in loaders:
            loaders[line] = prepare(name, int(workers))
        count, started = 0, time.perf_counter()
        for batch in loaders[line]:
            count += len(batch["label"] if isinstance(batch, dict) else batch[0])
        print(json.dumps(count / (time.perf_counter() - started)), flush=True)


class Worker:
    def __init__(self, python, side, jpegs):
        command = [python, os.path.abspath(__file__), "--worker", side, *(["--jpegs", jpegs] if jpegs else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def overlap(device, workers, rounds, trace):
    """Seconds of an epoch's loading, of its steps, and of both together; the last epoch as a trace for chrome://tracing."""
    import numpy as np

    from netcl import nn, optim
    from netcl.core.device import manager
    from netcl.data import DataLoader, TensorDataset, augment
    from netcl.nn import functional as F

    queue = manager.default(device).queue
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20_000, 3, 32, 32), np.uint8), rng.integers(0, 10, 20_000)
    changes = [augment.RandomCrop(32, padding=4), augment.RandomRotation(10), augment.ColorJitter(0.3, 0.3, 0.3, 0.1)]
    changes.append(augment.Normalize(MEAN, DEVIATION))
    loader = DataLoader(TensorDataset(images, labels), 256, True, workers, changes, queue, prefetch=4)
    net = nn.Sequential(
        nn.Conv2d(queue, 3, 32, 3, pad=1), nn.ReLU(), nn.Conv2d(queue, 32, 64, 3, pad=1), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(queue, 64 * 64, 10),
    )  # fmt: skip
    opt = optim.SGD(net.parameters(), lr=0.01)

    def step(x, y, times):
        for _ in range(times):
            opt.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            opt.step()

    def seconds(work):
        started = time.perf_counter()
        work()
        queue.finish()
        return time.perf_counter() - started

    def epoch(times):
        waited, batches = 0.0, iter(loader)
        events.clear()
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            came = time.perf_counter()
            waited += came - started
            if batch is None:
                return waited
            step(*batch, times)
            # The device works on until the next step at most: then it has all of its queue.
            if trace:
                queue.finish()
            for name, begin, end in [("wait and upload", started, came), ("step", came, time.perf_counter())]:
                events.append({"name": name, "ph": "X", "pid": 1, "tid": 1, "ts": begin * 1e6, "dur": (end - begin) * 1e6})

    def steps(times):
        for _ in range(len(loader)):
            step(*batch, times)

    events = []
    batch = next(iter(loader))
    steps(1)
    loading, once = seconds(lambda: epoch(0)), seconds(lambda: steps(1))
    # As many steps on a batch as take about as long as loading it.
    times = max(1, round(loading / once))
    print(f"{len(loader)} batches of 256, {times} steps on each; seconds of loading, of steps, of both,")
    print("of both in which the loop waited for its loader; both / the longer one")
    for _ in range(rounds):
        alone, work = seconds(lambda: epoch(0)), seconds(lambda: steps(times))
        started = time.perf_counter()
        waited = epoch(times)
        queue.finish()
        both = time.perf_counter() - started
        print(f"{alone:.3f}  {work:.3f}  {both:.3f}  {waited:.3f}  {both / max(alone, work):.2f}", flush=True)
    if trace:
        with open(trace, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": events}, file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--jpegs", help="a folder with a folder of JPEG files for each class")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--device", default="cpu", help="our device selector, for --overlap")
    parser.add_argument("--trace", metavar="FILE", help="with --overlap: the last epoch, each step waited for")
    options = parser.parse_args()
    if options.worker:
        return answer(options.worker, options.jpegs)
    if options.overlap:
        return overlap(options.device, options.workers, options.rounds, options.trace)
    sides = [Worker(sys.executable, "netcl", options.jpegs), Worker(options.peer_python, "torch", options.jpegs)]
    lines = [f"{name} {workers}" for name in ("pictures", "dicts") for workers in (0, options.workers)]
    lines += [f"jpegs {options.workers}"] if options.jpegs else []
    print("workload, workers  netcl  torch  ratio (samples per second, medians; ratio: median of the rounds)")
    for line in lines:
        rounds = [[side.ask(line) for side in sides] for _ in range(options.rounds)]
        ours, theirs = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        print(f"{line:12} {ours:12,.0f} {theirs:12,.0f} {statistics.median(a / b for a, b in rounds):6.2f}", flush=True)
    return None


if __name__ == "__main__":
    main()
