"""Puts what `make figures` has measured into docs/results.md and README.md, and draws the plot.

usage: figures.py FOLDER

The folder has `measured` (the date and the commit), compare.md, pool.md, bench.json and overhead.md. A part that is missing keeps
its figures, with their date. A part stands between `<!-- figures: NAME -->` and `<!-- /figures -->`."""

import json
import re
import sys
from pathlib import Path

import plot

README = plot.DOCS.parent / "README.md"
RESULTS = plot.DOCS / "results.md"
# The rows of README's table, of those of "WRITE, GB/s".
SHORT = ["raw TCP", "ferry tcp", "ferry auto, own memory", "ferry auto, allocated", "NIXL auto best", "Mooncake TCP best"]


def put(page: Path, name: str, text: str) -> None:
    """Replaces a part of a page."""
    old = page.read_text()
    new, count = re.subn(
        rf"(<!-- figures: {name} -->\n).*?(<!-- /figures -->)", lambda it: f"{it[1]}\n{text.strip()}\n\n{it[2]}", old, flags=re.S
    )
    if count != 1:
        sys.exit(f"figures.py: {page.name} has {count} parts {name}")
    page.write_text(new)
    print(f"figures: {name} in {page.name}")


def tight(text: str) -> str:
    """A page without the spaces that pad its tables, and without the builder's name of a kernel."""
    text = re.sub(r"(Linux \d+\.\d+)[\w.-]*", r"\1", text)
    lines = (re.sub(r" *\| *", " | ", line).strip() if line.startswith("|") else line for line in text.splitlines())
    return "\n".join(re.sub(r"^\|[-| ]+\|$", lambda rule: re.sub(r"-+", "---", rule[0]).replace(" ", ""), line) for line in lines)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def peers(text: str, measured: str) -> str:
    """compare.md, the tables of figures before that of the settings, which the plot's reader looks for last."""
    machine, text = text.split("; the host's congestion control", 1)
    rounds, rest = text.split("\n", 2)[1:]
    settings, *blocks = re.split(r"\n(?=WRITE, GB/s)", rest, maxsplit=1)
    return tight(f"*{machine}; {measured}.* {rounds}\n\n{''.join(blocks).strip()}\n\nThe settings:\n\n{settings.strip()}")


def sockets(bench: dict, measured: str) -> str:
    """The pairs of `ferry-compare sockets`, and what engines cost that wait."""
    machine = bench["machine"]
    text = "*{cpu_model}, {cpus_allowed} CPUs, {memory_gib:.0f} GiB, Linux {kernel}; ".format(**machine) + f"{measured}.*\n\n"
    rows = []
    for line in bench["ratios"]:
        if line["beside"] == "memcpy":
            continue
        ratio = line["ratio"]
        goal = " ".join(f"{'≥' if side == 'at_least' else '≤'} {bound:g}" for side, bound in (line["goal"] or {}).items())
        found = [f"{ratio['median']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}"] if ratio else ["–", "–"]
        medians = ["–" if line[side] is None else f"{line[side]:.3f}" for side in ("beside_median", "subject_median")]
        rows.append([line["row"], line["unit"], *medians, *found, goal or "stated", line["verdict"] or ""])
    text += table(["row", "quantity", "reference", "ferry", "ratio", "95 % interval", "target", "verdict"], rows)
    costs = [[it["row"], it["quantity"], f"{it['value']:.3f}", it["verdict"] or ""] for it in bench["costs"]]
    if costs:
        text += "\n\n" + table(["row", "quantity", "value", "verdict"], costs)
    judged = [line for line in bench["ratios"] if line["beside"] == "memcpy" and line["ratio"]]
    below = [line["row"] for line in judged if line["ratio"]["median"] < line["goal"]["at_least"]]
    short = [row.removesuffix(": the reference") for row in below]
    if short:
        text += f"\n\nThe reference is below 0.9 of the best measured, scaled by memcpy, in these rows: {', '.join(short)}."
    return tight(text)


def bindings(text: str, measured: str) -> str:
    """overhead.md, whose lines about mooncake.engine are tab-separated."""
    machine, text = text.split("\n", 1)
    lines = [line.split("\t")[1:] for line in text.splitlines() if line.startswith("mooncake\t")]
    tables = "\n".join(line for line in text.splitlines() if not line.startswith("mooncake"))
    rows = [[*line[:-3], f"{line[-3]} ({line[-2]} to {line[-1]})"] for line in lines]
    head = ["path", "what", "side", "ferry's own Python", "mooncake.engine", "difference", "ratio (quartiles)"]
    return tight(f"*{machine}; {measured}.*\n{tables.rstrip()}\n\n{table(head, rows)}")


def main(folder: Path) -> None:
    measured = (folder / "measured").read_text().strip()
    found = {name: folder / name for name in ("compare.md", "pool.md", "bench.json", "overhead.md") if (folder / name).exists()}
    if "compare.md" in found:
        put(RESULTS, "peers", peers(found["compare.md"].read_text(), measured))
        rows = plot.writes()
        shown = [[name, *(rows[name][column] for column in plot.COLUMNS)] for name in SHORT]
        machine = plot.caption().split(";")[0]
        put(README, "writes", table(["engine", *plot.COLUMNS], shown) + f"\n\n`make figures` measured these: {machine}; {measured}.")
        plot.PLOT.write_text(plot.drawn())
    if "pool.md" in found:
        machine, rest = found["pool.md"].read_text().split("\n", 1)
        put(RESULTS, "pool", tight(f"*{machine}; {measured}.*\n{rest}"))
    if "bench.json" in found:
        put(RESULTS, "sockets", sockets(json.loads(found["bench.json"].read_text()), measured))
    if "overhead.md" in found:
        put(RESULTS, "bindings", bindings(found["overhead.md"].read_text(), measured))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
