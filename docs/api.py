"""Pages of the site that list the public names of each language, with a sentence and a link into the reference. mdBook's search
knows only the pages of the book, and finds a function by these headings."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
# Pages of the site: the title, and the references that the page lists.
PAGES = {
    "ferry-h": ("C: ferry.h", {"ferry.h": "c/ferry_8h.html"}),
    "ferry-kv-h": ("C: ferry_kv.h", {"ferry_kv.h": "c/ferry__kv_8h.html"}),
    "ferry-pool-h": ("C: ferry_pool.h", {"ferry_pool.h": "c/ferry__pool_8h.html"}),
    "cxx": ("C++", {"ferry.hpp": "c/ferry_8hpp.html", "ferry_kv.hpp": "c/ferry__kv_8hpp.html"}),
    "python": ("Python", {it: f"python/{it.replace('.', '/')}.html" for it in ("ferry", "ferry.kv", "ferry.pool", "mooncake.engine")}),
    "go": ("Go", {"ferry": "go/ferry.html", "ferry/kv": "go/kv.html"}),
    "rust": ("Rust", {"ferry": "rust/ferry/index.html", "ferry_kv": "rust/ferry_kv/index.html"}),
}
# Section, name, full name, link from the site's root, and the first paragraph of its text.
Entry = tuple[str, str, str, str, str]


def plain(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def c_and_cxx(out: Path, wanted: str) -> Iterator[Entry]:
    """Functions, types and constants, in the order and by the parts of a C header, or by the classes of C++."""
    found = []
    for xml in sorted((out / "xml").glob("*.xml")):
        for owner in ElementTree.parse(xml).iter("compounddef"):
            kind, space, at = owner.get("kind"), owner.findtext("compoundname", ""), owner.get("id", "")
            if kind not in ("file", "class", "struct", "namespace") or "detail" in space:
                continue
            members = [it for it in owner.iter("memberdef") if it.get("kind") in ("function", "define")]
            for it in [*([owner] if kind in ("class", "struct") else []), *members]:
                place, name = it.find("location"), it.findtext("name") or space.split("::")[-1]
                header = Path(place.get("file", "")).name
                page = {"ferry.h": "ferry-h", "ferry_kv.h": "ferry-kv-h", "ferry_pool.h": "ferry-pool-h"}.get(header, "cxx")
                brief = plain(ElementTree.tostring(it.find("briefdescription"), "unicode"))
                if page != wanted or not brief or not re.match(r"(?!operator\b)\w(?!.*_INIT$)", name):
                    continue
                file, _, anchor = (at, "", "") if it is owner else it.get("id", "").rpartition("_1")
                full = name if page != "cxx" else space if it is owner else f"{space}::{name}"
                line = int(place.get("line"))
                section = part_of(header, line) if page != "cxx" else space
                found.append((line if page != "cxx" else 0, (section, name, full, f"c/{file}.html#{anchor}".rstrip("#"), brief)))
    return (entry for _, entry in sorted(found, key=lambda it: it[0]))


def part_of(header: str, line: int) -> str:
    """The part of a header in which a line stands, from its rules: `/* ---- Engines ---- */`."""
    lines = (ROOT / "include" / header).read_text().splitlines()[:line]
    return [found[1] for found in (re.match(r"/\* ---- (.*?) -+ \*/", it) for it in lines) if found][-1]


def rust(out: Path) -> Iterator[Entry]:
    """Items of the crates by module, and the methods of types."""
    for file in sorted(path for crate in ("ferry", "ferry_kv") for path in (out / "rust" / crate).rglob("*.html")):
        text, folder = file.read_text(), file.parent.relative_to(out)
        space = "::".join(folder.parts[1:])
        if file.name == "index.html":
            item = r'<dt><a class="\w+" href="([^"]+)"[^>]*>([^<]+(?:<wbr>[^<]+)*)</a>.*?</dt>(?:<dd>(.*?)</dd>)?'
            for link, name, brief in re.findall(item, text, re.S):
                yield space, plain(name), f"{space}::{plain(name)}", f"{folder}/{link}", plain(brief)
        elif found := re.match(r"(?:struct|enum|trait)\.(\w+)\.html", file.name):
            own, kind = text.split('id="trait-implementations"')[0], f"{space}::{found[1]}"
            method = r'id="method\.(\w+)" class="method">(?:(?!id="method\.).)*?<div class="docblock"><p>(.*?)</p>'
            for name, brief in re.findall(method, own, re.S):
                yield kind, name, f"{kind}::{name}", f"{folder}/{file.name}#method.{name}", plain(brief)


def written(out: Path, lists: list[str]) -> Iterator[Entry]:
    """What docs/reference.py and docs/reference.go have listed."""
    for name in lists:
        for line in (out / name).read_text().splitlines():
            section, short, full, link, brief = line.split("\t")
            yield section, short, full, f"{name.split('/')[0]}/{link}", brief


def pages(out: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """PAGES, without those of a language whose tools are not installed."""
    return {page: (title, full) for page, (title, full) in PAGES.items() if all((out / link).exists() for link in full.values())}


def markdown(out: Path, page: str) -> str:
    """The page: a heading for each section, and below it for each name."""
    lists = {"python": ["python/api.tsv"], "go": ["go/ferry.tsv", "go/kv.tsv"]}
    entries = rust(out) if page == "rust" else written(out, lists[page]) if page in lists else c_and_cxx(out, page)
    title, references = PAGES[page]
    full = ", ".join(f"[`{name}`](../{link})" for name, link in references.items())
    lines = [
        f'# Reference: {title}\n\nEvery public name with its first sentence. The full reference: {full}.\n\n<div class="names"></div>\n'
    ]
    sections: dict[str, list[Entry]] = {}
    for entry in entries:
        sections.setdefault(entry[0], []).append(entry)
    for section, found in sections.items():
        lines += [f"## {section}", ""]
        seen = set()
        for _, name, full, link, text in found:
            if full not in seen:
                first = re.split(r"(?<=[.?!]) (?=[A-Z`])", text)[0]
                sentence = re.sub(r"([*\[])", r"\\\1", html.escape(first, quote=False))
                label = f"`{full}`" if full != name else "full text"
                lines += [f"### `{name}`", "", f"{sentence} [{label}](../{link})", ""]
            seen.add(full)
    return "\n".join(lines)
