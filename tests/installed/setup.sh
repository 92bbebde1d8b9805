#!/bin/bash
# Runs scripts/setup.sh on a machine that has what building needs, and nothing of what the tests need: a PATH of its
# own, in which apt-get and sudo only record that they were called. Before a build nothing may be installed or
# asked. Before the tests it must be; so the stand-ins are seen to work. Then on machines without Rust, or with an old
# one.
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

rm -rf "$work"/bin/apt-get "$work/said"
echo "== on a machine without Rust, apt's is installed if it is new enough, and rustup's installer runs otherwise"
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
ln -s /bin/true "$work/bin/cmake"
ln -s "$(command -v sh)" "$work/bin/sh"
rm "$work"/bin/{cargo,rustc}
rust() { # prints the commands that make a Rust of this version in this folder
    echo "mkdir -p '$2'; printf '#!/bin/sh\necho rustc $1 of today\n' >'$2/rustc'; cp '$2/rustc' '$2/cargo'; chmod +x '$2/rustc' '$2/cargo'"
}
tool() { # a stand-in that records its call, and then runs these commands
    printf '#!/bin/bash\necho "%s $*" >>"%s"\n%s\n' "$1" "$work/called" "${2:-}" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
ln -s "$(command -v mkdir)" "$(command -v chmod)" "$(command -v cp)" "$work/bin"
expect() { # what setup.sh must say and call, each a pattern; `no PATTERN` must not be there
    local pattern
    for pattern; do
        if [[ $pattern == "no "* ]]; then ! grep -q -- "${pattern#no }" "$work/called" "$work/said"
        else grep -q -- "$pattern" "$work/called" "$work/said"; fi ||
            { echo "$pattern? setup.sh said and called:"; cat "$work/said" "$work/called"; exit 1; }
    done
}
bare() { # the version of apt's Rust, then what the machine's variables are
    rm -rf "$work/home" "$work"/bin/{cargo,rustc}
    mkdir "$work/home"
    : >"$work/called"
    tool apt-cache "printf '  Candidate: $1+dfsg1-1\\n'"
    setup build HOME="$work/home" CARGO_HOME="$work/home/.cargo" "${@:2}"
}
tool apt-get "case \$* in *'cargo rustc'*) $(rust "$wanted.1" "$work/bin");; esac"
tool curl "cat <<'END'
echo installer \$* >>'$work/called'; $(rust 1.99.0 "$work/home/.cargo/bin")
END"
bare "$wanted.0" || { cat "$work/said"; exit 1; }
expect 'apt-get install .*cargo rustc' 'no curl'
bare 1.63.0 || { cat "$work/said"; exit 1; }
expect 'there is no cargo.*rustup' 'installer -y --profile minimal --no-modify-path' 'no install .*rustc'
bare 1.63.0 RUSTUP_UPDATE_ROOT=https://mirror.invalid/rustup || { cat "$work/said"; exit 1; }
expect 'curl .*https://mirror.invalid/rustup/rustup-init.sh' 'installer -y'
if bare 1.63.0 FERRY_NO_INSTALL=1; then echo "there is no Rust, and setup.sh did not say so"; exit 1; fi
expect "there is no cargo on this machine; ferry needs Rust $wanted" 'curl --proto .* sh -s -- -y' 'no installer' 'no apt-get'
tool curl "exit 6"
if bare 1.63.0; then echo "there is no Rust, and setup.sh did not say so"; exit 1; fi
expect 'rustup has not installed Rust' 'RUSTUP_DIST_SERVER' 'no installer -y'

echo "== what make runs before each target"
for target in build install demo docs deb; do
    if make -n "$target" | grep 'setup.sh tests'; then echo "make $target asks for the tests' programs"; exit 1; fi
done
for target in test check; do
    make -n "$target" | grep 'setup.sh tests' >/dev/null || { echo "make $target does not ask for the tests' programs"; exit 1; }
done
