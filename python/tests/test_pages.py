"""Runs every listing of the specification's pages as written, on the native CPU and on every OpenCL device.

The pages lie outside the checkout, in `../shared/spec` (or where `SPEC_PAGES` says), and nothing of them is repeated here: a listing
is known by its page and its place among the page's listings. Where the folder is missing these tests are skipped, and the closing list
of `cargo xtask test` says so.

A listing runs in a namespace of its own that holds nothing but the names which it uses and does not define: `SUPPLIES` says what they
are. `CHECKS` holds what a listing's comments and the text around it say about the result.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import io
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import find_device_selectors

FOLDER = Path(os.environ.get("SPEC_PAGES") or Path(__file__).resolve().parents[3] / "shared" / "spec")
# How many listings each page has: one that is no longer found must not pass in silence.
PAGES = {"architecture": 1, "core": 12, "faq": 1, "pyopencl": 3, "tensor": 10}

here = FOLDER.is_dir()
needs_pages = pytest.mark.skipif(not here, reason=f"the pages are not here ({FOLDER}): SPEC_PAGES names their folder")


# ---- listings in plain text -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Listing:
    """A piece of Python of a page."""

    page: str
    number: int
    line: int
    code: str


def compiles(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def opens(line: str) -> bool:
    """Whether a listing can begin with a line: an import, an assignment, or a decorator. (A call alone is how headings look.)"""
    return bool(re.match(r"(import|from) \w|@\w+$|[a-z]\w*(, \w+)* = ", line))


def is_heading(line: str) -> bool:
    """Whether a line that happens to be Python is a heading: a single word."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*", line))


def indented(lines: list[str]) -> list[str]:
    """The lines with the indentation that the page has lost: of what follows a line that opens a block, everything up to the first
    `...` belongs to it, and in a class every field."""
    given: list[str] = []
    inside = ""
    for line in lines:
        field = bool(re.match(r"\w+: \w", line))
        if inside == "class" and not field:
            inside = ""
        given.append("    " + line if inside else line)
        if line == "...":
            inside = ""
        elif opener := re.match(r"(class|with|if|for) .*:$", line):
            inside = opener[1]
    return given


def longest_listing(lines: list[str], repair: Callable[[list[str]], list[str]]) -> list[str]:
    """The most lines, from the first on, that are Python together."""
    found: list[str] = []
    for end in range(1, len(lines) + 1):
        # Prose ends a listing for good; an open bracket or block does not, so a few lines more are tried.
        if is_heading(lines[end - 1]) or end - len(found) > 20:
            break
        candidate = repair(lines[:end])
        if compiles(candidate):
            found = candidate
    while found and (not found[-1].strip() or found[-1].startswith("#")):
        found.pop()
    return found


def parse(page: str, text: str) -> list[Listing]:
    """The listings of a page, in order."""
    lines = text.splitlines()
    lost = not any(line.startswith("    ") for line in lines)
    repair = indented if lost else list
    found: list[Listing] = []
    at = 0
    while at < len(lines):
        code = longest_listing(lines[at:], repair) if opens(lines[at]) else []
        if code:
            found.append(Listing(page, len(found) + 1, at + 1, "\n".join(code)))
        at += max(len(code), 1)
    return found


def listings() -> list[Listing]:
    return [one for page in PAGES for one in parse(page, (FOLDER / f"{page}.txt").read_text(encoding="utf-8"))]


def free_names(code: str) -> set[str]:
    """The names that a listing uses before it has defined them."""
    free: set[str] = set()
    bound = set(dir(builtins))
    for statement in ast.parse(code).body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        stored |= {a.asname or a.name.split(".")[0] for a in getattr(statement, "names", [])}
        stored |= {statement.name} if isinstance(statement, ast.ClassDef) else set()
        # Only a plain assignment reads before it stores; `for x in ...` and `with ... as x` read `x` later.
        before = bound if isinstance(statement, ast.Assign) else bound | stored
        free |= {node.id for node in names if isinstance(node.ctx, ast.Load)} - before
        bound |= stored
    return free


# ---- what the listings need, and what they promise ----------------------------------------------------------------


class Setting:
    """One device, and things on it."""

    def __init__(self, selector: str) -> None:
        import netcl
        from netcl.core.device import manager
        from netcl.core.tensor import Tensor

        self.netcl, self.Tensor, self.manager = netcl, Tensor, manager
        self.handle = manager.default(selector)
        self.queue, self.context = self.handle.queue, self.handle.context
        self.host = np.random.default_rng(7).normal(size=(4, 8)).astype(np.float32)
        self.labels = np.array([0, 1, 2, 0], dtype=np.float32)

    @functools.cached_property
    def model(self) -> typing.Any:
        from netcl import nn

        return nn.Sequential(nn.Linear(self.queue, 8, 16), nn.ReLU(), nn.Linear(self.queue, 16, 3))

    @functools.cached_property
    def twin(self) -> typing.Any:
        """Another replica of the model, with gradients of 1."""
        import copy

        twin = copy.deepcopy(self.model)
        for parameter in twin.parameters():
            parameter.grad = self.tensor(np.ones(parameter.shape, np.float32))
        return twin

    @functools.cached_property
    def opt(self) -> typing.Any:
        from netcl import optim

        self.weights = [p.to_host().copy() for p in self.model.parameters()]
        return optim.SGD(self.model.parameters(), lr=0.1)

    @functools.cached_property
    def loader(self) -> typing.Any:
        from netcl.data import DataLoader, TensorDataset

        samples = TensorDataset(np.concatenate([self.host, self.host + 1]), np.concatenate([self.labels, self.labels]))
        return DataLoader(samples, batch_size=4, num_workers=2)

    def tensor(self, data: object) -> object:
        return self.Tensor.from_host(self.queue, data)

    def trained(self) -> bool:
        return all(not np.array_equal(p.to_host(), old) for p, old in zip(self.model.parameters(), self.weights))


def pyopencl() -> object:
    return pytest.importorskip("pyopencl", reason="PyOpenCL is not installed")


def enum_of_variants() -> object:
    from netcl.core.kernel_selector import KernelVariant

    return KernelVariant


# What a name stands for in every listing, unless `SPECIAL` has it for one.
SUPPLIES: dict[str, Callable[[Setting], object]] = {
    "Any": lambda s: typing.Any,
    "Dict": lambda s: typing.Dict,  # noqa: UP006 - the page's own spelling
    "F": lambda s: s.netcl.nn.functional,
    "KernelVariant": lambda s: enum_of_variants(),
    "Tensor": lambda s: s.Tensor,
    "Tuple": lambda s: typing.Tuple,  # noqa: UP006
    "a": lambda s: s.tensor(s.host),
    "cl": lambda s: pyopencl(),
    "context": lambda s: s.context,
    "dataclass": lambda s: dataclasses.dataclass,
    "field": lambda s: dataclasses.field,
    "host_arr": lambda s: s.host,
    "host_array": lambda s: s.host,
    "host_in": lambda s: s.host,
    "host_ndarray": lambda s: s.host,
    "in_features": lambda s: 8,
    "loader": lambda s: s.loader,
    "manager": lambda s: s.manager,
    "model": lambda s: s.model,
    "n": lambda s: 1000,
    "nbytes": lambda s: 1000,
    "opt": lambda s: s.opt,
    "out_features": lambda s: 16,
    "q": lambda s: s.queue,
    "queue": lambda s: s.queue,
    "replicas": lambda s: [s.model, s.twin],
    "sync_grads": lambda s: __import__("netcl.distributed").distributed.sync_grads,
    "x": lambda s: s.tensor(s.host),
    "y": lambda s: s.tensor(s.labels),
}
SPECIAL: dict[tuple[str, int], dict[str, Callable[[Setting], object]]] = {
    ("pyopencl", 3): {"x": lambda s: s.tensor(np.arange(1000, dtype=np.float32))},
}

def check_outline(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert s.trained()
    np.testing.assert_array_equal(s.netcl.io.load_model("ckpt.netcl")[0].weight.to_host(), s.model[0].weight.to_host())
    # The twin's gradient, halved: by then the model had none.
    for replica in (s.model, s.twin):
        np.testing.assert_array_equal(replica[0].bias.grad.to_host(), np.full(16, 0.25, np.float32))


def check_default_device(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    dev = ran["dev"]
    assert printed.splitlines()[0] == f"{dev.platform_name} {dev.device_name} {dev.backend} {dev.device_type}"
    assert dev == s.handle and dev.queue == s.queue
    assert (dev.context is None) == (dev.backend == "cpu")


def check_handle(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    names = [f.name for f in dataclasses.fields(ran["DeviceHandle"])]
    assert names == ["platform_name", "device_name", "backend", "device_type", "context", "queue"]
    assert all(isinstance(getattr(s.handle, name), str) for name in names[:4])
    assert s.handle.backend in ("cl", "cpu") and s.handle.queue is not None


def check_factories(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    np.testing.assert_array_equal(ran["a"].to_host(), s.host)
    assert ran["b"].shape == (4, 8) and not ran["b"].to_host().any()


def check_pool(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert printed.split() == ["0", "1", "1024"] and ran["h"].released
    again = ran["pool"].allocate(1000)
    assert ran["pool"].stats.hits == 1 and ran["pool"].stats.bytes_cached == 0
    assert again.buffer.size == 1024


def check_persistent_pool(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    keys = {"hits", "misses", "hit_rate", "bytes_allocated", "bytes_cached", "buckets"}
    before = ran["pool"].get_stats()
    assert set(before) == keys and set(ast.literal_eval(printed)) == keys
    held = s.Tensor.from_shape(s.queue, (12_345,))
    after = ran["pool"].get_stats()
    assert after["hits"] + after["misses"] == before["hits"] + before["misses"] + 1
    assert after["hit_rate"] == after["hits"] / (after["hits"] + after["misses"])
    del held
    assert ran["pool"].get_stats()["bytes_cached"] > 0 and ran["pool"].get_stats()["buckets"]


def check_cpu_backend(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert ran["be"].to_host(ran["x"], (4, 8), "float32") is ran["x"] and not ran["y"].any()
    np.testing.assert_array_equal(ran["x"], s.host)


def check_vec_add(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert "__kernel void vec_add(" in ran["src"] and "#define RELU" in ran["src"]
    out = s.Tensor.from_shape(s.queue, (4, 8))
    program = s.netcl.KernelSpec(name="vec_add", src=ran["src"]).build(s.queue)
    program.run(s.queue, (32,), None, s.tensor(s.host), s.tensor(s.host + 1), out)
    np.testing.assert_array_equal(out.to_host(), s.host + (s.host + 1))


def check_mul_add(s: Setting, kernel: Callable[..., object]) -> None:
    out = s.Tensor.from_shape(s.queue, (4, 8))
    kernel(s.queue, (32,), None, s.tensor(s.host), s.tensor(s.host + 1), out, 32)
    np.testing.assert_array_equal(out.to_host(), (s.host + (s.host + 1)) * 2)


def check_builder(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    check_mul_add(s, ran["spec"].build(s.context).mul_add)


def check_one_shot(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert ran["spec"].name == "mul_add"
    check_mul_add(s, ran["kernel"])


def check_kernel_config(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    from netcl.core.kernel_selector import KernelConfig, KernelVariant

    ours, theirs = KernelConfig(KernelVariant.MATMUL_TILED), ran["KernelConfig"](KernelVariant.MATMUL_TILED)
    for field in dataclasses.fields(ran["KernelConfig"]):
        assert getattr(ours, field.name) == getattr(theirs, field.name), field.name


def check_half_or_single(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert ran["x"].dtype == ("float16" if ran["prof"].has_fp16 else "float32") and ran["x"].shape == (4, 4)


def check_pyopencl(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    np.testing.assert_array_equal(ran["host_out"], np.maximum(ran["host_in"], 0))


def check_relu(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    np.testing.assert_array_equal(ran["host_out"], np.maximum(s.host, 0))


def check_scale_by_two(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    x, twice = ran["x"], 2 * np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(x.to_host(), twice)
    # In order with netcl's own operations, before and after.
    y = x + 1.0
    ran["prg"].run(s.queue, (1000,), None, y)
    np.testing.assert_array_equal((y + 1.0).to_host(), 2 * (twice + 1) + 1)


def check_from_host(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert (ran["a"].dtype, ran["b"].dtype) == ("float32", "float16")
    np.testing.assert_array_equal(ran["a"].to_host(), np.eye(4))
    np.testing.assert_array_equal(ran["b"].to_host(), s.host.astype(np.float16))


def check_from_shape(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert ran["x"].shape == (4, 8) and ran["x"].dtype == "float32" and not ran["x"].to_host().any()


def check_to_host(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    np.testing.assert_array_equal(ran["arr"], s.host)


def check_view(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert ran["sq"].shape == (4, 4) and ran["sq"]._base is ran["flat"]


def check_persistent(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    from netcl.core.memory import get_persistent_pool

    assert ran["w"].persistent and ran["w"].shape == (16, 8)
    pool = get_persistent_pool(s.queue)
    before = pool.stats
    del ran["w"]
    after = pool.stats
    assert after.bytes_cached == before.bytes_cached and after.bytes_allocated < before.bytes_allocated


def check_training_step(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    assert np.isfinite(ran["loss"].to_host()) and ran["loss"].shape == () and s.trained()
    assert all(p.grad is None or not p.grad.to_host().any() for p in s.model.parameters())


def check_custom_pool(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    from netcl.core.memory import BufferHandle

    handle, pool = ran["x"].pool_handle, ran["custom_pool"]
    assert isinstance(handle, BufferHandle) and handle.nbytes == 128 * 128 * 4
    assert pool.stats.bytes_in_use == 128 * 128 * 4 and pool.stats.misses == 1
    del ran["x"]
    assert handle.released and pool.stats.bytes_cached == 128 * 128 * 4


def check_loaded(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    loaded, saved = ran["model"], s.model
    assert loaded is not saved and str(loaded) == str(saved) and Path("checkpoint.netcl").exists()
    for name, values in saved.state_dict().items():
        np.testing.assert_array_equal(loaded.state_dict()[name], values)


def no_check(s: Setting, ran: dict[str, typing.Any], printed: str) -> None:
    """The listing says nothing about its result, or asserts it itself."""


CHECKS: dict[tuple[str, int], Callable[[Setting, dict[str, typing.Any], str], None]] = {
    ("architecture", 1): check_outline,
    ("core", 1): check_default_device,
    ("core", 2): no_check,  # with device("gpu")
    ("core", 3): check_handle,
    ("core", 4): check_factories,
    ("core", 5): check_pool,
    ("core", 6): check_persistent_pool,
    ("core", 7): check_cpu_backend,
    ("core", 8): check_vec_add,
    ("core", 9): check_builder,
    ("core", 10): check_one_shot,
    ("core", 11): check_kernel_config,
    ("core", 12): no_check,  # looks at a device profile
    ("faq", 1): check_loaded,
    ("pyopencl", 1): check_pyopencl,
    ("pyopencl", 2): check_relu,
    ("pyopencl", 3): check_scale_by_two,
    ("tensor", 1): check_from_host,
    ("tensor", 2): check_from_shape,
    ("tensor", 3): check_to_host,
    ("tensor", 4): check_view,
    ("tensor", 5): check_persistent,
    ("tensor", 6): check_training_step,
    ("tensor", 7): no_check,  # asserts by itself
    ("tensor", 8): check_custom_pool,
    ("tensor", 9): no_check,  # prints, which is compared with its comment
    ("tensor", 10): check_half_or_single,
}


def stated_output(code: str) -> list[str]:
    """What the comments behind `print(...)` say that it prints, where they quote it: words and brackets of Python values."""
    comments = re.findall(r"^print\(.*\)\s+# (.*)$", code, re.MULTILINE)
    return [" ".join(text.split()) for text in comments if re.fullmatch(r"[\d(), ]+(True|False|None)?", text)]


# ---- the tests ----------------------------------------------------------------------------------------------------


def run(listing: Listing, setting: Setting) -> tuple[dict[str, typing.Any], str]:
    """Runs a listing with nothing but its free names; what it defined, and what it printed."""
    names = {**SUPPLIES, **SPECIAL.get((listing.page, listing.number), {})}
    namespace: dict[str, typing.Any] = {"__name__": "__main__"}
    for name in sorted(free_names(listing.code)):
        assert name in names, f"{listing.page}.txt:{listing.line} uses {name!r}, which SUPPLIES does not have"
        namespace[name] = names[name](setting)
    # Blank lines in front make the line numbers of a traceback those of the page.
    code = compile("\n" * (listing.line - 1) + listing.code, f"{listing.page}.txt", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, namespace)
    return namespace, output.getvalue()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "listing" not in metafunc.fixturenames:
        return
    cases = []
    for listing in listings() if here else []:
        for device in find_device_selectors():
            name = f"{listing.page}-{listing.number}-line{listing.line}[device {device}]"
            cases.append(pytest.param(listing, device, id=name))
    metafunc.parametrize(("listing", "device"), cases)


@needs_pages
def test_listing(listing: Listing, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The working folder is empty: a listing may write files.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETCL_DEVICE", device)
    setting = Setting(device)
    monkeypatch.setenv("PYOPENCL_CTX", "0" if device == "cpu" else setting.handle.platform_name)
    place = (listing.page, listing.number)
    if 'device("gpu")' in listing.code and setting.manager.default("gpu") is None:
        with pytest.raises((RuntimeError, ValueError), match="gpu"):
            run(listing, setting)
        return
    ran, printed = run(listing, setting)
    for text in stated_output(listing.code):
        assert text in [" ".join(line.split()) for line in printed.splitlines()]
    CHECKS[place](setting, ran, printed)


@needs_pages
def test_every_listing_is_found_and_has_a_verdict() -> None:
    found = listings()
    counts = {page: sum(one.page == page for one in found) for page in PAGES}
    assert counts == PAGES
    places = {(one.page, one.number) for one in found}
    assert places == set(CHECKS)
    assert any(stated_output(one.code) for one in found)


def test_listings_are_told_from_prose() -> None:
    page = "\n".join(
        [
            "Title",
            "call(a, b)",  # a heading that shows a signature
            "from a import b",
            "b = [",
            "1,",
            "]",
            "with b as c:",
            "# inside",
            "...",
            "# outside",
            "print(c) # (3, 4) True",
            "Heading",
            "@mark",
            "class D:",
            "x: int # a number",
            "y: int = 3",
            "And then some text.",
            "x = 1; y",
        ]
    )
    first, second, third = parse("p", page)
    assert first.code.splitlines()[4:7] == ["with b as c:", "    # inside", "    ..."]
    assert first.code.endswith("print(c) # (3, 4) True") and stated_output(first.code) == ["(3, 4) True"]
    assert second.code == "@mark\nclass D:\n    x: int # a number\n    y: int = 3"
    assert third.line == 18 and [one.number for one in (first, second, third)] == [1, 2, 3]


def test_free_names_are_those_used_before_they_are_defined() -> None:
    code = "import a.b as c\nx = x + c\nfor i, j in loader:\n    y = f(i)\nprint(y, x)\nclass K:\n    z: T\nk = K()"
    assert free_names(code) == {"x", "loader", "f", "T"}


if __name__ == "__main__":
    for one in listings():
        sys.stdout.write(f"--- {one.page} {one.number}, line {one.line}, free {sorted(free_names(one.code))}\n{one.code}\n")
