#!/bin/bash
# Installs the packages that ferry's targets need and this machine lacks, and prints what it does. Packages
# come from apt; the user installs a missing or old Rust toolchain, and the script prints the exact commands.
# `compare`, `rdma`, `deb`, `python` or `docs` installs only what these targets and tests need in addition.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }

# bindgen opens libclang to read the declarations of libibverbs while ferry is built.
has_libclang() {
    local folder found
    for folder in "${LIBCLANG_PATH:-}" $(ldconfig -p | sed -n 's|.*=> \(.*\)/libclang.*|\1|p') /usr/lib/llvm-*/lib; do
        for found in "$folder"/libclang.so* "$folder"/libclang-[0-9]*.so*; do
            [ ! -e "$found" ] || return 0
        done
    done
    return 1
}

install_packages() {
    [ ${#packages[@]} -gt 0 ] || return 0
    echo "setup: installing ${packages[*]} with apt-get"
    if [ "$(id -u)" -eq 0 ]; then
        as_root=()
    elif command -v sudo >/dev/null 2>&1; then
        as_root=(sudo)
    else
        echo "setup: run this as root, then try again:  apt-get install -y ${packages[*]}" >&2
        exit 1
    fi
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${packages[@]}"
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

case ${1:-} in
compare | rdma | deb | python | docs)
    "$1"
    exit
    ;;
esac

need gcc gcc
need g++ g++
need make make
need ld binutils
need pkg-config pkg-config
need valgrind valgrind
need ip iproute2
need cmake cmake
[ -e /usr/include/stdio.h ] || packages+=(libc6-dev)
[ -e /usr/include/gtest/gtest.h ] || packages+=(libgtest-dev)
[ -e /usr/include/infiniband/verbs.h ] || packages+=(libibverbs-dev)
has_libclang || packages+=(libclang-dev)
install_packages

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
advice() {
    echo "setup: $1; ferry needs Rust $wanted or later. Install it with:" >&2
    echo "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y" >&2
    echo "or, if rustup is installed:  rustup update stable" >&2
    exit 1
}
command -v cargo >/dev/null 2>&1 || advice "there is no cargo on this machine"
found=$(rustc --version | cut -d' ' -f2)
oldest=$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)
[ "$oldest" = "$wanted" ] || advice "rustc is $found"
for part in fmt clippy; do
    cargo "$part" --version >/dev/null 2>&1 || advice "cargo $part is missing (rustup component add rustfmt clippy)"
done
