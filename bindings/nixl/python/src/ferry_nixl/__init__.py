"""ferry as a backend of NIXL: the location of the plugin, and folders of plugins that contain it.

NIXL looks for plugins in one folder, NIXL_PLUGIN_DIR or its own. `plugins()` returns a folder with ferry
alone; `mirror` makes one in which NIXL's own plugins work too.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path

__all__ = ["FolderError", "mirror", "plugins"]

MARK = ".ferry-nixl"
DISTRIBUTIONS = ("nixl-cu12", "nixl-cu13")


class FolderError(Exception):
    """The folder cannot be made; the text says why."""


def plugins() -> Path:
    """Returns the folder with libplugin_FERRY.so alone: a value for NIXL_PLUGIN_DIR."""
    return Path(__file__).resolve().with_name("plugins")


def nixl() -> tuple[str, Path]:
    """Returns the name of NIXL's package, and the folder that it was installed into."""
    for name in DISTRIBUTIONS:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name.replace("-", "_"), Path(str(found.locate_file("")))
    raise FolderError(f"NIXL is not installed in this Python: neither {' nor '.join(DISTRIBUTIONS)}")


def mirror(root: Path, alias: str | None = None) -> Path:
    """Makes a tree of links to NIXL's libraries, with ferry among the plugins; returns its folder of plugins.

    The tree has the layout of the installed wheel, because NIXL's own plugins find their libraries by
    relative paths. With an alias, ferry also replaces the backend of that name. A tree that this function
    made earlier is replaced. Raises FolderError, and makes nothing, if NIXL is not installed, if `root` holds
    anything else, or if the alias is no name of a backend.
    """
    # NIXL asks for libplugin_NAME.so: a name with a slash would be a file outside the tree.
    if alias is not None and re.fullmatch(r"[A-Za-z0-9_]+", alias) is None:
        raise FolderError(f'"{alias}" is no name of a backend: letters, digits and _ only, as in UCX')
    package, site = nixl()
    libraries = site / f".{package}.mesonpy.libs"
    own = libraries / "plugins"
    if not own.is_dir():
        raise FolderError(f"{own} does not exist: this is not the wheel of {package}")
    if root.exists() and not (root / MARK).exists() and (not root.is_dir() or any(root.iterdir())):
        raise FolderError(f"{root} exists and was not made by ferry_nixl; name another folder")
    made = root / "m" / "plugins"
    made.mkdir(parents=True, exist_ok=True)
    (root / MARK).touch()
    for folder in (root, root / "m", made):
        for old in folder.iterdir():
            if old.is_symlink():
                old.unlink()

    (root / f"{package}.libs").symlink_to(site / f"{package}.libs")
    for library in libraries.glob("*.so*"):
        (root / "m" / library.name).symlink_to(library)
    names = {plugin.name: plugin for plugin in own.glob("*.so")}
    names["libplugin_FERRY.so"] = plugins() / "libplugin_FERRY.so"
    names["libferry.so.0"] = plugins() / "libferry.so.0"
    if alias is not None:
        names[f"libplugin_{alias}.so"] = plugins() / "libplugin_FERRY.so"
    for name, file in names.items():
        (made / name).symlink_to(os.fspath(file))
    return made.resolve()
