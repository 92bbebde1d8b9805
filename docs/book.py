"""The Markdown pages of this repository as one site with search, by mdBook. Arguments: mdbook's program, and where to.

Run by scripts/docs.sh, when the references are there; they get the site's style and a link to it. The pages are copied into one
folder with their paths, so that the links between them hold; a file of another kind that a page links to is copied with it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import api
import landing

ROOT = Path(__file__).resolve().parents[1]
# The parts of the sidebar, which has 40 entries at most: tests/docs.py. Pages below another page are not in the sidebar;
# that page links them.
DOCS = {
    "": {"docs/landing.md": "ferry", "README.md": "Overview"},
    "Reference": {"references.md": "All references", **{f"reference/{page}.md": title for page, (title, _) in api.PAGES.items()}},
    "Languages": {
        "ffi/README.md": "C",
        "bindings/cxx/README.md": "C++",
        "bindings/python/README.md": "Python",
        "bindings/go/README.md": "Go",
        "engine/README.md": "Rust",
        "kv/README.md": "Rust: ferry-kv",
    },
    "Use": {
        "docs/building.md": "Building",
        "docs/contracts.md": "Contracts",
        "RELIABILITY.md": "Reliability",
        "docs/security.md": "Security",
        "docs/settings.md": "Settings",
        "docs/paths.md": "Paths",
        "docs/losses.md": "Losing a peer",
        "docs/devices.md": "Memory of devices",
        "docs/files.md": "Files as memory",
        "docs/kv.md": "KV handoff",
        "docs/pool.md": "The pool",
        "docs/directory.md": "Peers by name",
        "docs/operations.md": "Operations",
        "docs/containers.md": "Containers and Kubernetes",
    },
    "Serving engines": {
        "docs/vllm.md": "vLLM",
        "docs/engines.md": "In Mooncake's place",
        "docs/nixl.md": "Inside NIXL",
        "docs/nixl-engines.md": "Engines over NIXL",
    },
    "Speed": {"docs/results.md": "Results", "docs/bench.md": "Benchmarks"},
    "Inside": {
        "ARCHITECTURE.md": "How ferry is built",
        "docs/decisions/README.md": "Decisions",
        "CONTRIBUTING.md": "Working on ferry",
        "CHANGELOG.md": "Changelog",
    },
}
BELOW = {
    "docs/kv.md": ["examples/disagg/README.md", "docs/kv/*.md"],
    "docs/vllm.md": ["bindings/vllm/README.md"],
    "docs/engines.md": ["bindings/python/mooncake/README.md", "bindings/mooncake/README.md"],
    "docs/nixl.md": ["bindings/nixl/README.md", "bindings/nixl/python/README.md"],
    "ARCHITECTURE.md": ["docs/internals/*.md"],
    "docs/decisions/README.md": ["docs/decisions/[a-z]*.md"],
    "CONTRIBUTING.md": ["tests/standin/README.md", "engine/tests/chaos/runs.md"],
}
# Pages of another name on the site; mdBook writes a README as the index of its folder.
NAMES = {"docs/landing.md": "index.md", "README.md": "overview.md"}
BOOK = """[book]
title = "ferry"
language = "en"

[build]
create-missing = false

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"
no-section-label = true
sidebar-header-nav = false
additional-css = ["site.css"]

[output.html.print]
enable = false

[output.html.search]
limit-results = 50
boost-title = 4
"""


def heading(page: str) -> str:
    return (ROOT / page).read_text().split("\n", 1)[0].removeprefix("# ")


def below(page: str) -> list[str]:
    return [str(it.relative_to(ROOT)) for pattern in BELOW.get(page, []) for it in sorted(ROOT.glob(pattern))]


def links(text: str) -> list[str]:
    """The relative links of a page, without their anchors."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)
    found = (unquote(it).partition("#")[0] for it in re.findall(r"\]\(\s*<?([^)\s>]+)", prose))
    return [it for it in found if it and not re.match(r"\w+:", it)]


def copied(page: str, source: Path, out: Path) -> None:
    """Writes a page of the repository, or one that is made here, to its place in the book, with the files that it links."""
    place = source / NAMES.get(page, page)
    place.parent.mkdir(parents=True, exist_ok=True)
    if page == "references.md":
        place.write_text(references(out))
        return
    if page.startswith("reference/"):
        place.write_text(api.markdown(out, place.stem))
        return
    text = landing.markdown() if page == "docs/landing.md" else (ROOT / page).read_text()
    for above in (it for it in BELOW if page in below(it)):
        up = f"*Part of [{heading(above)}]({os.path.relpath(above, Path(page).parent)}).*"
        text = text.replace("\n", f"\n\n{up}\n", 1)
    linked = {link: (ROOT / page).parent.joinpath(link).resolve() for link in links(text)}
    unlinked = [it for it in below(page) if ROOT / it not in linked.values()]
    if unlinked:
        text += "\n## More\n\n"
        text += "".join(f"- [{heading(it)}]({os.path.relpath(it, Path(page).parent)})\n" for it in unlinked)
    for file in linked.values():
        if file.suffix != ".md" and file.is_file():
            copy = source / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)

    def moved(found: re.Match) -> str:
        to = (ROOT / page).parent.joinpath(found[2]).resolve()
        if ROOT not in to.parents or to.suffix != ".md":
            return found[0]
        name = str(to.relative_to(ROOT))
        name = NAMES.get(name, re.sub(r"\bREADME\.md$", "index.md", name))
        return f"{found[1]}{os.path.relpath(source / name, place.parent)}"

    place.write_text(re.sub(r"(\]\()((?!\w+:)[^)\s#]+)", moved, text))


def references(out: Path) -> str:
    """The page that says where what is."""
    lines = [
        "# References\n\nEach language has a list of its public names, which the search of this site finds, and full references.\n"
    ]
    lines += ["| language | names | full references |", "|---|---|---|"]
    for page, (title, full) in api.pages(out).items():
        there = ", ".join(f"[`{name}`]({link})" for name, link in full.items())
        lines.append(f"| {title} | [list](reference/{page}.md) | {there} |")
    return "\n".join([*lines, "\nThe pages below *Languages* say how to begin, and have programs.\n"])


def dressed(out: Path) -> None:
    """Gives the pages of rustdoc, Doxygen and pdoc, and Go's, the style of the site and a way back to it."""
    shutil.copy(ROOT / "docs/site.css", out / "site.css")
    for page in (it for folder in ("c", "rust", "python", "go") for it in (out / folder).rglob("*.html")):
        text = page.read_text()
        root = os.path.relpath(out, page.parent)
        head, body, rest = text.partition("<body")
        if "site.css" in head or not body:
            continue
        tag, end, rest = rest.partition(">")
        back = f'<a class="back" href="{root}/references.html">← ferry documentation</a>'
        head = head.replace("</head>", f'<link rel="stylesheet" href="{root}/site.css"></head>')
        page.write_text(f"{head}{body}{tag}{end}{back}{rest}")


def main() -> None:
    mdbook, out = sys.argv[1], Path(sys.argv[2]).resolve()
    source = out.parent / "book" / "src"
    shutil.rmtree(source.parent, ignore_errors=True)
    summary = ["# Summary", ""]
    for part, pages in DOCS.items():
        summary += ["", f"# {part}", ""] if part else []
        for page, title in pages.items():
            made = page == "references.md" or Path(page).stem in api.pages(out)
            if not made and not (ROOT / page).exists():
                continue
            for it in [page, *below(page)]:
                indent, name = ("", title) if it == page else ("  ", heading(it))
                summary.append(f"{indent}- [{name}]({NAMES.get(it, it)})")
                copied(it, source, out)
    (source / "SUMMARY.md").write_text("\n".join(summary) + "\n")
    (source.parent / "book.toml").write_text(BOOK)
    shutil.copy(ROOT / "docs/site.css", source.parent / "site.css")
    built = source.parent / "html"
    subprocess.run([mdbook, "build", "--dest-dir", str(built), str(source.parent)], check=True)
    for toc in built.glob("toc*"):
        toc.write_text(re.sub(r'<ol class="section">.*?</ol>', "", toc.read_text(), flags=re.S))
    shutil.copytree(built, out, dirs_exist_ok=True)
    dressed(out)


if __name__ == "__main__":
    main()
