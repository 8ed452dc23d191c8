"""Makes docs/src/reference/names.md, the index of all public names: ``python python/tests/make_names.py``.

A name is public where a module of ``MODULES`` has it in ``__all__``, or, without one, without an underscore. What it is comes from
the first line of its docstring; the page is the first of the book's that shows it as code.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

BOOK = Path(__file__).resolve().parents[2] / "docs" / "src"
PAGE = BOOK / "reference" / "names.md"

MODULES = """
netcl netcl.amp netcl.autograd netcl.autograd.functional netcl.cuda netcl.distributions netcl.func netcl.nn.utils.parametrize
netcl.utils.data netcl.core netcl.core.device netcl.core.tensor netcl.core.memory netcl.core.capabilities
netcl.core.device_profile netcl.core.kernel_selector netcl.core.kernels.primitives netcl.core.backend.cpu netcl.core.backend.opencl
netcl.data netcl.data.augment netcl.data.augment_gpu netcl.data.filters netcl.data.shared_batch netcl.distributed netcl.io netcl.linalg
netcl.nn netcl.nn.functional netcl.nn.init netcl.nn.utils netcl.onnx netcl.ops netcl.optim netcl.optim.lr_scheduler netcl.profiling
netcl.profiling.autotuner netcl.runtime netcl.runtime.cache netcl.trainer netcl.utils
""".split()

HEADER = """# Every name

All public names of the Python package, what each is, and the page of this book that shows it. `help(netcl.nn.Linear)` prints the whole text with the arguments; the names of the crate are in
its own reference, which `cargo doc --open -p netcl` builds. Made by `python/tests/make_names.py`; a test says when to run it again.

| name | in | what it is |
|---|---|---|
"""


def public(module: ModuleType) -> dict[str, Any]:
    """The public names of a module, with their values."""
    listed = getattr(module, "__all__", None)
    names = listed if listed is not None else [name for name in vars(module) if not name.startswith("_")]
    values = {name: getattr(module, name) for name in names}
    if listed is not None:
        return values
    return {name: value for name, value in values.items() if is_own(value)}


def is_own(value: Any) -> bool:
    """Whether a value is netcl's: what a module without a list has from elsewhere, such as NumPy or `Any`, is not."""
    if isinstance(value, (str, int, float)):
        return True
    origin = str(getattr(value, "__module__", None))
    # Functions of the extension name a module that cannot be imported.
    return callable(value) and (origin.startswith("netcl") or origin not in sys.modules)


def first_line(name: str, value: Any) -> str:
    """What a value is, in one line."""
    if isinstance(value, str) and name == value:
        return "A dtype"
    if not callable(value) and not isinstance(value, (type, property)):
        return f"A constant: `{value!r}`" if isinstance(value, (bool, int, float, str)) else f"A {type(value).__name__}"
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(value) or "").split("\n\n")]
    if len(paragraphs) > 1 and re.fullmatch(r"\w+\(.*\)", paragraphs[0]):
        del paragraphs[0]  # the arguments
    # Dots also end abbreviations and stand in numbers.
    sentence = re.sub(r":\w+:`(\w+)`", r"`\1`", re.split(r"(?<=[a-z)`])\. |\.$", paragraphs[0])[0])
    return sentence.replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


def pages() -> list[tuple[str, str, str]]:
    """Path, title and text of the pages that explain names: the reference first."""
    found = sorted((BOOK / "reference").glob("*.md")) + sorted(BOOK.glob("*.md"))
    listed = []
    for path in found:
        if path.name in {"names.md", "SUMMARY.md", "torch-names.md", "accuracy.md"}:
            continue
        text = path.read_text(encoding="utf-8")
        name = path.name if path.parent.name == "reference" else f"../{path.name}"
        listed.append((name, text.splitlines()[0].lstrip("# "), text))
    return listed


def page() -> str:
    """The text of the page."""
    where: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in MODULES:
        for name, value in public(importlib.import_module(module)).items():
            if not isinstance(value, ModuleType):
                where[name, first_line(name, value)].append(module)
    lines = []
    for (name, what), modules in sorted(where.items(), key=lambda item: (item[0][0].lower(), item[0], item[1])):
        word = re.compile(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`")
        shown = next(((path, title) for path, title, text in pages_once() if word.search(text)), None)
        name = f"[`{name}`]({shown[0]})" if shown else f"`{name}`"
        lines.append(f"| {name} | {', '.join(f'`{m}`' for m in modules)} | {what} |")
    return HEADER + "\n".join(lines) + "\n"


def pages_once(cache: list[Any] = []) -> list[tuple[str, str, str]]:  # noqa: B006
    if not cache:
        cache.extend(pages())
    return cache


if __name__ == "__main__":
    if "--print" in sys.argv:
        sys.stdout.write(page())
        sys.exit()
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {len(PAGE.read_text().splitlines()) - HEADER.count(chr(10))} names")
