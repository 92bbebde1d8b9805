"""The first page of the site: docs/landing.md with three figures of docs/results.md and five programs of other pages. No figure
and no program stands in landing.md itself: tests/docs.py and tests/installed/readme.sh hold those of the other pages."""

import re
import textwrap
from pathlib import Path

import plot

ROOT = Path(__file__).resolve().parents[1]
# Tab, page, the fence and the number of the block: tests/installed/readme.sh runs these blocks as `initiator`.
PROGRAMS = [
    ("C", "README.md", "c", 1),
    ("Python", "bindings/python/README.md", "python", 2),
    ("C++", "bindings/cxx/README.md", "cpp initiator", 1),
    ("Go", "bindings/go/README.md", "go initiator", 1),
    ("Rust", "engine/README.md", "rust,no_run", 2),
]
ROW = "WRITE 16 KiB × 1,024 scattered"
# The column that names the other side, its name there, and the words below the figure.
FIGURES = [
    ("beside", "NIXL's best over TCP", "the speed of NIXL over TCP"),
    ("beside", "Mooncake's best", "the speed of Mooncake over TCP"),
    ("reference", None, "the speed of raw sockets, written by hand"),
]


def program(page: str, fence: str, number: int) -> str:
    """The lines of a block from the opening of the engine to the WRITE, without their common indent."""
    block = re.findall(rf"^```{re.escape(fence)}\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)[number - 1]
    opens = re.search(r"^.*(?:ferry_engine_open|Engine::open|ferry\.Engine|ferry\.Open)\b", block, re.M)
    writes = re.search(r"^.*(?:ferry_write|(?:peer|engine)\.[wW]rite)\(", block, re.M)
    if not opens or not writes:
        raise SystemExit(f"landing.py: {page} has no program that opens an engine and writes")
    end = writes.start()
    # The call may take several lines.
    while end == writes.start() or block.count("(", writes.start(), end) > block.count(")", writes.start(), end):
        end = block.index("\n", end) + 1
    return textwrap.dedent(block[opens.start() : end])


def figures() -> str:
    rows = [row for table in plot.tables((ROOT / "docs/results.md").read_text()) for row in table if row.get("row") == ROW]
    shown = []
    for column, other, words in FIGURES:
        of = [it for it in rows if column in it and it["quantity"] == "GB/s"]
        (row,) = (it for it in of if not other or (it["ferry"], it[column]) == ("ferry tcp", other))
        ratio, low, high = (f"{float(it):.2g}" for it in [row["ratio"], *row["95 % interval"].split(" to ")])
        shown.append(f"<div><strong>{ratio}×</strong><span>{words}</span><small>95 % interval {low} to {high}</small></div>")
    caption = (
        f"{ROW} over TCP between two processes of one host, ferry's speed by that of the other. With NIXL and Mooncake: "
        f"{plot.caption()}. With sockets: {plot.caption('sockets')}."
    )
    words = "[Results](results.md) has every row, and the missed targets."
    return "\n".join(['<div class="figures">', *shown, "</div>", "", f'<p class="caption">{caption}</p>', "", words])


def programs() -> str:
    tabs = []
    for at, (name, *_) in enumerate(PROGRAMS):
        checked = " checked" * (at == 0)
        tabs.append(f'<input type="radio" name="language" id="tab-{at}"{checked}><label for="tab-{at}">{name}</label>')
    # The arrow keys choose a tab; mdBook would turn the page.
    parts = ['<div class="tabs" onkeydown="event.stopPropagation()">', *tabs]
    for name, page, fence, number in PROGRAMS:
        lines = f"```{re.split('[ ,]', fence)[0]}\n{program(page, fence, number)}```"
        parts += ['<div class="tab">', "", lines, "", f"The whole program, and its target: [{name}](../{page}).", "", "</div>"]
    return "\n".join([*parts, "</div>"])


def markdown() -> str:
    text = (ROOT / "docs/landing.md").read_text()
    for mark, part in (
        ("<!-- figures of docs/results.md -->", figures),
        ("<!-- programs of the pages of the languages -->", programs),
    ):
        if text.count(mark) != 1:
            raise SystemExit(f"landing.py: landing.md has no single {mark}")
        text = text.replace(mark, part())
    return text
