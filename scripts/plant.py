#!/usr/bin/env python3
"""Plants bugs by content: scripts/plant.py [--check] TREE PATCH...

A patch has `--- a/PATH` for each file, then hunks that begin with `@@` and have lines that go (-), come (+) and stay. The
lines that go and stay must be in the file once, wherever: no numbers to keep true. --check changes nothing."""

import sys
from pathlib import Path


def hunks(patch):
    """Yields the path, the lines that must be there, and the lines that take their place."""
    path, lines, is_open = None, [], False
    for line in patch.read_text().splitlines() + ["@@"]:
        if line.startswith(("--- a/", "@@")):
            if is_open:
                old, new = ([at[1:] for at in lines if at[0] in kinds] for kinds in (" -", " +"))
                if not old or old == new or any(at[0] not in " +-" for at in lines):
                    raise SystemExit(f"does not apply: {patch.name}: a hunk of {path} says nothing, or not where")
                yield path, old, new
            is_open, lines = line[0] == "@", []
            path = path if is_open else line[6:]
        elif is_open:
            lines.append(line or " ")


def planted(tree, patch):
    """Returns the new lines of each file that a patch touches. SystemExit if it does not apply."""
    files = {}
    for path, old, new in hunks(patch):
        file = tree / path
        if file not in files and not file.is_file():
            raise SystemExit(f"does not apply: {patch.name}: there is no {path}")
        lines = files.get(file) or file.read_text().split("\n")
        places = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
        if len(places) != 1:
            text = "\n".join(old)
            raise SystemExit(f"does not apply: {patch.name}: {path} has these lines {len(places)} times:\n{text}")
        files[file] = lines[: places[0]] + new + lines[places[0] + len(old) :]
    if not files:
        raise SystemExit(f"does not apply: {patch.name}: it has no hunk")
    return files


def main(arguments):
    is_check = arguments[:1] == ["--check"]
    tree, *patches = map(Path, arguments[is_check:])
    failed = not patches
    for patch in patches:
        try:
            files = planted(tree, patch)
        except SystemExit as error:
            print(error)
            failed = True
            continue
        for file, lines in {} if is_check else files.items():
            file.write_text("\n".join(lines))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
