#!/bin/bash
# Checks that this machine has what building ferry needs, and installs with apt-get what is missing. If nothing
# is missing the script changes nothing and asks nothing. Without apt-get it prints the command of the machine's
# package manager. Rust comes from apt-get if that has it as new as ferry needs it, and from rustup's installer
# otherwise. FERRY_NO_INSTALL=1 installs nothing: the script prints the exact commands. docs/building.md lists the
# packages by distribution.
#
# usage: setup.sh [PART]   PART is `tests` (building, and what the tests run), or `compare`, `rdma`, `deb`,
#                          `etcd`, `python` or `docs`, which install only what these need in addition to building
set -euo pipefail
cd "$(dirname "$0")/.."
# Where rustup's installer puts Rust, for shells without it in PATH.
PATH=${CARGO_HOME:-${HOME:-}/.cargo}/bin:$PATH:/usr/sbin:/sbin

packages=()
# A file in PATH: parts of this script have names of programs.
need() { type -P "$1" >/dev/null || packages+=("$2"); }
has_header() { echo "#include <$1>" | cc -E -x "${2:-c}" - >/dev/null 2>&1; }

# bindgen opens libclang to read the declarations of the verbs while ferry is built.
has_libclang() {
    local folder found
    for folder in "${LIBCLANG_PATH:-}" $(ldconfig -p 2>/dev/null | sed -n 's|.*=> \(.*\)/libclang.*|\1|p') \
        /usr/lib/llvm-*/lib /usr/lib/llvm*/lib /usr/lib64 /usr/lib; do
        for found in "$folder"/libclang.so* "$folder"/libclang-[0-9]*.so*; do
            [ ! -e "$found" ] || return 0
        done
    done
    return 1
}

# Prints the command that installs what building needs, for package managers other than apt-get.
command_of_this_machine() {
    local manager
    for manager in dnf zypper pacman apk; do
        command -v "$manager" >/dev/null 2>&1 || continue
        sed -n "s/.*\`\($manager [^\`]*\)\`.*/\1/p" docs/building.md
        return
    done
}

as_root=()
is_allowed() {
    [ "$(id -u)" -ne 0 ] || return 0
    as_root=(sudo)
    command -v sudo >/dev/null 2>&1
}
# Reads the lists of packages, once.
refresh() {
    [ -n "${is_fresh:-}" ] || "${as_root[@]}" apt-get update -q
    is_fresh=1
}

install_packages() {
    local command
    [ ${#packages[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        command=$(command_of_this_machine)
        echo "setup: this machine lacks what these packages of Debian have: ${packages[*]}" >&2
        [ -z "$command" ] || echo "setup: what building needs is installed by:  $command" >&2
        exit 1
    fi
    if [ -n "${FERRY_NO_INSTALL:-}" ] || ! is_allowed; then
        echo "setup: run this as root, then try again:  apt-get install -y ${packages[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${packages[*]} with apt-get"
    refresh
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${packages[@]}"
    packages=()
}

# A Python that can make virtual environments, and the library that Mooncake's wheel links but does not
# contain.
compare() {
    need python3 python3
    need unshare util-linux
    need ip iproute2
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)
    ldconfig -p | grep -q 'libibverbs\.so\.1 ' || packages+=(libibverbs1)
    install_packages
}

# The parts of the virtual machine of scripts/rdma-vm.sh, and the programs that run in it.
rdma() {
    need qemu-system-x86_64 qemu-system-x86
    need cpio cpio
    need depmod kmod
    need xz xz-utils
    need rdma iproute2
    need ibv_devinfo ibverbs-utils
    need ib_write_bw perftest
    # A dynamically linked busybox is useless without libraries.
    if ! command -v busybox >/dev/null || ldd "$(command -v busybox)" >/dev/null 2>&1; then
        packages+=(busybox-static)
    fi
    [ -e /etc/libibverbs.d/rxe.driver ] || packages+=(ibverbs-providers)
    ldconfig -p | grep 'librdmacm\.so\.1 ' >/dev/null || packages+=(librdmacm1)
    install_packages
}

# The tools that make Debian packages, on Debian and its derivatives.
deb() {
    need dpkg-deb dpkg
    need dpkg-shlibdeps dpkg-dev
    need jq jq
    [ "$(id -u)" -eq 0 ] || need fakeroot fakeroot
    install_packages
}

# The server that the tests of directories start.
etcd() {
    need etcd etcd-server
    install_packages
}

# Virtual environments; strip for the wheel's library; the library that Mooncake's wheel links but does not
# contain.
python() {
    need python3 python3
    need strip binutils
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)
    ldconfig -p | grep -q 'libibverbs\.so\.1 ' || packages+=(libibverbs1)
    install_packages
}

# The tools for the references of C and C++, and of Python.
docs() {
    need doxygen doxygen
    python
}

# What a build needs: a C compiler with the headers of libc and Linux, CMake, libclang, and the tools that all of
# these use. The headers of libibverbs come with a crate.
build() {
    need cc gcc
    need make make
    need cmake cmake
    need objcopy binutils
    has_header stdio.h || packages+=(libc6-dev)
    has_header rdma/ib_user_verbs.h || packages+=(linux-libc-dev)
    has_libclang || packages+=(libclang-dev)
}

# What the tests compile and run in addition.
tests() {
    need g++ g++
    need pkg-config pkg-config
    need valgrind valgrind
    need python3 python3
    need ip iproute2
    has_header gtest/gtest.h c++ || packages+=(libgtest-dev)
    has_header infiniband/verbs.h || packages+=(libibverbs-dev)
}

RUSTUP=https://sh.rustup.rs
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
is_enough() { [ "$(printf '%s\n%s\n' "$wanted" "$1" | sort -V | head -1)" = "$wanted" ]; }
# Says in `why` what is missing of Rust.
lacks_rust() {
    local found
    why="there is no cargo on this machine"
    command -v cargo >/dev/null 2>&1 || return 0
    found=$(rustc --version | cut -d' ' -f2)
    why="rustc is $found"
    ! is_enough "$found"
}
lacks_tools() {
    local tool
    [ "$part" = tests ] || return 1
    for tool in fmt clippy; do
        why="cargo $tool is missing (rustup component add rustfmt clippy)"
        cargo "$tool" --version >/dev/null 2>&1 || return 0
    done
    return 1
}
advice() {
    echo "setup: $why; ferry needs Rust $wanted or later. Install it with:" >&2
    echo "    curl --proto '=https' --tlsv1.2 -sSf $RUSTUP | sh -s -- -y" >&2
    echo "or, if rustup is installed:  rustup update stable" >&2
    exit 1
}

# Adds apt's Rust to the packages, unless it is too old, or the user has a Rust of his own.
rust_packages() {
    local candidate
    command -v apt-get >/dev/null 2>&1 && ! command -v rustup >/dev/null 2>&1 || return 0
    if lacks_rust; then
        [ -n "${FERRY_NO_INSTALL:-}" ] || ! is_allowed || refresh
        candidate=$(LC_ALL=C apt-cache policy rustc 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p') || true
        is_enough "$candidate" || return 0
        packages+=(cargo rustc)
        # cargo fetches crates.
        [ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
    elif [ "$(command -v cargo)" != /usr/bin/cargo ]; then
        return 0
    fi
    if [ "$part" = tests ]; then
        need rustfmt rustfmt
        need cargo-clippy rust-clippy
    fi
}

# Runs rustup's installer. It writes below ~/.cargo and ~/.rustup alone; the Makefile has ~/.cargo/bin in PATH.
install_rust() {
    local installer place
    if [ -n "${FERRY_NO_INSTALL:-}" ] || command -v rustup >/dev/null 2>&1; then advice; fi
    echo "setup: $why, and ferry needs Rust $wanted or later. Running rustup's installer, which writes to" \
        "${CARGO_HOME:-$HOME/.cargo} and ${RUSTUP_HOME:-$HOME/.rustup} (FERRY_NO_INSTALL=1 installs nothing)"
    if command -v apt-get >/dev/null 2>&1; then
        need curl curl
        [ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates)
        install_packages
    fi
    for place in ${RUSTUP_UPDATE_ROOT:+"$RUSTUP_UPDATE_ROOT/rustup-init.sh"} "$RUSTUP"; do
        installer=$(curl --proto '=https' --tlsv1.2 -sSf "$place") && break
    done
    if [ -z "$installer" ] ||
        ! RUSTUP_INIT_SKIP_PATH_CHECK=yes sh -s -- -y --profile minimal --no-modify-path -c rustfmt -c clippy <<<"$installer"; then
        echo "setup: rustup has not installed Rust, for the reason above. If its servers cannot be reached from this machine," >&2
        echo "set https_proxy, or RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER to a mirror, or install Rust $wanted or later" >&2
        echo "in another way, with cargo and rustc in PATH; then try again." >&2
        exit 1
    fi
}

part=${1:-build}
case $part in
build) build ;;
tests) build && tests ;;
compare | rdma | deb | etcd | python | docs)
    "$part"
    exit
    ;;
*)
    echo "setup: $part is no part; the parts are build, tests, compare, rdma, deb, etcd, python and docs" >&2
    exit 2
    ;;
esac
scripts/moved.sh
rust_packages
install_packages
if lacks_rust; then
    install_rust
fi
if lacks_rust || lacks_tools; then advice; fi
