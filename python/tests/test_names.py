"""Every public name of the package is in the book's index, and says what it is."""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import make_names


def names(page: str) -> set[str]:
    """The lines without their links: which page shows a name first changes with every page."""
    return {re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", line) for line in page.splitlines()}


def test_the_index_is_that_of_the_package():
    # In a process of its own: what other tests imported changes what modules hold.
    made = subprocess.run([sys.executable, make_names.__file__, "--print"], capture_output=True, text=True, check=True)
    expected, found = names(made.stdout), names(make_names.PAGE.read_text(encoding="utf-8"))
    missing, gone = sorted(expected - found), sorted(found - expected)
    assert not missing and not gone, f"run python python/tests/make_names.py\nmissing: {missing[:5]}\ngone: {gone[:5]}"


def test_every_name_says_what_it_is():
    silent = [line for line in make_names.page().splitlines() if line.startswith("| ") and line.endswith("|  |")]
    assert not silent, f"{len(silent)} names without a docstring: {silent[:20]}"


def test_every_module_is_listed():
    package = Path(make_names.importlib.import_module("netcl").__file__).parent
    listed = {name.replace("netcl.", "").replace(".", "/") for name in make_names.MODULES}
    folders = {str(path.parent.relative_to(package)) for path in package.rglob("__init__.py")} - {"."}
    hidden = {folder for folder in folders if folder.split("/")[-1].startswith("_") or "/_" in f"/{folder}"}
    # These only hold others.
    assert folders - hidden - listed <= {"core/backend", "core/kernels"}
