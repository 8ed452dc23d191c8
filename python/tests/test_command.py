"""The `netcl` command of the wheel: as `python -m netcl`, and as the script that pip writes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("netcl")

# What pip writes for the entry point of pyproject.toml.
SCRIPT = "import sys\nfrom netcl.__main__ import main\nsys.exit(main())\n"


def netcl(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "netcl", *arguments], capture_output=True, text=True, cwd=folder, timeout=120)


def test_usage_and_exit_codes():
    shown = netcl("--help")
    assert shown.returncode == 0 and "Usage: netcl [COMMAND]" in shown.stdout
    wrong = netcl("fly")
    assert wrong.returncode == 2 and "Usage: netcl" in wrong.stderr
    failed = netcl("cache", "prune")
    assert failed.returncode == 1 and failed.stderr.startswith("netcl: ") and "--max-size" in failed.stderr


def test_a_network_is_trained_tested_and_looked_at(tmp_path):
    trained = netcl("train", "--model", "mlp", "--epochs", "2", "--device", "cpu", "--out", "run", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "epoch" in trained.stdout and "test accuracy" in trained.stdout
    assert (tmp_path / "run/report.html").stat().st_size > 1000
    tested = netcl("evaluate", "run/model.netcl", "--device", "cpu", folder=tmp_path)
    assert tested.returncode == 0 and "accuracy" in tested.stdout, tested.stderr


def test_a_reader_that_goes_away_is_no_failure():
    child = subprocess.Popen([sys.executable, "-m", "netcl", "cache", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert (child.wait(60), child.stderr.read()) == (0, b"")
    child.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_a_run_after_its_step_with_130(tmp_path):
    line = [sys.executable, "-m", "netcl", "train", "--model", "mlp", "--epochs", "100000", "--device", "cpu", "--out", "run"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        for printed in child.stdout:
            if printed.startswith("epoch"):
                break
        child.send_signal(signal.SIGINT)
        printed, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "interrupted" in errors and "Traceback" not in errors
    assert (tmp_path / "run/last.netcl").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a script starts with its interpreter there")
def test_launch_starts_this_command_and_this_interpreter_again(tmp_path):
    (tmp_path / "netcl-script").write_text(SCRIPT)
    (tmp_path / "who.py").write_text("import os, sys\nprint(sys.executable, os.environ['NETCL_RANK'])\nsys.exit(3)\n")
    launch = ["launch", "-n", "2"]
    line = [sys.executable, str(tmp_path / "netcl-script"), *launch, "--", "netcl", "--version"]
    again = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and again.stdout.count("netcl 0.") == 2, again.stderr
    ranks = netcl(*launch, str(tmp_path / "who.py"))
    assert ranks.returncode == 3
    assert f"{sys.executable} 0" in ranks.stdout and f"{sys.executable} 1" in ranks.stdout
    again = netcl(*launch, "--", "netcl", "--version")
    assert again.returncode == 0 and again.stdout.count("netcl 0.") == 2, again.stderr
