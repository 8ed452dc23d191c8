"""Arguments of every kind to every public function: each call returns or raises an ``Exception`` with a text, soon.

``FUZZ_CALLS`` sets the number of calls (``cargo xtask test --full`` makes many), ``FUZZ_SEED`` the seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("fuzz_arguments.py")
CALLS = int(os.environ.get("FUZZ_CALLS", "3600"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
PROCESSES = 2
# A machine under load is slow: what takes as long as this hangs.
PATIENCE = 60.0


def run(start: int, count: int, folder: Path, *options: str) -> list[str]:
    """Makes calls `start` to `start + count` in a process, in another one after each that dies or hangs; returns what is wrong."""
    found, end = [], start + count
    folder.mkdir()
    journal, report = folder / "journal", folder / "report"
    report.touch()
    while start < end:
        journal.write_text("")
        command = [sys.executable, str(CHILD), "--seed", str(SEED), "--start", str(start), "--count", str(end - start)]
        command += ["--journal", str(journal), "--report", str(report), *options]
        environment = {**os.environ, "NETCL_CACHE_DIR": os.environ.get("NETCL_CACHE_DIR", str(folder)), "PYTHONHASHSEED": "0"}
        with (folder / "stderr").open("w") as stderr:
            child = subprocess.Popen(command, cwd=folder, env=environment, stdout=stderr, stderr=stderr)
        end_text = watch(child, journal)
        number, text = json.loads(journal.read_text() or json.dumps([start, "before the first call"]))
        if number == end and child.returncode == 0:
            break
        found.append(f"call {number}: {text}: {end_text}: {(folder / 'stderr').read_text()[-500:]}")
        start = number + 1
    for line in report.read_text().splitlines():
        number, text, wrong = json.loads(line)
        found.append(f"call {number}: {text}: {wrong}")
    return found


def watch(child: subprocess.Popen, journal: Path) -> str:
    """Waits for a process as long as it makes calls; says how it ended."""
    last, since = "", time.monotonic()
    while True:
        try:
            code = child.wait(timeout=0.5)
            return f"ended by signal {-code}" if code < 0 else f"ended with {code}"
        except subprocess.TimeoutExpired:
            now = journal.read_text()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                child.kill()
                child.wait()
                return f"did not return within {PATIENCE:.0f} s"


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_arguments_of_every_kind_raise_exceptions_or_return(tmp_path):
    share = CALLS // PROCESSES
    with ThreadPoolExecutor(PROCESSES) as pool:
        parts = [pool.submit(run, i * share, share, tmp_path / str(i), "--opencl") for i in range(PROCESSES)]
        found = [line for part in parts for line in part.result()]
    assert not found, "\n".join(found)


def test_the_fuzzer_sees_crashes_hangs_and_foreign_exceptions(tmp_path, monkeypatch):
    """What the fuzzer says of children that misbehave on purpose."""
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE", 2.0)
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys, time\n"
        "options = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "start, count = int(options['--start']), int(options['--count'])\n"
        "for number in range(start, start + count):\n"
        "    open(options['--journal'], 'w').write(json.dumps([number, 'a call']))\n"
        "    if number == 1: os.abort()\n"
        "    if number == 2: time.sleep(60)\n"
        "    if number == 3: open(options['--report'], 'a').write(json.dumps([3, 'a call', 'panicked']) + '\\n')\n"
        "open(options['--journal'], 'w').write(json.dumps([start + count, 'done']))\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "CHILD", child)
    found = run(0, 5, tmp_path / "run")
    assert [line.split(":")[0] for line in found] == ["call 1", "call 2", "call 3"]
    assert "signal 6" in found[0] and "did not return" in found[1] and "panicked" in found[2]
