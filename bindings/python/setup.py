"""Builds libferry.so with cargo and puts it, stripped, into the package.

FERRY_LIBRARY names a library that is already built. FERRY_CARGO_ARGS are further arguments for cargo, such as
packages to build at the same time. The wheel is for every Python 3 of the platform, because ctypes opens the
library at run time.
"""

import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parents[2]


def version() -> str:
    """Returns the version of the Cargo workspace, or that of an unpacked source archive."""
    cargo = REPOSITORY / "Cargo.toml"
    if cargo.exists():
        found = re.search(r'^version = "(.+)"', cargo.read_text(), re.MULTILINE)
        if found:
            return found[1]
    return re.search(r"^Version: (.+)", Path(__file__).with_name("PKG-INFO").read_text(), re.MULTILINE)[1]


def library() -> Path:
    """Returns the library that FERRY_LIBRARY names, or builds one."""
    named = os.environ.get("FERRY_LIBRARY")
    if named:
        return Path(named)
    if not (REPOSITORY / "ffi" / "Cargo.toml").exists():
        raise SystemExit("ferry: no Rust sources here; set FERRY_LIBRARY to a libferry.so of this version")
    command = ["cargo", "build", "--release", "-p", "ferry-ffi", "--message-format=json-render-diagnostics"]
    command += os.environ.get("FERRY_CARGO_ARGS", "").split()
    built = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True)
    names = [
        name
        for message in map(json.loads, built.stdout.splitlines())
        for name in message.get("filenames", [])
        if name.endswith("/libferry.so")
    ]
    return Path(names[-1])


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "ferry", "libferry.so")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library(), target)
        subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


class PlatformWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        """Returns py3-none and the oldest glibc that has every symbol of the library."""
        machine = sysconfig.get_platform().rpartition("-")[2]
        text = Path(self.bdist_dir, "ferry", "libferry.so").read_bytes()
        needed = max(tuple(map(int, pair)) for pair in re.findall(rb"GLIBC_(\d+)\.(\d+)", text))
        return "py3", "none", f"manylinux_{needed[0]}_{needed[1]}_{machine}"


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=version(),
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
)
