#!/bin/bash
# Makes the Debian packages, installs them into a separate root with its own package database, builds and runs
# the examples from there, and removes the packages; no file of theirs may remain. The machine's own packages
# are not touched.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
DEBFULLNAME="Who Packs" DEBEMAIL=packs@example.org make deb
for package in "$target"/debian/*.deb; do
    [ "$(dpkg-deb --field "$package" Maintainer)" = "Who Packs <packs@example.org>" ]
done
named='^[^<>]+ <[^<>@ ]+@[^<>@ ]+>$'
make deb
for package in "$target"/debian/*.deb; do
    dpkg-deb --info "$package"
    [[ $(dpkg-deb --field "$package" Maintainer) =~ $named ]]
    dpkg-deb --contents "$package"
done

# A database that has libc and libgcc of this machine, and nothing else.
mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/triggers"
for package in libc6 libgcc-s1; do
    dpkg-query -W -f 'Package: ${Package}\nStatus: install ok installed\nVersion: ${Version}\nArchitecture: ${Architecture}\nMaintainer: none\nDescription: from outside\n\n' "$package"
done >"$root/var/lib/dpkg/status"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(fakeroot)
database() { "${as_root[@]}" dpkg --root="$root" --force-not-root --force-script-chrootless --log=/dev/null "$@"; }
listing() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -print | sort); }
before=$(listing)

if database --install "$target"/debian/libferry-dev_*.deb 2>/dev/null; then
    echo "libferry-dev was installed without its library"
    exit 1
fi
database --install "$target"/debian/*.deb
[ "$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Status}' libferry-dev)" = installed ]
[ "$(dpkg-query --admindir="$root/var/lib/dpkg" -W -f '${db:Status-Status}' libferry0)" = installed ]
libdir=$root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
# The package of debug information has the two libraries' files, by their build IDs.
for library in libferry libferry_mooncake; do
    id=$(readelf -n "$libdir/$library.so" | sed -n 's/.*Build ID: //p')
    debug=$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    readelf -SW "$debug" | grep '\.debug_info' >/dev/null
    if readelf -SW "$libdir/$library.so" | grep '\.debug_'; then echo "$library.so has debug information"; exit 1; fi
    [ "$(readelf -n "$debug" | sed -n 's/.*Build ID: //p')" = "$id" ]
done
if [ "$(find "$root" -name '*.debug' | wc -l)" -ne 2 ]; then find "$root" -name '*.debug'; exit 1; fi
tests/installed/programs.sh "$root/usr" "$libdir" "$work/build"
"$root/usr/bin/ferry-bench" --version
"$root/usr/bin/ferry-pool" --version
[ -e "$root/usr/lib/systemd/system/ferry-pool.service" ]
database --remove libferry-dev
[ ! -e "$root/usr/include/ferry.h" ]
[ ! -e "$root/usr/include/ferry_kv.h" ]
[ ! -e "$root/usr/include/ferry_pool.h" ]
[ ! -e "$root/usr/include/ferry_kv.hpp" ]
database --purge ferry-pool libferry-dev libferry0-dbgsym libferry0
after=$(listing)
[ "$before" = "$after" ] || { diff <(echo "$before") <(echo "$after"); exit 1; }
echo "the packages were installed, ran and were removed"
