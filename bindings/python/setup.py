"""Puts libferry.so, stripped, into the package.

The library is the one that FERRY_LIBRARY names, or that cargo builds, or, without cargo or without the Rust
sources, one that is already built: docs/building.md. FERRY_CARGO_ARGS are further arguments for cargo. The
wheel is for every Python 3 of the platform, because ctypes opens the library at run time.
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


def say(text: str) -> None:
    """Prints a line, also to the terminal: pip hides what a build prints, unless it is called with -v."""
    print(f"ferry: {text}", flush=True)
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\nferry: {text}\n")
    except OSError:
        pass  # there is no terminal


def built_by_cargo() -> Path:
    """Returns the library of this checkout.

    The packages are those of scripts/build.sh: cargo chooses the features of dependencies by the packages
    that are named together, and so compiles nothing again after `make build`.
    """
    say("cargo builds libferry.so if it has to, in one to two minutes; pip install -v shows each crate")
    subprocess.run([REPOSITORY / "scripts" / "moved.sh"], check=True)
    command = ["cargo", "build", "--release", "-p", "ferry-ffi", "-p", "ferry-mooncake"]
    command += ["--message-format=json-render-diagnostics", *os.environ.get("FERRY_CARGO_ARGS", "").split()]
    built = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        raise SystemExit(
            "ferry: cargo could not build libferry.so. `make setup` finds what is missing, and "
            "docs/building.md lists it. "
            "FERRY_LIBRARY=/path/to/libferry.so takes a library that is already built."
        )
    names = [
        name
        for message in map(json.loads, built.stdout.splitlines())
        for name in message.get("filenames", [])
        if name.endswith("/libferry.so")
    ]
    return Path(names[-1])


def installed() -> Path | None:
    """Returns the library of this version that pkg-config knows."""
    if shutil.which("pkg-config") is None:
        return None
    command = ["pkg-config", "--variable=libdir", f"ferry = {version()}"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    path = Path(found.stdout.strip(), "libferry.so")
    return path if found.returncode == 0 and path.is_file() else None


def library() -> Path:
    """Returns the library for the package."""
    named = os.environ.get("FERRY_LIBRARY")
    if named:
        return Path(named)
    checkout = (REPOSITORY / "ffi" / "Cargo.toml").exists()
    if checkout and shutil.which("cargo") is not None:
        return built_by_cargo()
    built = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "libferry.so"
    found = built if checkout and built.is_file() else installed()
    if found is None:
        raise SystemExit(
            f"ferry: there is no cargo with the Rust sources, and pkg-config knows no ferry {version()}; "
            "set FERRY_LIBRARY to a libferry.so of this version"
        )
    return found


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "ferry", "libferry.so")
        target.parent.mkdir(parents=True, exist_ok=True)
        found = library()
        say(f"the package gets {found}")
        shutil.copyfile(found, target)
        # A machine without a compiler has no strip; an installed library is stripped already.
        if shutil.which("strip") is not None:
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
