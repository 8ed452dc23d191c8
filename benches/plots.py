"""Draws the plots of the book's page of benchmarks from the files in benches/results: ``python benches/plots.py``.

One drawing per folder: for each row the time of netcl beside a peer's and beside what the device allows. A test compares the
drawings in docs/src/drawings with what this makes of the files, so that none shows figures that nobody measured.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DRAWINGS = ROOT / "benches" / "results", ROOT / "docs" / "src" / "drawings"

WIDTH, LEFT, ROW, BAR = 400, 14, 62, 13
STYLE = """<style>
    text { font: 12px system-ui, "Segoe UI", sans-serif; fill: #22262b; }
    .head { font-size: 13px; font-weight: 600; }
    .note { fill: #555d66; }
    .page { fill: #fbfaf7; stroke: #d9d6cd; }
    .netcl { fill: #3b78b8; }
    .peer { fill: #c3c9d0; }
    .limit { stroke: #b97a16; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7ea; }
      .note { fill: #aab2bb; }
      .page { fill: #1d2127; stroke: #3a4049; }
      .netcl { fill: #6ea8e0; }
      .peer { fill: #5b646e; }
      .limit { stroke: #e0a94a; }
    }
  </style>"""


def size(lengths: list[int]) -> str:
    if len(lengths) == 3 and len(set(lengths)) == 1:
        return f"{lengths[0]}³"
    if len(lengths) == 1 and lengths[0] % (1 << 20) == 0:
        return f"{lengths[0] >> 20}M"
    return " x ".join(map(str, lengths))


def drawing(ours: dict[str, Any], peer: dict[str, Any]) -> str:
    """Times of one device as bars: each row has a scale of its own, since times differ by a factor of forty."""
    theirs = {row["id"]: row for row in peer["rows"]}
    rows = [row for row in ours["rows"] if row["right"] and theirs.get(row["id"], {}).get("size") == row["size"]]
    device, tool = ours["device"], f"{peer['tool']} {peer['version'].split('+')[0]}"
    height = 58 + ROW * len(rows) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH * 1.2:g}" '
        f'height="{height * 1.2:g}" role="img" aria-label="Times of netcl and {escape(tool)} on {escape(device["name"])}">',
        f"  {STYLE}",
        f'  <rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'  <text class="head" x="{LEFT}" y="26">{escape(device["name"])}: milliseconds, shorter is better</text>',
        f'  <text class="note" x="{LEFT}" y="44">driver {escape(device["driver"])}, {ours["date"]}; grey: {escape(tool)}</text>',
    ]
    room = WIDTH - 2 * LEFT - 62
    for at, row in enumerate(rows):
        y, other = 58 + at * ROW, theirs[row["id"]]["median_ms"]
        longest = max(row["median_ms"], other)
        parts.append(f'  <text x="{LEFT}" y="{y + 12}">{escape(row["name"])}, {size(row["size"])}</text>')
        for line, (kind, time) in enumerate([("netcl", row["median_ms"]), ("peer", other)]):
            top, length = y + 18 + line * (BAR + 3), room * time / longest
            parts.append(f'  <rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}"/>')
            parts.append(f'  <text x="{LEFT + length + 5:.1f}" y="{top + 11}">{time:.3g}</text>')
        # A cache can make a row faster than a copy: the mark stays inside of the drawing.
        limit = LEFT + room * min(row["bound_ms"] / longest, 1)
        parts.append(f'  <path class="limit" d="M{limit:.1f} {y + 15}v{2 * BAR + 9}"/>')
    foot = height - 12
    parts.append(f'  <path class="limit" d="M{LEFT + 2} {foot - 12}v14"/>')
    parts.append(f'  <text class="note" x="{LEFT + 10}" y="{foot}">what the measured bandwidth and rates allow</text>')
    return "\n".join([*parts, "</svg>", ""])


def drawings() -> dict[Path, str]:
    """Every drawing and its text."""
    made = {}
    for ours in sorted(RESULTS.glob("*/netcl.json")):
        for peer in sorted(ours.parent.glob("*.json")):
            if peer != ours:
                name = f"bench-{ours.parent.name}-{peer.stem}.svg"
                made[DRAWINGS / name] = drawing(json.loads(ours.read_text()), json.loads(peer.read_text()))
    return made


if __name__ == "__main__":
    DRAWINGS.mkdir(exist_ok=True)
    for path, text in drawings().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
