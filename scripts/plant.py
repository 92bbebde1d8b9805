#!/usr/bin/env python3
"""Plants bugs by content: scripts/plant.py [--check] TREE PATCH...

A patch has `--- a/PATH` for each file, then hunks that begin with `@@` and have lines that go (-), come (+) and stay. The
lines that go and stay must be in the file once, wherever: no numbers to keep true. --check changes nothing."""

import sys
from pathlib import Path


def hunks(patch):
    """Yields the path, the lines that must be there, and the lines that take their place."""
    path, lines = None, None
    for line in patch.read_text().splitlines() + ["@@"]:
        if line.startswith("--- a/") or line.startswith("@@"):
            if lines:
                yield path, [at[1:] for at in lines if at[0] in " -"], [at[1:] for at in lines if at[0] in " +"]
            path, lines = (line[6:] if line[0] == "-" else path), (None if line[0] == "-" else [])
        elif lines is not None:
            lines.append(line or " ")


def planted(tree, patch):
    """Returns the new text of each file that a patch touches. SystemExit if it does not apply."""
    texts = {}
    for path, old, new in hunks(patch):
        file = tree / path
        if not file.is_file():
            raise SystemExit(f"does not apply: {patch.name}: there is no {path}")
        text = texts.get(file) or "\n" + file.read_text()
        block = "\n" + "\n".join(old) + "\n"
        if text.count(block) != 1:
            raise SystemExit(f"does not apply: {patch.name}: {path} has these lines {text.count(block)} times:{block}")
        texts[file] = text.replace(block, "\n" + "".join(line + "\n" for line in new))
    if not texts:
        raise SystemExit(f"does not apply: {patch.name}: it has no lines")
    return {file: text[1:] for file, text in texts.items()}


def main(arguments):
    is_check = arguments[:1] == ["--check"]
    tree, *patches = map(Path, arguments[is_check:])
    failed = False
    for patch in patches:
        try:
            texts = planted(tree, patch)
        except SystemExit as error:
            print(error)
            failed = True
            continue
        for file, text in {} if is_check else texts.items():
            file.write_text(text)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
