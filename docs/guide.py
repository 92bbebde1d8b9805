"""The Markdown pages of this repository as HTML, and an index of them and the references. Argument: where to.

Run by scripts/docs.sh, with pdoc's renderer."""

import re
import sys
from pathlib import Path

from pdoc.render_helpers import to_html

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(sys.argv[1])
PAGES = {
    "README.md": "What ferry is, its contracts, settings, paths, figures",
    "docs/engines.md": "ferry under vLLM, SGLang and LMCache",
    "bindings/cxx/README.md": "C++",
    "bindings/python/README.md": "Python",
    "bindings/python/mooncake/README.md": "mooncake.engine over ferry",
    "bindings/mooncake/README.md": "libferry_mooncake: Mooncake's C interface over ferry",
    "bindings/go/README.md": "Go",
    "ffi/README.md": "C",
    "ARCHITECTURE.md": "How ferry is built",
    "CONTRIBUTING.md": "Working on ferry",
    "CHANGELOG.md": "Changelog",
}
REFERENCES = {
    "c/index.html": "C and C++: ferry.h, ferry.hpp",
    "rust/ferry/index.html": "Rust: crate ferry",
    "python/ferry.html": "Python: package ferry",
    "python/mooncake/engine.html": "Python: mooncake.engine",
    "go/ferry.txt": "Go: package ferry",
}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 16px/1.5 sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em }}
pre {{ background: #f4f4f4; padding: 0.6em; overflow-x: auto }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }} td, th {{ border: 1px solid #ccc; padding: 0.2em 0.6em }}
</style>{body}</html>
"""


def html_of(page: str) -> str:
    """With the links to other pages leading to their HTML; those to sources stay as they are."""
    body = to_html((ROOT / page).read_text())
    return re.sub(r'(href="(?!\w+:)[^"#]*)\.md((?:#[^"]*)?")', r"\1.html\2", body)


def listed(entries: dict[str, str]) -> str:
    there = ((name, text) for name, text in entries.items() if (OUT / name).exists())
    return "<ul>" + "".join(f'<li><a href="{name}">{text}</a></li>' for name, text in there) + "</ul>"


guide = {}
for page, title in PAGES.items():
    name = Path("guide", page).with_suffix(".html")
    (OUT / name).parent.mkdir(parents=True, exist_ok=True)
    (OUT / name).write_text(PAGE.format(title=title, body=html_of(page)))
    guide[str(name)] = title
body = f"<h1>ferry</h1><h2>Guide</h2>{listed(guide)}<h2>Reference</h2>{listed(REFERENCES)}"
(OUT / "index.html").write_text(PAGE.format(title="ferry", body=body))
