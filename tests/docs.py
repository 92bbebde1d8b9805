"""Checks documentation: links within the repository's Markdown pages, the length of the two long ones, that tables which
repeat something are still right; and with a folder that scripts/docs.sh has written, that everything public is in the
references and found by the site's search, that every page is on the site, that every link of the site leads somewhere, and
that its sidebar is short."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import api  # noqa: E402
import book  # noqa: E402
import plot  # noqa: E402

# Pages that are read from top to bottom, and the lines they may have.
LINES_MAX = {"README.md": 180, "ARCHITECTURE.md": 300}
SIDEBAR_MAX = 40


def prose(text):
    """Without blocks of code, in which # is no heading."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors(page):
    """The names that headings get: as GitHub makes them, repeated ones numbered."""
    names, seen = set(), {}
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()).replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
    return names


def pages():
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, text=True)
    return [ROOT / page for page in listed.split() if (ROOT / page).exists()]


def broken_links():
    for page in pages():
        text = re.sub(r"`[^`\n]*`", "", prose(page.read_text()))
        for link in re.findall(r"\]\(\s*<?([^)\s>]+)", text):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            place = page.parent / name if name else page
            if not place.exists():
                yield f"{page.relative_to(ROOT)}: {link}: there is no such file"
            elif anchor and anchor not in anchors(place):
                yield f"{page.relative_to(ROOT)}: {link}: there is no such heading"


def too_long():
    for name, most in LINES_MAX.items():
        lines = len((ROOT / name).read_text().splitlines())
        if lines > most:
            yield f"{name} has {lines} lines, {most} at most: move what answers another question to a page of docs/"


def out_of_date():
    """What pages repeat of sources and of each other."""
    operations = (ROOT / "docs/operations.md").read_text()
    for number, status in re.findall(r'^    \w+ = (-?\d+), "(\w+)";', (ROOT / "engine/src/status.rs").read_text(), re.M):
        if f"| {number} | {status} |" not in operations:
            yield f"docs/operations.md: no row for status {number}, {status}"
    sources = (ROOT / "engine/src/stats.rs").read_text() + (ROOT / "engine/src/api/metrics.rs").read_text()
    sources += (ROOT / "kv/src/handoff/metrics.rs").read_text()
    sources += (ROOT / "pool/src/metrics.rs").read_text().split("#[cfg(test)]")[0]
    metrics = set(re.findall(r'"(ferry_\w+)"', sources))
    told = set(re.findall(r"^\| `(ferry_\w+)[^`]*` \| (?:counter|gauge) \|", operations, re.M))
    for metric in sorted(metrics - told):
        yield f"docs/operations.md: no row for {metric}"
    for metric in sorted(told - metrics):
        yield f"docs/operations.md: {metric} is no metric"
    settings = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/settings.md").read_text(), re.M))
    for page in ("operations", "containers", "engines"):
        for variable in sorted(set(re.findall(r"\bFERRY_(?!TRANSFER_|MEMORY_)([A-Z_]+)\b", (ROOT / f"docs/{page}.md").read_text()))):
            if variable.lower() not in settings and variable not in ("CUDA_LIBRARY", "ASCEND_LIBRARY"):
                yield f"docs/{page}.md: FERRY_{variable} is no setting"
    contracts = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Contracts and the tests that hold them\n")[1]
    tests = re.findall(r"`(\w+)`", contracts.split("\n## ")[0].split("---|\n")[1])
    sources = "".join(file.read_text() for file in (ROOT / "engine").glob("**/*.rs"))
    for test in tests:
        if not re.search(rf"#\[test\]\n(?:\s*#\[.*\]\n)*\s*(?:async )?fn {test}\(", sources):
            yield f"ARCHITECTURE.md: {test} is no test of the engine"
    defects = [line.split("\t") for line in (ROOT / "tests/DEFECTS.tsv").read_text().splitlines() if not line.startswith("#")]
    sources += "".join(file.read_text() for folder in ("sim/runs", "kv", "pool", "directory", "benches/tool") for file in (ROOT / folder).glob("**/*.rs"))
    sources += "".join(file.read_text() for file in (ROOT / "bindings/python").glob("**/*.py"))
    sources += "".join(file.read_text() for file in (ROOT / "tests/c").glob("*.c"))
    targets = re.findall(r'"(\w+)"', (ROOT / "fuzz/src/lib.rs").read_text())
    for defect, _, held in defects[1:]:
        for name in re.findall(r"[a-z][a-z0-9]*(?:[_-]\w+)+", held):
            is_plant = (ROOT / f"sim/mutants/{name}.patch").exists()
            if not (is_plant or name in targets or re.search(rf"\b(?:fn|def|void) {name}\(", sources)):
                yield f"tests/DEFECTS.tsv: {name} is no planted bug, fuzz target or test ({defect})"
    index = (ROOT / "docs/decisions/README.md").read_text()
    for page in sorted((ROOT / "docs/decisions").glob("[a-z]*.md")):
        for number in re.findall(r"^## (\d+)\.", page.read_text(), re.M):
            if f"({page.name}#{number}-" not in index:
                yield f"docs/decisions/README.md: decision {number} of {page.name} is not in the index"
    if plot.PLOT.read_text() != plot.drawn():
        yield "docs/pictures/performance.svg is out of date: run docs/plot.py"
    (table,) = (it for it in plot.tables((ROOT / "README.md").read_text()) if it and "engine" in it[0])
    for row in table:
        for column, figure in row.items():
            if plot.writes()[row["engine"]][column] != figure:
                yield f"README.md: {row['engine']}, {column}: docs/results.md has another figure"


def site(out):
    """The pages that mdBook has written: whether they are all there, and their links."""
    built = out.parent / "book/html"
    # mdBook writes a README as the index of its folder.
    for page in pages():
        name = str(page.relative_to(ROOT))
        name = book.NAMES.get(name, name.replace("README.md", "index.md"))
        if not (built / name).with_suffix(".html").exists():
            yield f"the site lacks {page.relative_to(ROOT)}: add it to docs/book.py"
    ids = {}
    for html in sorted(built.rglob("*.html")):
        if html.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', html.read_text()):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            place = (out / html.relative_to(built).parent / name).resolve() if name else out / html.relative_to(built)
            if not place.exists():
                yield f"site, {html.relative_to(built)}: {link} is not there"
            elif anchor and place.suffix == ".html":
                if place not in ids:
                    ids[place] = set(re.findall(r'\bid="([^"]+)"', place.read_text()))
                if anchor not in ids[place]:
                    yield f"site, {html.relative_to(built)}: {link}: there is no such heading"


def searched(out):
    """Whether the site's search finds each function of the C ABI, and the main types of each language."""
    (file,) = out.glob("searchindex-*.js")
    text = re.search(r"JSON\.parse\('(.*)'\)", file.read_text(), re.S)[1]
    found = json.loads(re.sub(r"\\(.)", r"\1", text))
    documents, words = found["index"]["documentStore"]["docs"], found["index"]["index"]["title"]["root"]
    titles = {(it["title"], found["doc_urls"][int(number)].split("#")[0]) for number, it in documents.items()}
    for name in (ROOT / "ffi/abi/symbols.txt").read_text().split():
        # The index is a tree of letters, of words whose endings it may cut.
        node = words
        for letter in name[:-6]:
            node = node.get(letter, {})
        if name.startswith("ferry_") and not (node and titles & {(name, f"reference/{it}.html") for it in ("ferry-h", "ferry-kv-h", "ferry-pool-h")}):
            yield f"the site's search does not find {name}"
    for page in api.pages(out).keys() - {"ferry-h", "ferry-kv-h", "ferry-pool-h"}:
        for name in ("Engine", "Cache"):
            if not any(title.split("::")[-1] == name for title, url in titles if url == f"reference/{page}.html"):
                yield f"reference/{page}.html lacks {name}"


def shown(out):
    """The sidebar's length, what the first page takes from other pages, and the way back from the references."""
    entries = (out / "toc.html").read_text().count("chapter-link-wrapper")
    if not 0 < entries <= SIDEBAR_MAX:
        yield f"the sidebar has {entries} entries, {SIDEBAR_MAX} at most: put a page below another in docs/book.py"
    first = (out / "index.html").read_text()
    programs = [it.strip().count("\n") + 1 for it in re.findall(r'<div class="tab">.*?<code[^>]*>(.*?)</code>', first, re.S)]
    if len(programs) != 5 or not all(5 <= lines <= 14 for lines in programs):
        yield f"the first page has not five programs of 5 to 14 lines: {programs}"
    if len(re.findall(r"<strong>[\d.]+×</strong>", first)) != 3:
        yield "the first page has not three figures"
    for _, full in api.pages(out).values():
        for link in full.values():
            if 'class="back"' not in (out / link).read_text():
                yield f"{link} has no link back to the site"


def missing(out):
    """What the references should have and lack."""
    tags = ElementTree.parse(out / "c.tag")
    functions = {it.findtext("name") for it in tags.iter("member") if it.get("kind") == "function"}
    for name in (ROOT / "ffi/abi/symbols.txt").read_text().split():
        if name.startswith("ferry_") and name not in functions:
            yield f"Doxygen lacks {name}"
    kinds = {it.findtext("name") for it in tags.iter("compound") if it.get("kind") in ("class", "struct")}
    for header in ("ferry.hpp", "ferry_kv.hpp"):
        text = (ROOT / "include" / header).read_text()
        for space, part in re.findall(r"^namespace ([\w:]+) \{$(.*?)^\} // namespace \1$", text, re.M | re.S):
            for name in re.findall(r"^(?:template <.*> )?(?:class|struct) (?:\[\[\w+\]\] )?(\w+)\b(?!::)[^;\n]*\{$", part, re.M):
                if not kinds & {f"{space}::{name}", f"{space}::detail::{name}"}:
                    yield f"Doxygen lacks class {space}::{name}"
    packages = {"ferry/__init__": "ferry", "ferry/kv/__init__": "ferry/kv", "ferry/pool/__init__": "ferry/pool", "mooncake/engine": "mooncake/engine"}
    for package, html in packages.items():
        (source,) = ROOT.glob(f"bindings/python/**/src/{package}.py")
        page = (out / f"python/{html}.html").read_text()
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for name in ast.literal_eval(node.value):
                    if f'<section id="{name}">' not in page:
                        yield f"pdoc lacks {name}"


found = [*broken_links(), *too_long(), *out_of_date()]
if len(sys.argv) > 1:
    written = Path(sys.argv[1]).resolve()
    found += [*missing(written), *site(written), *searched(written), *shown(written)]
print(*found, sep="\n", end="\n" if found else "")
sys.exit(bool(found))
