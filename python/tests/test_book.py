"""Runs the Python listings of README.md and the book.

The listings of one page run in order, in one namespace and one fresh interpreter, so that a page reads like a session and
`NETCL_DEVICE` is set before netcl looks at it. Each listing is one test; a failing one shows page and line.

What a page can say, in HTML comments that a reader does not see:

- `<!-- python-setup` ... `-->`: code that runs at this place in the page without being shown;
- `<!-- devices: cpu opencl -->`: run the page on the native CPU and on every OpenCL device, instead of on the default one;
- ` ```sh,netcl `: the lines of this listing are commands of `netcl`, which run in the page's folder as `python -m netcl`;
- `<!-- no_run: reason -->`: must stand right before a listing marked `python,no_run`, which is then only compiled.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import find_device_selectors

ROOT = Path(__file__).resolve().parents[2]
SECONDS_PER_PAGE = 300

FENCE = re.compile(r"^ {0,3}(?P<ticks>`{3,})(?P<info>[^`]*)$")
SETUP = re.compile(r"^<!-- python-setup\s*$")
DEVICES = re.compile(r"^<!-- devices:(?P<names>[a-z ]+)-->\s*$", re.MULTILINE)
NO_RUN_REASON = re.compile(r"^<!-- no_run: \S.*-->\s*$")


@dataclass(frozen=True)
class Listing:
    """A piece of Python of a page."""

    line: int
    code: str
    run: bool = True
    justified: bool = False


def parse(text: str) -> list[Listing]:
    """The listings and hidden set-up pieces of a page, in order."""
    lines = text.splitlines()
    found: list[Listing] = []
    at = 0
    while at < len(lines):
        start = at
        at += 1
        if SETUP.match(lines[start]):
            while at < len(lines) and lines[at].strip() != "-->":
                at += 1
            found.append(Listing(start + 2, "\n".join(lines[start + 1 : at])))
            at += 1
        elif fence := FENCE.match(lines[start]):
            # A longer fence may show shorter ones, so only one that is at least as long closes it.
            closing = re.compile(rf"^ {{0,3}}`{{{len(fence['ticks'])},}}\s*$")
            while at < len(lines) and not closing.match(lines[at]):
                at += 1
            words = [word for word in re.split(r"[,\s]+", fence["info"].strip()) if word]
            if words[:1] == ["python"]:
                unknown = set(words[1:]) - {"no_run"}
                if unknown:
                    raise ValueError(f"line {start + 1}: a Python listing cannot be marked {', '.join(sorted(unknown))}")
                before = next((line for line in reversed(lines[:start]) if line.strip()), "")
                found.append(
                    Listing(
                        start + 2,
                        "\n".join(lines[start + 1 : at]),
                        run="no_run" not in words,
                        justified=bool(NO_RUN_REASON.match(before)),
                    )
                )
            elif words == ["sh", "netcl"]:
                found.append(Listing(start + 2, "\n".join(run_command(line) for line in lines[start + 1 : at])))
            at += 1
    return found


def run_command(line: str) -> str:
    """Python that runs a command line of a listing, so that the page's other listings find its files."""
    program, *arguments = shlex.split(line, comments=True)
    if program != "netcl":
        raise ValueError(f"{line}: a listing marked sh,netcl has commands of netcl alone")
    return f"__import__('subprocess').run([__import__('sys').executable, '-m', 'netcl', *{arguments!r}], check=True)"


def devices_of(text: str) -> list[str | None]:
    """The values of `NETCL_DEVICE` to run a page with; None leaves the variable as it is."""
    wish = DEVICES.search(text)
    if wish is None:
        return [None]
    found = find_device_selectors()
    by_name = {"cpu": found[:1], "opencl": found[1:]}
    return [selector for name in wish["names"].split() for selector in by_name[name]]


def pages() -> list[str]:
    """README.md and the pages of the book, relative to the root."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "src").rglob("*.md"))]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def run_listings(page: str) -> dict[int, str]:
    """Runs a page in this interpreter; line of each listing that was reached -> "" or what went wrong."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    outcomes: dict[int, str] = {}
    for listing in parse(text_of(page)):
        try:
            # Blank lines in front make the line numbers of a traceback those of the page.
            code = compile("\n" * (listing.line - 1) + listing.code, page, "exec")
            if listing.run:
                exec(code, namespace)
        except BaseException:
            outcomes[listing.line] = traceback.format_exc()
            break
        outcomes[listing.line] = ""
    return outcomes


@functools.cache
def outcomes_of(page: str, device: str | None) -> tuple[dict[int, str], str]:
    """Runs a page in a fresh interpreter; its outcomes, and what it printed."""
    environment = dict(os.environ) if device is None else {**os.environ, "NETCL_DEVICE": device}
    with tempfile.TemporaryDirectory() as folder:
        # The working folder is empty: a listing may write files, and must not see those of the checkout.
        result = Path(folder) / "outcomes.json"
        command = [sys.executable, str(Path(__file__).resolve()), page, str(result)]
        try:
            child = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=SECONDS_PER_PAGE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"the page took more than {SECONDS_PER_PAGE} s"
        printed = f"{child.stdout}\nthe interpreter ended with status {child.returncode}"
        if not result.exists():
            return {}, printed
        return {int(line): text for line, text in json.loads(result.read_text()).items()}, printed


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "listing_line" not in metafunc.fixturenames:
        return
    cases = []
    for page in pages():
        text = text_of(page)
        for device in devices_of(text):
            for listing in parse(text):
                name = f"{page}:{listing.line}" + ("" if device is None else f"[device {device}]")
                cases.append(pytest.param(page, device, listing.line, id=name))
    metafunc.parametrize(("page", "device", "listing_line"), cases)


def test_listing(page: str, device: str | None, listing_line: int) -> None:
    outcomes, printed = outcomes_of(page, device)
    if listing_line not in outcomes:
        failed = next((f"{page}:{line}" for line, text in outcomes.items() if text), None)
        reason = f"{failed} failed before it" if failed else f"the interpreter did not get there:\n{printed}"
        pytest.fail(f"{page}:{listing_line} was not reached: {reason}", pytrace=False)
    if outcomes[listing_line]:
        pytest.fail(f"{page}:{listing_line}\n{outcomes[listing_line]}", pytrace=False)


@pytest.mark.parametrize("page", pages())
def test_listings_that_do_not_run_say_why(page: str) -> None:
    silent = [listing.line for listing in parse(text_of(page)) if not listing.run and not listing.justified]
    assert not silent, f"{page}: put `<!-- no_run: reason -->` before the listings at lines {silent}"


PATH = re.compile(r"`((?:crates|python|examples|benches|xtask|docs)/[\w./-]+)`")


@pytest.mark.parametrize("page", pages())
def test_files_that_a_page_names_exist(page: str) -> None:
    missing = [name for name in PATH.findall(text_of(page)) if not (ROOT / name).exists()]
    assert not missing, f"{page}: there is no {', '.join(missing)}"


LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors that mdBook gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings]
    return {"".join(c for c in heading.replace(" ", "-") if c.isalnum() or c in "-_") for heading in plain}


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for link in LINK.findall(re.sub(r"```.*?```|``.*?``|`[^`]*`", "", text_of(page), flags=re.DOTALL)):
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if "://" in link or name.startswith("mailto:"):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert not broken, f"{page}: {broken}"


def test_parse_finds_listings_set_up_and_opt_outs() -> None:
    page = "\n".join(
        [
            "<!-- python-setup",
            "x = 1",
            "-->",
            "```python",
            "y = x + 1",
            "",
            "```",
            "````markdown",
            "```python",
            "not a listing of this page",
            "```",
            "````",
            "<!-- no_run: needs two machines -->",
            "",
            "```python,no_run",
            "z()",
            "```",
            "```python,no_run",
            "w()",
            "```",
            "```sh,netcl",
            "netcl inspect 'a b'  # a file",
            "```",
            "```text",
            "plain",
            "```",
        ]
    )
    assert parse(page) == [
        Listing(2, "x = 1"),
        Listing(5, "y = x + 1\n"),
        Listing(16, "z()", run=False, justified=True),
        Listing(19, "w()", run=False),
        Listing(22, run_command("netcl inspect 'a b'")),
    ]


def test_parse_refuses_unknown_marks() -> None:
    with pytest.raises(ValueError, match="ignore"):
        parse("```python,ignore\n```")


def test_a_failing_listing_is_reported_with_page_and_line_and_ends_the_page(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "page.md").write_text("```python\nx = 1\n```\n\n```python\nx\nraise KeyError(x)\n```\n\n```python\nx\n```\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    outcomes = run_listings("page.md")
    assert list(outcomes) == [2, 6]
    assert outcomes[2] == ""
    assert 'File "page.md", line 7' in outcomes[6] and "KeyError: 1" in outcomes[6]


def test_pages_choose_their_devices() -> None:
    assert devices_of("no wish") == [None]
    assert devices_of("<!-- devices: cpu -->\n") == ["cpu"]
    assert devices_of("text\n<!-- devices: cpu opencl -->\n") == find_device_selectors()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run_listings(sys.argv[1])))
