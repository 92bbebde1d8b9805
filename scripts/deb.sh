#!/bin/bash
# Makes four Debian packages from `make install-debug`: the libraries, their debug information, the files for building
# programs (headers, static library, pkg-config and CMake files, ferry-bench), and a node of the pool with its unit. Names, version and licence come from Cargo's
# metadata of the crate ferry-ffi, the description from the crate ferry, dependencies from dpkg-shlibdeps. The
# maintainer is in the metadata too; DEBEMAIL and DEBFULLNAME override it.
#
# usage: deb.sh OUT    OUT is the folder for the packages
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

metadata=$(cargo metadata --no-deps --format-version 1)
of() { jq -er --arg crate "$1" ".packages[] | select(.name == \$crate) | .$2" <<<"$metadata"; }
field() { of ferry-ffi "$1"; }
version=$(field version)
library=$(field metadata.deb.library)
development=$(field metadata.deb.development)
architecture=$(dpkg --print-architecture)
folder=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
abi=${library#libferry}

make install-debug PREFIX=/usr LIBDIR="$folder" DESTDIR="$work/$development"
mkdir -p "$work/$library$folder"
mv "$work/$development$folder"/libferry.so.{"$version","$abi"} "$work/$development$folder"/libferry_mooncake.so.{"$version",0} \
    "$work/$library$folder/"
libraries=("$work/$library$folder"/libferry{,_mooncake}.so."$version")
chmod 644 "${libraries[@]}"

# Debuggers find the debug information of packages by the build ID of the library.
debug=$library-dbgsym
build_ids=()
for file in "${libraries[@]}"; do
    id=$(readelf -n "$file" | sed -n 's/.*Build ID: //p')
    [ -n "$id" ] || { echo "deb.sh: the linker gave $file no build ID" >&2; exit 1; }
    build_ids+=("$id")
    place=$work/$debug/usr/lib/debug/.build-id/${id:0:2}
    mkdir -p "$place"
    mv "$work/$development$folder/.debug/$(basename "$file").debug" "$place/${id:2}.debug"
done
rm -r "$work/$development$folder/.debug" "$work/$development/usr/bin/.debug"

maintainer() {
    local known
    known=$(field metadata.deb.maintainer)
    case ${DEBEMAIL:-} in
    "") echo "$known" ;;
    *"<"*">") echo "$DEBEMAIL" ;;
    *) echo "${DEBFULLNAME:-${known% <*}} <$DEBEMAIL>" ;;
    esac
}

needs() { # prints the libraries that these files are linked with, as a Depends field
    mkdir -p "$work/shlibs/debian"
    printf 'Source: ferry\n\nPackage: ferry\nArchitecture: any\n' >"$work/shlibs/debian/control"
    (cd "$work/shlibs" && dpkg-shlibdeps -O "${@/#/-e}" 2>/dev/null) | sed 's/^shlibs:Depends=//'
}

# Arguments: package, Depends, the second line of its description, its section, and further fields
pack() {
    local package=$1 depends=$2 about=$3 section=$4 tree=$work/$1 doc
    doc=$tree/usr/share/doc/$package
    mkdir -p "$tree/DEBIAN" "$doc"
    {
        echo "License: $(field license)"
        echo
        cat LICENSE-MIT
        echo
        cat LICENSE-APACHE
    } >"$doc/copyright"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    {
        echo "Package: $package"
        echo "Source: ferry"
        echo "Version: $version"
        echo "Architecture: $architecture"
        echo "Maintainer: $(maintainer)"
        echo "Section: $section"
        echo "Priority: optional"
        echo "Depends: $depends"
        for further in "${@:5}"; do echo "$further"; done
        echo "Installed-Size: $(du -k -s --apparent-size "$tree" | cut -f1)"
        echo "Description: $(of ferry description)"
        echo " $about"
    } >"$tree/DEBIAN/control"
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    chmod -R u=rwX,go=rX "$tree"
    rm -f "$out/${package}"_*.deb
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/${package}_${version}_$architecture.deb"
}

mkdir -p "$work/$library/DEBIAN"
printf '%s\n' "libferry $abi $library (>= $version)" "libferry_mooncake 0 $library (>= $version)" >"$work/$library/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$work/$library/DEBIAN/triggers"
section=$(field metadata.deb.section)
pack "$library" "$(needs "${libraries[@]}")" "These are the shared libraries." "$section"
pack "$debug" "$library (= $version)" "This is the debug information of the shared libraries." debug \
    "Auto-Built-Package: debug-symbols" "Build-Ids: ${build_ids[*]}"
pool=ferry-pool
mkdir -p "$work/$pool/usr/bin" "$work/$pool/usr/lib/systemd/system"
mv "$work/$development/usr/bin/ferry-pool" "$work/$pool/usr/bin/"
cp pool/program/ferry-pool.service "$work/$pool/usr/lib/systemd/system/"
pack "$pool" "$(needs "$work/$pool/usr/bin/ferry-pool")" \
    "This is a node of the KV pool: it lends memory of its host to the cluster." admin
pack "$development" "$library (= $version), $(needs "$work/$development/usr/bin/ferry-bench")" \
    "These are the files for building programs in C and C++, and ferry-bench." libdevel
