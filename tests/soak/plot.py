"""Keeps the figures of the soak (soak.py): samples, the table of runs, the plot."""

import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = ["hours", "node", "memory", "descriptors", "threads", "p50", "p99"]
RUNS = ["date", "commit", "minutes", "seed", "exchanges", "GiB", "visitors", "kills", "stops", "cuts", "failed by a fault", "faults"]
PICTURE = HERE.parents[1] / "docs/pictures/soak.svg"
# A panel: the column, its title, what the figures are divided by.
PANELS = [
    ("memory", "resident memory, MiB", 1024),
    ("descriptors", "descriptors", 1),
    ("threads", "threads", 1),
    ("p50", "WRITE of 4 KiB, p50, µs", 1),
    ("p99", "WRITE of 4 KiB, p99, µs", 1),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 340, 120, 50, 60, 52
COLOURS = ["#0969da", "#bc6c1a", "#1a7f37", "#8250df", "#cf222e"]
STYLE = """<style>
    text { font: 12px system-ui, sans-serif; fill: #1f2328 } .bold { font-weight: 600 } .small { font-size: 10px; fill: #57606a }
    .card { fill: #ffffff } .grid { stroke: #d0d7de; fill: none } polyline { fill: none; stroke-width: 1.6 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .small { fill: #9da7b3 } .card { fill: #0d1117 } .grid { stroke: #3d444d }
    }
  </style>"""

Samples = list[dict[str, float | str]]


def write_samples(path: Path, samples: Samples) -> None:
    lines = ["\t".join(COLUMNS)]
    lines += ["\t".join(it if isinstance(it, str) else f"{it:.6g}" for it in row.values()) for row in samples]
    path.write_text("\n".join(lines) + "\n")


def record(figures: list[object], picture: Path) -> None:
    """Adds a run to the table, and makes its plot the one of the docs."""
    table = HERE / "runs.tsv"
    if not table.exists():
        table.write_text("\t".join(RUNS) + "\n")
    with table.open("a") as file:
        file.write("\t".join(map(str, figures)) + "\n")
    shutil.copyfile(picture, PICTURE)


def panel(samples: Samples, at: int, nodes: list[str], hours: float) -> list[str]:
    column, title, unit = PANELS[at]
    x, y = LEFT + at % 2 * (WIDTH + GAP), TOP + at // 2 * (HEIGHT + GAP)
    most = max(float(row[column]) for row in samples) / unit * 1.1
    parts = [
        f'<text x="{x}" y="{y - 8}">{title}</text>',
        f'<rect class="grid" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="small" x="{x - 6}" y="{y + 10}" text-anchor="end">{most:.0f}</text>',
        f'<text class="small" x="{x - 6}" y="{y + HEIGHT}" text-anchor="end">0</text>',
        f'<text class="small" x="{x + WIDTH}" y="{y + HEIGHT + 14}" text-anchor="end">{hours * 60:.0f} minutes</text>',
    ]
    for node, colour in zip(nodes, COLOURS):
        points = [
            f"{x + float(row['hours']) / hours * WIDTH:.1f},{y + HEIGHT * (1 - float(row[column]) / unit / most):.1f}"
            for row in samples
            if row["node"] == node
        ]
        parts.append(f'<polyline stroke="{colour}" points="{" ".join(points)}"/>')
    return parts


def drawn(samples: Samples, note: str) -> str:
    """The plot as text; a line for each resident."""
    if not samples:
        samples = [dict(zip(COLUMNS, (1.0, "none", 1, 1, 1, 1.0, 1.0)))]
    nodes = list(dict.fromkeys(str(row["node"]) for row in samples))
    hours = max(float(row["hours"]) for row in samples)
    parts = [f'<text class="bold" x="16" y="24">A soak under faults: {note}</text>']
    for at, (node, colour) in enumerate(zip(nodes, COLOURS)):
        x, y = LEFT + WIDTH + GAP, TOP + 2 * (HEIGHT + GAP) + 16 + 20 * at
        parts.append(f'<rect x="{x}" y="{y - 9}" width="16" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{node}</text>')
    for at in range(len(PANELS)):
        parts += panel(samples, at, nodes, hours)
    width, height = LEFT + 2 * (WIDTH + GAP) - 20, TOP + 3 * (HEIGHT + GAP) - 20
    title = "Memory, descriptors, threads and latency of the processes of a soak"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">\n'
        f"  <title>{title}</title>\n  {STYLE}\n"
        f'  <rect class="card" width="{width}" height="{height}" rx="8"/>\n  ' + "\n  ".join(parts) + "\n</svg>\n"
    )
