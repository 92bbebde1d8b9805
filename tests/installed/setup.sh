#!/bin/bash
# Runs scripts/setup.sh on a machine that has what building needs, and nothing of what the tests need: a PATH of its
# own, in which apt-get and sudo only record that they were called. Before a build nothing may be installed or
# asked. Before the tests it must be; so the stand-ins are seen to work.
#
# usage: setup.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
# The script looks into this folder too.
if [ -e /usr/sbin/valgrind ] || [ -e /usr/sbin/cmake ]; then
    echo "SKIPPED: what setup.sh asks for, because this system has its programs in /usr/sbin"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
# The programs that building needs, and those that the script itself calls.
for tool in cc gcc make cmake objcopy cargo rustc bash env dirname sed head cut sort id ldconfig cat; do
    ln -s "$(PATH=$PATH:/usr/sbin:/sbin command -v "$tool")" "$work/bin/$tool"
done
for tool in apt-get sudo; do
    printf '#!/bin/bash\necho "%s $*" >>"%s"\n' "$tool" "$work/called" >"$work/bin/$tool"
    chmod +x "$work/bin/$tool"
done
: >"$work/called"

setup() { env -i HOME="$HOME" PATH="$work/bin" "${@:2}" scripts/setup.sh "$1" >"$work/said" 2>&1; }
if setup tests; [ ! -s "$work/called" ]; then
    echo "the tests' programs are not here, and nothing was installed:"
    cat "$work/said"
    exit 1
fi
grep -q 'apt-get install .*valgrind' "$work/called"
: >"$work/called"
if ! setup build || [ -s "$work/called" ] || [ -s "$work/said" ]; then
    echo "a build has all that it needs, and setup.sh said and called:"
    cat "$work/said" "$work/called"
    exit 1
fi

echo "== without CMake, on a machine without apt-get, the command of its package manager is told"
rm "$work"/bin/{cmake,apt-get}
for manager in dnf zypper pacman apk; do
    ln -s /bin/true "$work/bin/$manager"
    if setup build; then echo "CMake is not here, and setup.sh did not say so"; exit 1; fi
    grep -q "^setup: this machine lacks .*: cmake$" "$work/said"
    grep -q "installed by:  $manager .*cmake" "$work/said" || { cat "$work/said"; exit 1; }
    rm "$work/bin/$manager"
done

echo "== what make runs before each target"
for target in build install demo docs deb; do
    if make -n "$target" | grep 'setup.sh tests'; then echo "make $target asks for the tests' programs"; exit 1; fi
done
for target in test check; do
    make -n "$target" | grep 'setup.sh tests' >/dev/null || { echo "make $target does not ask for the tests' programs"; exit 1; }
done
