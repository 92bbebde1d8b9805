"""Builds the plugin for NIXL, and puts it into the package with the libferry.so.0 that it needs.

FERRY_LIBRARY names a libferry.so that is already built; otherwise scripts/build.sh builds one. The library
of the package `ferry` cannot serve: the plugin needs a file libferry.so.0, which that package does not have.
If a process has already loaded that library, the loader uses it for the plugin too, because both have the
same SONAME.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = ("libplugin_FERRY.so", "libferry.so.0")


def version() -> str:
    """Returns the version of the Cargo workspace."""
    found = re.search(r'^version = "(.+)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


class BuildWithPlugin(build_py):
    def run(self) -> None:
        super().run()
        folder = Path(self.build_lib, "ferry_nixl", "plugins").resolve()
        subprocess.run([REPOSITORY / "bindings/nixl/build.sh", folder], check=True)
        built = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "libferry.so"
        shutil.copyfile(os.environ.get("FERRY_LIBRARY") or built, folder / "libferry.so.0")
        if shutil.which("strip") is not None:
            subprocess.run(["strip", "--strip-unneeded", *(folder / file for file in FILES)], check=True)


class PlatformWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tag: py3, none, and the oldest glibc that has every symbol that the two files need."""
        machine = sysconfig.get_platform().rpartition("-")[2]
        folder = Path(self.bdist_dir, "ferry_nixl", "plugins")
        symbols = b"".join((folder / file).read_bytes() for file in FILES)
        needed = max(tuple(map(int, pair)) for pair in re.findall(rb"GLIBC_(\d+)\.(\d+)", symbols))
        return "py3", "none", f"manylinux_{needed[0]}_{needed[1]}_{machine}"


class WithPlugin(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=version(),
    distclass=WithPlugin,
    cmdclass={"build_py": BuildWithPlugin, "bdist_wheel": PlatformWheel},
)
