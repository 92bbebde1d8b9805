"""The reference of the Python packages, by pdoc, and their names for the site's index. Argument: the output folder. Run by
scripts/docs.sh.

The classes of ferry print as ferry.NAME, and those of ferry.kv so too: their `__module__` is the package. pdoc looks there for the text of a class,
which it reads for the fields and their comments. So the classes get the names of their own modules back first."""

import importlib
import re
import sys
from pathlib import Path

import ferry.kv  # noqa: F401
import ferry.pool  # noqa: F401
import pdoc

MODULES = ["ferry", "ferry.kv", "ferry.pool", "mooncake.engine"]
out = Path(sys.argv[1])
for name, module in list(sys.modules.items()):
    if name.startswith(("ferry._", "ferry.kv._", "ferry.pool._")):
        for kind in re.findall(r"^class (\w+)", Path(module.__file__).read_text(), re.M):
            getattr(module, kind).__module__ = name
pdoc.pdoc(*MODULES, output_directory=out)


def listed(space: pdoc.doc.Namespace, page: str):
    """Lines of docs/api.py: section, name, full name, link below this folder, first paragraph."""
    for it in space.own_members if isinstance(space, pdoc.doc.Class) else space.members.values():
        if it.name.startswith("_") or it.kind not in ("class", "function"):
            continue
        top = f"{space.modulename}.{it.qualname if it.kind == 'class' else space.qualname}".rstrip(".")
        first = " ".join(it.docstring.split("\n\n")[0].split())
        yield "\t".join([top, it.name, f"{it.modulename}.{it.qualname}", f"{page}#{it.qualname}", first])
        if it.kind == "class":
            yield from listed(it, page)


lines = [
    line for name in MODULES for line in listed(pdoc.doc.Module(importlib.import_module(name)), name.replace(".", "/") + ".html")
]
(out / "api.tsv").write_text("\n".join(lines) + "\n")
