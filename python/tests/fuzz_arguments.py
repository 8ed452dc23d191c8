"""Calls every public function with good and hostile arguments, mixed: the child process of test_fuzz.py.

Call number `i` of a seed is always the same call, so that a finding can be run again alone::

    python python/tests/fuzz_arguments.py --seed 1 --start 1234 --count 1 --verbose

Before each call its number and text go into the journal, which names the culprit when the process dies of it. What is wrong
without dying (a panic, an exception that is no ``Exception``, memory that stays) goes into the report, a line of JSON each.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import inspect
import json
import os
import random
import resource
import sys
import time
import types
import warnings

import numpy as np

import netcl
from netcl import IndexTensor, Tensor
from netcl.core.device import manager

MODULES = [
    "netcl",
    "netcl.autograd",
    "netcl.autograd.elementwise",
    "netcl.autograd.ops",
    "netcl.autograd.tape",
    "netcl.core.backend.cpu",
    "netcl.core.backend.opencl",
    "netcl.core.capabilities",
    "netcl.core.device",
    "netcl.core.device_profile",
    "netcl.core.index",
    "netcl.core.kernel_selector",
    "netcl.core.kernels",
    "netcl.core.kernels.primitives",
    "netcl.core.memory",
    "netcl.core.tensor",
    "netcl.data",
    "netcl.data.augment",
    "netcl.data.filters",
    "netcl.data.augment_gpu",
    "netcl.data.shared_batch",
    "netcl.distributed.collectives",
    "netcl.distributed",
    "netcl.nn",
    "netcl.nn.functional",
    "netcl.nn.init",
    "netcl.ops",
    "netcl.ops.elementwise",
    "netcl.optim",
    "netcl.optim.lr_scheduler",
    "netcl.runtime",
    "netcl.trainer.callbacks",
    "netcl.trainer.metrics",
]

# Names that are not called, and why.
LEFT_OUT = {
    "from_int_ptr": "takes an address for granted",
    "benchmark": "repeats what it is given as often as it is told",
}

# Methods besides the public ones.
OPERATORS = """
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __matmul__ __rmatmul__ __neg__
    __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __getitem__ __setitem__ __iadd__ __isub__ __imul__ __itruediv__ __len__
    __iter__ __bool__ __float__ __int__ __index__ __contains__ __array__ __repr__ __reduce__ __copy__ __deepcopy__ __format__
    __dlpack__ __call__ __hash__
""".split()

# Walking over 10^12 elements takes minutes, also where nothing is wrong: these get no huge views.
REDUCTIONS = (
    "sum mean max min prod var std any all argmax argmin norm logsumexp softmax cumsum loss entropy item bool nll_loss "
    "topk sort median is_finite normal norm_ cosine matmul linear einsum allclose equal clip_grad finite array contains mse kl_div huber "
    "glu softmin gumbel distance update add_histogram add_image"
).split()


class Refuses:
    """Every protocol method raises."""

    def _refuse(self, *args, **kwargs):
        raise RuntimeError("refused")

    __len__ = __index__ = __int__ = __float__ = __iter__ = __getitem__ = __bool__ = __array__ = __eq__ = __hash__ = _refuse
    __call__ = __dlpack__ = __dlpack_device__ = __enter__ = __exit__ = __fspath__ = _refuse

    def __repr__(self):
        return "Refuses()"


class Lies:
    """Protocol methods return the wrong things."""

    def __len__(self):
        return 10**12

    def __getitem__(self, at):
        if at > 3:
            raise IndexError
        return self

    def __index__(self):
        return 2**70

    def __float__(self):
        return float("nan")

    def __array__(self, *args, **kwargs):
        return "not an array"

    def __dlpack__(self, *args, **kwargs):
        return 5

    def __dlpack_device__(self):
        return (99, -1)

    def __call__(self, *args, **kwargs):
        return self


def whole(n: int):
    return (repr(n) if abs(n) < 10**6 else f"{n:#x}", lambda d: n)


def value(v):
    return (repr(v)[:60], lambda d: v)


def tensor(*shape: int, dtype: str = "float32", grad: bool = False, fill=None):
    def make(d):
        count = int(np.prod(shape))
        data = np.linspace(-1, 1, count).reshape(shape) if fill is None else np.full(shape, fill)
        return Tensor.from_host(d, data.astype("float32"), dtype=dtype).requires_grad_(grad)

    extra = "" if fill is None else f", {fill}"
    return (f"Tensor({shape}, {dtype}{', grad' if grad else ''}{extra})", make)


def view(text: str, change, *shape: int):
    of, make = tensor(*shape)
    return (f"{of}{text}", lambda d: change(make(d)))


def index(values, dtype: str = "int64"):
    array = np.array(values, dtype=dtype)
    return (f"IndexTensor({values}, {dtype})", lambda d: IndexTensor.from_host(d, array))


def array(text: str, make):
    return (text, lambda d: make())


NUMBERS = [whole(n) for n in (-1, 0, 1, 2, 3, 7, -2, -7, 255, 65537)]
NUMBERS += [whole(n) for n in (2**31 - 1, 2**31, 2**32, -(2**31), 2**53, 10**12, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30)]
NUMBERS += [value(v) for v in (True, 0.5, -0.5, 0.0, -0.0, 1e300, -1e300, 1e-300, 1e12, 1e19, 1e-18, float("nan"), float("inf"), -float("inf"), 1j)]

TEXTS = [value(v) for v in ("", "float32", "float16", "bfloat16", "int64", "cpu", "auto", "relu", "same", "mean", "none", "ij,jk->ik", "i...->", "\0", "é" * 9, "\ud800")]
TEXTS += [("'x' * 10000", lambda d: "x" * 10000), value(b""), value(b"\xff\0"), value(np.dtype("float64")), value("float8")]

CONTAINERS = [value(v) for v in ([], (), [[]], [[1, 2], [3]], [1.5], [True], {"a": 1}, {1, 2}, (3,), (2, 3), (0,), (0, 3), (2, 3, 4), (-1,), (-1, -1), (1, -1), (None,), ("a",), slice(None, None, -1), slice(2**62, -(2**62), 2**62), Ellipsis, (0, Ellipsis, 1), (slice(None), None), range(3), [0, 0], [2**31], [-(2**63)])]
CONTAINERS += [value(v) for v in ((2**31, 2**31), (2**62, 4), (0, 2**62, 4), (10**6, 10**6), (2**64,), (2**32, 2**32, 0))]
CONTAINERS += [("[1] * 70", lambda d: [1] * 70), ("[2] * 70", lambda d: [2] * 70), ("[0] * 10000", lambda d: [0] * 10000)]

TENSORS = [tensor(), tensor(0), tensor(0, 3), tensor(1), tensor(4), tensor(2, 3), tensor(3, 3), tensor(4, 5, grad=True), tensor(2, 3, 8), tensor(2, 3, 8, 8), tensor(1, 2, 3, 4, 5), tensor(1, 1, 1, 1, 1, 1, 1, 1)]
TENSORS += [tensor(2, 3, dtype=dtype) for dtype in ("float64", "float16", "bfloat16")]
TENSORS += [tensor(3, fill=float("nan")), tensor(2, 3, fill=float("inf")), tensor(3, fill=1e38), tensor(4, 5, fill=-1.0)]
TENSORS += [view(".transpose(0, 1)", lambda t: netcl.ops.transpose(t, 0, 1), 3, 2), view("[::-1]", lambda t: t[::-1], 5), view("[1:, ::2]", lambda t: t[1:, ::2], 4, 6), view(".expand((3, 4))", lambda t: netcl.ops.expand(t, (3, 4)), 3, 1), view(" of the other device", lambda t: elsewhere(t), 2, 3)]
HUGE = [view(".expand((1 << 17, 1 << 16))", lambda t: netcl.ops.expand(t, (1 << 17, 1 << 16)), 1), view(".expand((10**6, 10**6))", lambda t: netcl.ops.expand(t, (10**6, 10**6)), 1), view(".expand((2**59,))", lambda t: netcl.ops.expand(t, (2**59,)), 1)]

INDICES = [index([0, 1, 2]), index([0, 1, 2, 3], "int32"), index([]), index(1), index([[0, 1], [2, 0]]), index([-1, 5, 2**62]), index([2**31 - 1], "int32"), index([-(2**63)])]

ARRAYS = [
    array(f"np {text}", make)
    for text, make in {
        "float32": lambda: np.ones((2, 3), "float32"),
        "float64": lambda: np.ones(4),
        "0-d": lambda: np.array(3.0),
        "empty": lambda: np.zeros((0, 3)),
        "float16": lambda: np.ones(3, "float16"),
        "bool": lambda: np.array([True, False]),
        "int64": lambda: np.arange(3),
        "uint64": lambda: np.array([2**64 - 1], "uint64"),
        "complex": lambda: np.ones(3, "complex64"),
        "object": lambda: np.array([1, "a", None], dtype=object),
        "text": lambda: np.array(["a", "b"]),
        "datetime64": lambda: np.array(["2020-01-01"], "datetime64[D]"),
        "struct": lambda: np.zeros(2, [("a", "f4"), ("b", "i8")]),
        "big endian": lambda: np.ones(3, ">f4"),
        "longdouble": lambda: np.ones(3, "longdouble"),
        "strided": lambda: np.ones((4, 6))[::2, ::-3],
        "broadcast": lambda: np.broadcast_to(np.float32(1), (10**6, 10**6)),
        "read-only": lambda: np.frombuffer(b"\0" * 8, "float32"),
        "64 axes": lambda: np.zeros((1,) * 32),
        "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
        "scalar": lambda: np.float32(2),
        "int scalar": lambda: np.int64(3),
        "bool scalar": lambda: np.True_,
    }.items()
]

OBJECTS = [value(None), ("object()", lambda d: object()), ("Refuses()", lambda d: Refuses()), ("Lies()", lambda d: Lies()), ("lambda *a: a", lambda d: lambda *a, **k: a), ("lambda: raises", lambda d: raises), value(int), value(Tensor), value(netcl), ("the queue", lambda d: d), ("iter([1])", lambda d: iter([1])), ("a generator", lambda d: (i for i in range(2))), ("Linear(3, 4)", lambda d: netcl.nn.Linear(d, 3, 4)), ("deep list", lambda d: functools.reduce(lambda a, _: [a], range(300), 1.0))]

HOSTILE = [NUMBERS, NUMBERS, TEXTS, CONTAINERS, TENSORS, TENSORS, HUGE, INDICES, ARRAYS, OBJECTS]

SMALL = [whole(n) for n in (0, 1, 2, 3)]
POSITIVE = [whole(n) for n in (1, 2, 3, 4)]
UNIT = [value(v) for v in (0.0, 0.1, 0.5, 0.9, 1.0)]
SHAPES = [value(v) for v in ((2, 3), (4,), (), (1, 2, 3), [3, 3])]
CALLABLES = [("lambda *a: a[0]", lambda d: lambda *a, **k: a[0] if a else None), ("relu", lambda d: netcl.autograd.relu)]
PARAMETERS = [("parameters", lambda d: [Tensor.from_host(d, np.ones((2, 3), "float32")).requires_grad_()]), ("Linear(3, 4).parameters()", lambda d: list(netcl.nn.Linear(d, 3, 4).parameters()))]

# What parameters of these names usually take.
GOOD = {
    "queue device q": [("the queue", lambda d: d)],
    "context": [("the queue's context", lambda d: getattr(d, "context", None))],
    "shape shapes size sizes dims normalized_shape output_size": [*SHAPES, *POSITIVE],
    "dtype": [value(v) for v in ("float32", "float64", "float16", "bfloat16", None)],
    "axis dim axes dims": [value(v) for v in (0, 1, -1, None, (0, 1))],
    "p dropout alpha beta gamma momentum eps lr weight_decay scale negative_slope label_smoothing decay dampening": UNIT,
    "kernel_size kernel stride padding dilation groups output_padding scale_factor upscale_factor": POSITIVE,
    "n k num count depth num_layers in_channels out_channels in_features out_features channels hidden_size input_size num_heads embed_dim num_classes classes repeats": POSITIVE,
    "keepdims keepdim bias affine training requires_grad reverse bidirectional batch_first ceil_mode largest sorted nesterov": [value(True), value(False)],
    "indices index labels target targets ids": INDICES[:5],
    "weight w": [tensor(4, 3), tensor(4, 3, 3), tensor(4, 3, 3, 3), tensor(3)],
    "params parameters": PARAMETERS,
    "optimizer": [("SGD", lambda d: netcl.optim.SGD(PARAMETERS[0][1](d), lr=0.1))],
    "model module layer": [("Linear(3, 4)", lambda d: netcl.nn.Linear(d, 3, 4))],
    "f fn func function callable closure": CALLABLES,
    "tensors xs inputs": [("[two tensors]", lambda d: [TENSORS[5][1](d), TENSORS[5][1](d)])],
    "reduction mode": [value(v) for v in ("mean", "sum", "none", "nearest", "constant")],
    "seed": SMALL,
    "out": [value(None)],
    "name label tag": [value("name")],
}
GOOD = {name: pool for names, pool in GOOD.items() for name in names.split()}
PLAIN = [*TENSORS[4:10], *(tensor(*shape, grad=True) for shape in ((2, 3), (3, 3), (2, 3, 8), (2, 3, 8, 8)))]


def raises(*args, **kwargs):
    raise ValueError("the callable raises")


@functools.cache
def queues():
    """The native CPU and, with --opencl, the first OpenCL device."""
    found = [manager.default("cpu").queue]
    if OPTIONS.opencl:
        found += [manager.default(0).queue] if manager.discover() else []
    return found


def elsewhere(tensor):
    return tensor.to(queues()[-1] if tensor.queue is queues()[0] else queues()[0])


def owned(thing) -> bool:
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in ("netcl", "_netcl", "builtins")


def methods(cls) -> list[str]:
    names = [n for n in dir(cls) if not n.startswith("_") and n not in LEFT_OUT]
    return [n for n in names + OPERATORS if any(n in vars(base) for base in cls.__mro__[:-1]) and callable(getattr(cls, n))]


def discover() -> list[tuple[str, object]]:
    """Every public callable, by name: functions, constructors, and the methods of the two kinds of tensors (unbound)."""
    found: dict[str, object] = {}
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
            thing = getattr(module, public)
            if isinstance(thing, types.ModuleType) or not callable(thing) or public in LEFT_OUT or id(thing) in seen or not owned(thing):
                continue
            seen.add(id(thing))
            found[f"{name}.{public}"] = thing
            if isinstance(thing, type):
                bound = vars(thing)
                found |= {f"{name}.{public}.{n}": getattr(thing, n) for n in methods(thing) if isinstance(bound.get(n), (staticmethod, classmethod))}
    for cls, make in ((Tensor, TENSORS + HUGE), (IndexTensor, INDICES)):
        found |= {f"{cls.__name__}.{n}": (n, make) for n in methods(cls)}
    found |= {f"manager.{n}": getattr(manager, n) for n in methods(type(manager))}
    return sorted(found.items())


@functools.cache
def parameters(function) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


class Call:
    """One call: everything about it follows from the seed and its number."""

    def __init__(self, seed: int, number: int, targets):
        self.number, self.returned = number, False
        self.random = random.Random(f"{seed}:{number}")
        self.name, self.target = targets[number % len(targets)]
        self.queue = self.random.choice(queues() if self.random.random() < 0.2 else queues()[:1])
        self.texts: list[str] = []
        self.plain = [self.random.choice(PLAIN)] if self.random.random() < 0.8 else PLAIN

    def take(self, pool) -> object:
        text, make = self.random.choice(pool)
        self.texts.append(text)
        return make(self.queue)

    def hostile(self, name: str) -> object:
        pool = self.random.choice(HOSTILE)
        if pool is HUGE and any(part in name.lower() for part in REDUCTIONS):
            pool = TENSORS
        return self.take(pool)

    def good(self, parameter: inspect.Parameter) -> object:
        if parameter.default not in (inspect.Parameter.empty, None, Ellipsis) and self.random.random() < 0.5:
            self.texts.append("the default")
            return parameter.default
        return self.take(GOOD.get(parameter.name) or self.likely(parameter))

    def likely(self, parameter: inspect.Parameter):
        """A pool for a parameter by its default, annotation or name; tensors of one call mostly have one shape."""
        kind = type(parameter.default).__name__ if parameter.default is not parameter.empty else str(parameter.annotation)
        if kind in ("bool", "int", "float"):
            return {"bool": GOOD["bias"], "int": POSITIVE, "float": UNIT}[kind]
        if any(part in parameter.name for part in ("num", "n_", "size", "features", "channels", "steps", "epochs", "heads", "nbytes")):
            return POSITIVE
        return self.plain


    def arguments(self, function, name: str):
        known = parameters(function)
        if known is None:
            return [self.hostile(name) for _ in range(self.random.randrange(4))], {}
        required = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        # One hostile argument among good ones gets furthest, a number furthest of all; sometimes several, sometimes all of them.
        share = self.random.choice([0.0, 0.0, 0.0, 0.15, 0.3, 1.0])
        odd = self.random.choice(required).name if required and self.random.random() < 0.7 else None
        args, kwargs = [], {}
        for p in required:
            if p.default is not p.empty and p.name != odd and self.random.random() < 0.6:
                continue
            self.texts.append(f"{p.name}=")
            if p.name == odd and self.random.random() < 0.5:
                chosen = self.take(NUMBERS)
            elif p.name == odd or self.random.random() < share:
                chosen = self.hostile(name)
            else:
                chosen = self.good(p)
            if p.kind is p.KEYWORD_ONLY or ((kwargs or p.default is not p.empty) and p.kind is not p.POSITIONAL_ONLY):
                kwargs[p.name] = chosen
            else:
                args.append(chosen)
        if any(p.kind is p.VAR_POSITIONAL for p in known):
            args += [self.hostile(name) if self.random.random() < share else self.take(self.plain) for _ in range(self.random.randrange(3))]
        if self.random.random() < 0.03:
            args.append(self.hostile(name))
        if self.random.random() < 0.03:
            kwargs[self.random.choice(["dtype", "nonsense", "out", "axis"])] = self.hostile(name)
        return args, kwargs

    def run(self, journal):
        """Makes the call, then one method of what it returned."""
        if isinstance(self.target, tuple):
            method, pool = self.target
            if any(part in method for part in REDUCTIONS):
                pool = [entry for entry in pool if entry not in HUGE]
            function = getattr(self.take(pool), method)
        else:
            function = self.target
        args, kwargs = self.arguments(function, self.name)
        journal(self.number, f"{self.name}({' '.join(self.texts)})")
        result = function(*args, **kwargs)
        self.returned = True
        journal(self.number, f"{self.name}({' '.join(self.texts)}), its repr")
        repr(result)
        if result is None or isinstance(result, (type, types.ModuleType)) or not owned(type(result)) or type(result).__module__ == "builtins":
            return
        known = methods(type(result)) or ["__repr__"]
        name = self.random.choice(known)
        if self.random.random() < 0.5:
            name = next((often for often in ("__call__", "backward", "step") if often in known), name)
        self.texts.append(f").{name}(")
        function = getattr(result, name)
        args, kwargs = self.arguments(function, name)
        journal(self.number, f"{self.name}({' '.join(self.texts)})")
        repr(function(*args, **kwargs))


def check_pools() -> None:
    """Makes every value once: a pool whose entries fail would test nothing."""
    for pool in [*HOSTILE, *GOOD.values(), HUGE, PLAIN]:
        for _, make in pool:
            make(queues()[-1])


def settings():
    """A function that undoes what a call may have changed for those after it."""
    threads, precision = netcl.num_threads(), netcl.get_matmul_precision()
    capture = netcl.runtime.get_capture()

    def reset() -> None:
        netcl.set_num_threads(threads)
        netcl.set_matmul_precision(precision)
        if capture.is_recording:
            capture.end()

    return reset


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def complaint(error: BaseException) -> str | None:
    """What is wrong with an exception, if anything."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, Exception):
        return f"raised {text}, which is no Exception"
    if type(error).__name__ == "PanicException" or "please report this" in text:
        return f"panicked: {text}"
    if isinstance(error, (SystemError, AssertionError)):
        return f"raised {text}"
    if not str(error) and type(error).__module__ != "builtins":
        return f"raised {text} without a text"
    return None


def main() -> None:
    if OPTIONS.memory:
        resource.setrlimit(resource.RLIMIT_AS, (OPTIONS.memory << 20, OPTIONS.memory << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    targets = discover()
    if OPTIONS.list:
        print(*(name for name, _ in targets), sep="\n")
        return
    journal_file = os.open(OPTIONS.journal, os.O_RDWR | os.O_CREAT, 0o600) if OPTIONS.journal else None
    report = open(OPTIONS.report, "a", buffering=1) if OPTIONS.report else sys.stdout  # noqa: SIM115 - open until the end

    def journal(number: int, text: str) -> None:
        if OPTIONS.verbose:
            print(number, text, flush=True)
        if journal_file is not None:
            line = json.dumps([number, text]).encode()
            os.ftruncate(journal_file, 0)
            os.pwrite(journal_file, line, 0)

    check_pools()
    reset = settings()
    returned, raised = set(), set()
    for number in range(OPTIONS.start, OPTIONS.start + OPTIONS.count):
        call = Call(OPTIONS.seed, number, targets)
        journal(number, f"{call.name}, its arguments")
        wrong, held, start = None, resident(), time.monotonic()
        try:
            call.run(journal)
            returned.add(call.name)
        except BaseException as error:  # what is no Exception is what is looked for
            wrong = complaint(error)
            (returned if call.returned else raised).add(call.name)
            if OPTIONS.verbose:
                print("   ", type(error).__name__, str(error)[:300], flush=True)
        reset()
        # Deep networks are as large as the width that they are told.
        if resident() > held + (OPTIONS.growth << 20) and "resnet" not in call.name.lower():
            gc.collect()
            wrong = wrong or f"the process grew from {held >> 20} to {resident() >> 20} MiB"
        if OPTIONS.slow and time.monotonic() - start > OPTIONS.slow:
            print(f"slow: {time.monotonic() - start:.1f} s {call.name}({' '.join(call.texts)})", file=sys.stderr, flush=True)
        if wrong:
            report.write(json.dumps([number, f"{call.name}({' '.join(call.texts)})", wrong]) + "\n")
    if OPTIONS.verbose:
        print("never returned:", *sorted(raised - returned))
    journal(OPTIONS.start + OPTIONS.count, "done")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first call")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--memory", type=int, default=6144, help="MiB of address space; 0 for any")
    parser.add_argument("--growth", type=int, default=1536, help="MiB by which a call may make the process grow")
    parser.add_argument("--journal", help="file for the call that is being made")
    parser.add_argument("--report", help="file for findings; standard output otherwise")
    parser.add_argument("--opencl", action="store_true", help="also the first OpenCL device")
    parser.add_argument("--slow", type=float, default=0, help="print calls that take longer, in seconds")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--list", action="store_true", help="print what is called")
    OPTIONS = parser.parse_args()
    main()
