"""The reference of the Python packages, by pdoc. Argument: the output folder. Run by scripts/docs.sh.

The classes of ferry print as ferry.NAME, and those of ferry.kv so too: their `__module__` is the package. pdoc looks there for the text of a class,
which it reads for the fields and their comments. So the classes get the names of their own modules back first."""

import re
import sys
from pathlib import Path

import ferry.kv  # noqa: F401
import pdoc

for name, module in list(sys.modules.items()):
    if name.startswith(("ferry._", "ferry.kv._")):
        for kind in re.findall(r"^class (\w+)", Path(module.__file__).read_text(), re.M):
            getattr(module, kind).__module__ = name
pdoc.pdoc("ferry", "ferry.kv", "mooncake.engine", output_directory=Path(sys.argv[1]))
