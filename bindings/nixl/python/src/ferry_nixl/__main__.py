"""`python -m ferry_nixl`: prints a value for NIXL_PLUGIN_DIR."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ferry_nixl import FolderError, mirror, plugins


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ferry_nixl",
        description="Prints a folder for NIXL_PLUGIN_DIR: without a command, one that has FERRY alone.",
    )
    commands = parser.add_subparsers(dest="command")
    folder = commands.add_parser("folder", help="make a folder that has NIXL's own plugins, too")
    folder.add_argument(
        "root", type=Path, metavar="DIR", help="the folder to make: missing, empty, or made by this command"
    )
    folder.add_argument(
        "--alias",
        metavar="BACKEND",
        help="ferry also answers to this name, for programs that ask for UCX by name. Every agent of the "
        "fleet needs the alias: a real UCX that gets ferry's metadata ends its own process",
    )
    given = parser.parse_args()
    try:
        print(mirror(given.root, given.alias) if given.command == "folder" else plugins())
    except (FolderError, OSError) as error:
        print(f"ferry_nixl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
