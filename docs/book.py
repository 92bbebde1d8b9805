"""The Markdown pages of this repository as one site with search, by mdBook. Arguments: mdbook's program, and where to.

Run by scripts/docs.sh, when the references are there. The pages are copied into one folder with their paths, so that
the links between them hold; a file of another kind that a page links to is copied with it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
DOCS = {
    "ferry": {"README.md": "ferry"},
    "Use": {
        "docs/building.md": "Building",
        "docs/contracts.md": "Contracts",
        "RELIABILITY.md": "Reliability",
        "docs/security.md": "Security",
        "docs/settings.md": "Settings",
        "docs/paths.md": "Paths",
        "docs/losses.md": "Losing a peer",
        "docs/devices.md": "Memory of devices",
        "docs/kv.md": "KV handoff: layouts, resharding, handing over",
        "examples/disagg/README.md": "Prefill and decode, an example",
        "docs/directory.md": "Peers by name",
        "docs/operations.md": "Operations",
        "docs/containers.md": "Containers and Kubernetes",
        "docs/engines.md": "vLLM, SGLang and LMCache",
        "docs/vllm.md": "vLLM over ferry",
        "docs/nixl.md": "ferry inside NIXL",
        "docs/nixl-engines.md": "vLLM, SGLang, LMCache and Dynamo over NIXL",
    },
    "Languages": {
        "ffi/README.md": "C",
        "engine/README.md": "Rust",
        "bindings/cxx/README.md": "C++",
        "bindings/python/README.md": "Python",
        "bindings/go/README.md": "Go",
        "bindings/python/mooncake/README.md": "mooncake.engine over ferry",
        "bindings/mooncake/README.md": "Mooncake's C interface over ferry",
        "bindings/vllm/README.md": "FerryConnector for vLLM",
        "bindings/nixl/README.md": "The plugin for NIXL",
        "bindings/nixl/python/README.md": "The wheel ferry-nixl",
    },
    "Speed": {"docs/results.md": "Results", "docs/bench.md": "Benchmarks"},
    "Inside": {
        "ARCHITECTURE.md": "How ferry is built",
        "docs/internals/*.md": "",
        "docs/decisions/README.md": "Decisions",
        "docs/decisions/[a-z]*.md": "",
        "tests/standin/README.md": "Stand-ins for device libraries",
        "engine/tests/chaos/runs.md": "Rounds of chaos",
        "CONTRIBUTING.md": "Working on ferry",
        "CHANGELOG.md": "Changelog",
    },
}
REFERENCES = {
    "c/index.html": "C and C++: ferry.h, ferry_kv.h, ferry.hpp, ferry_kv.hpp",
    "rust/ferry/index.html": "Rust: crate ferry",
    "python/ferry.html": "Python: package ferry",
    "python/ferry/kv.html": "Python: ferry.kv",
    "python/mooncake/engine.html": "Python: mooncake.engine",
    "go/ferry.txt": "Go: package ferry",
    "go/kv.txt": "Go: package ferry/kv",
}
BOOK = """[book]
title = "ferry"
language = "en"

[build]
create-missing = false

[output.html]
default-theme = "light"
preferred-dark-theme = "navy"

[output.html.search]
limit-results = 50
"""


def chapters() -> list[tuple[str, str, str]]:
    """Part, page and title of each chapter; the title of a page that is named by a pattern is its first heading."""
    found = []
    for part, pages in DOCS.items():
        for pattern, title in pages.items():
            for page in sorted(ROOT.glob(pattern)):
                found.append((part, str(page.relative_to(ROOT)), title or page.read_text().split("\n", 1)[0][2:]))
    return found


def links(text: str) -> list[str]:
    """The relative links of a page, without their anchors."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.M | re.S)
    found = (unquote(it).partition("#")[0] for it in re.findall(r"\]\(\s*<?([^)\s>]+)", prose))
    return [it for it in found if it and not re.match(r"\w+:", it)]


def main() -> None:
    mdbook, out = sys.argv[1], Path(sys.argv[2]).resolve()
    source = out.parent / "book" / "src"
    shutil.rmtree(source.parent, ignore_errors=True)
    summary, last = ["# Summary", ""], ""
    for part, page, title in chapters():
        if part != last:
            summary += ["", f"# {part}", ""]
            last = part
        summary.append(f"- [{title}]({page})")
        text = (ROOT / page).read_text()
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        # mdBook writes a README as the index of its folder, and leaves the links to it.
        (source / page).write_text(re.sub(r"(\]\((?!\w+:)[^)\s#]*)\bREADME\.md", r"\1index.md", text))
        for link in links(text):
            linked = (ROOT / page).parent.joinpath(link).resolve()
            if linked.suffix != ".md" and linked.is_file():
                copy = source / linked.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(linked, copy)
    there = {name: title for name, title in REFERENCES.items() if (out / name).exists()}
    listed = "\n".join(f"- [{title}]({name})" for name, title in there.items())
    (source / "references.md").write_text(f"# References\n\nEvery public function and type, by language:\n\n{listed}\n")
    summary += ["", "# Reference", "", "- [References](references.md)"]
    (source / "SUMMARY.md").write_text("\n".join(summary) + "\n")
    (source.parent / "book.toml").write_text(BOOK)
    built = source.parent / "html"
    subprocess.run([mdbook, "build", "--dest-dir", str(built), str(source.parent)], check=True)
    shutil.copytree(built, out, dirs_exist_ok=True)


main()
