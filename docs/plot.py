"""Draws docs/pictures/performance.svg from the first table of docs/results.md, so that the plot has no figure of its own.

`make figures` writes it, and so does `python3 docs/plot.py`; tests/docs.py says when it is out of date."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PLOT = DOCS / "pictures/performance.svg"
# Rows of the table, with the colour of their kind.
ROWS = {
    "raw shared copy ×2": "raw",
    "ferry auto, allocated": "ferry",
    "raw process_vm ×2": "raw",
    "ferry auto, own memory": "ferry",
    "raw TCP": "raw",
    "ferry tcp": "ferry",
    "NIXL auto best": "other",
    "NIXL UCX-TCP best": "other",
    "Mooncake TCP best": "other",
}
COLUMNS = ["1 MiB × 16", "16 KiB × 1,024 scattered", "4 KiB × 1,024 scattered"]
LEFT, PANEL, BAR, TOP = 200, 220, 24, 62
STYLE = """<style>
    text { font: 13px system-ui, sans-serif; fill: #1f2328 } .bold { font-weight: 600 } .small { font-size: 11px; fill: #57606a }
    .card { fill: #ffffff } .ferry { fill: #0969da } .raw { fill: #8c959f } .other { fill: #bc6c1a }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .small { fill: #9da7b3 } .card { fill: #0d1117 }
      .ferry { fill: #4493f8 } .raw { fill: #768390 } .other { fill: #d29042 }
    }
  </style>"""


def tables(page: str) -> list[list[dict[str, str]]]:
    """Every table of a page: its rows as a mapping from the column's head to the cell."""
    found: list[list[dict[str, str]]] = []
    head: list[str] | None = None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = cells
            found.append([])
        elif not set(line) <= set("|-: "):
            found[-1].append(dict(zip(head, cells)))
    return found


def writes() -> dict[str, dict[str, str]]:
    """The rows of "WRITE, GB/s", by engine: the first table of docs/results.md that has engines."""
    first = next(it for it in tables((DOCS / "results.md").read_text()) if it and "engine" in it[0])
    return {row["engine"]: row for row in first}


def caption(part: str = "peers") -> str:
    """The machine, the date and the commit of that table, or of another part of the page."""
    (found,) = re.findall(rf"<!-- figures: {part} -->\n\n\*(.*?)\.\*", (DOCS / "results.md").read_text())
    return found


def drawn() -> str:
    """The plot as text."""
    rows = writes()
    value = {(name, column): float(rows[name][column].split()[0]) for name in ROWS for column in COLUMNS}
    scale = (PANEL - 60) / max(value.values())
    width, height = LEFT + PANEL * len(COLUMNS), TOP + BAR * len(ROWS) + 34
    parts = ['<text class="bold" x="16" y="24">WRITE, GB/s (longer is better)</text>']
    for at, column in enumerate(COLUMNS):
        parts.append(f'<text class="small" x="{LEFT + PANEL * at}" y="{TOP - 12}">{column}</text>')
    for line, (name, kind) in enumerate(ROWS.items()):
        y = TOP + BAR * line
        bold = ' class="bold"' if kind == "ferry" else ""
        parts.append(f'<text{bold} x="16" y="{y + 14}">{name}</text>')
        for at, column in enumerate(COLUMNS):
            x, long = LEFT + PANEL * at, value[name, column] * scale
            parts.append(f'<rect class="{kind}" x="{x}" y="{y + 2}" width="{long:.1f}" height="{BAR - 8}" rx="2"/>')
            parts.append(f'<text class="small" x="{x + long + 6:.1f}" y="{y + 14}">{rows[name][column].split()[0]}</text>')
    parts.append(f'<text class="small" x="16" y="{height - 14}">One host, loopback; {caption()}: docs/results.md</text>')
    title = "WRITE throughput of ferry, its peers and raw references on one host"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">\n'
        f'  <title>{title}</title>\n  {STYLE}\n  <rect class="card" width="{width}" height="{height}" rx="8"/>\n  '
        + "\n  ".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PLOT.write_text(drawn())
