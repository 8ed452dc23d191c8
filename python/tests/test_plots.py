"""The plots of the book show the committed results."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_plots_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import plots

    made = plots.drawings()
    assert made and {path.name for path in made} == {path.name for path in plots.DRAWINGS.glob("bench-*.svg")}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"run: python benches/plots.py ({path.name})"
    sys.modules.pop("plots")
