"""Checks documentation: links within the repository's Markdown pages, and with a folder that scripts/docs.sh has
written, that everything public is in the references and that every link of the index leads somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]


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


def broken_links():
    pages = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, text=True)
    for page in map(ROOT.joinpath, pages.split()):
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


def missing(out):
    """What the references should have and lack."""
    tags = ElementTree.parse(out / "c.tag")
    functions = {it.findtext("name") for it in tags.iter("member") if it.get("kind") == "function"}
    for name in (ROOT / "ffi/abi/symbols.txt").read_text().split():
        if name.startswith("ferry_") and name not in functions:
            yield f"Doxygen lacks {name}"
    kinds = {it.findtext("name") for it in tags.iter("compound") if it.get("kind") in ("class", "struct")}
    header = (ROOT / "include/ferry.hpp").read_text()
    for name in re.findall(r"^(?:template <.*> )?(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;\n]*\{$", header, re.M):
        if not kinds & {f"ferry::{name}", f"ferry::detail::{name}"}:
            yield f"Doxygen lacks class {name}"
    for package, html in (("ferry/__init__", "ferry"), ("mooncake/engine", "mooncake/engine")):
        (source,) = ROOT.glob(f"bindings/python/**/src/{package}.py")
        page = (out / f"python/{html}.html").read_text()
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for name in ast.literal_eval(node.value):
                    if f'<section id="{name}">' not in page:
                        yield f"pdoc lacks {name}"
    for link in re.findall(r'href="([^"]+)"', (out / "index.html").read_text()):
        if not (out / link).exists():
            yield f"index.html: {link} is not there"


found = [*broken_links(), *(missing(Path(sys.argv[1])) if len(sys.argv) > 1 else ())]
print(*found, sep="\n", end="\n" if found else "")
sys.exit(bool(found))
