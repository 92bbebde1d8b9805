"""Draws docs/pictures/scale.svg from figures.tsv, which scripts/scale.sh records: the cost of one peer and of one region,
by the number of all. `python3 tests/scale/plot.py NOTE` writes it; the note says where and when."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "figures.tsv"
PICTURE = HERE.parents[1] / "docs/pictures/scale.svg"
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 90, 50, 72, 58
COLUMNS = 3
COLOUR = {"peers": "#0969da", "regions": "#bc6c1a"}
STYLE = """<style>
    text { font: 12px system-ui, sans-serif; fill: #1f2328 } .bold { font-weight: 600 } .small { font-size: 10px; fill: #57606a }
    .card { fill: #ffffff } .grid { stroke: #d0d7de; fill: none } polyline { fill: none; stroke-width: 1.6 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .small { fill: #9da7b3 } .card { fill: #0d1117 } .grid { stroke: #3d444d }
    }
  </style>"""

# (of, cost) -> (size, value) by size.
Costs = dict[tuple[str, str], list[tuple[int, float]]]


def read() -> Costs:
    costs: Costs = {}
    for line in FIGURES.read_text().splitlines()[1:]:
        of, size, cost, value = line.split("\t")
        costs.setdefault((of, cost), []).append((int(size), float(value)))
    return costs


def panel(at: int, of: str, cost: str, points: list[tuple[int, float]]) -> list[str]:
    """One cost: sizes from left to right, each as far from the next, since each is about three times the one before."""
    x, y = LEFT + at % COLUMNS * (WIDTH + GAP), TOP + at // COLUMNS * (HEIGHT + GAP)
    most = max(value for _, value in points) * 1.3 or 1
    step = WIDTH / (len(points) - 1)
    places = [(x + step * nth, y + HEIGHT * (1 - value / most)) for nth, (_, value) in enumerate(points)]
    parts = [
        f'<text x="{x}" y="{y - 8}">{of}: {cost}</text>',
        f'<rect class="grid" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="small" x="{x - 6}" y="{y + HEIGHT}" text-anchor="end">0</text>',
    ]
    for nth, ((px, py), (size, value)) in enumerate(zip(places, points)):
        anchor = "start" if nth == 0 else "end" if nth == len(points) - 1 else "middle"
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{COLOUR[of]}"/>')
        parts.append(f'<text class="small" x="{px:.1f}" y="{py - 6:.1f}" text-anchor="{anchor}">{value:,.{0 if value >= 100 else 2}f}</text>')
        parts.append(f'<text class="small" x="{px:.1f}" y="{y + HEIGHT + 14}" text-anchor="{anchor}">{size:,}</text>')
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    return parts + [f'<polyline stroke="{COLOUR[of]}" points="{line}"/>']


def drawn(costs: Costs, note: str) -> str:
    parts = [
        '<text class="bold" x="16" y="24">The cost of one, by the number of all</text>',
        f'<text class="small" x="16" y="40">{note}</text>',
    ]
    for at, ((of, cost), points) in enumerate(costs.items()):
        parts += panel(at, of, cost, points)
    lines = -(-len(costs) // COLUMNS)
    width, height = LEFT + COLUMNS * (WIDTH + GAP) - 20, TOP + lines * (HEIGHT + GAP)
    title = "The cost of one peer and of one region, from few to many"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">\n'
        f"  <title>{title}</title>\n  {STYLE}\n"
        f'  <rect class="card" width="{width}" height="{height}" rx="8"/>\n  ' + "\n  ".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(read(), sys.argv[1]))
