#!/bin/bash
# Runs `make demo` and `make test` as on a new machine: in a minimal Debian 13 and a minimal Debian 12 with nothing but
# make and git, which debootstrap makes in a folder. Each gets a clone of HEAD, a clean environment and no file of this
# machine but those named below. The folders are removed at the end.
#
#   scripts/bare.sh [RELEASE]...   trixie and bookworm, or these; RUN=demo runs `make demo` alone; KEEP=1 keeps the folders
#
# A release that cannot be tried is reported with the reason. The last line counts; the status is 77 if nothing was tried.
set -uo pipefail
cd "$(dirname "$0")/.."
SKIP=77
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
read -ra commands <<<"${RUN:-demo test}"

# Settings of this machine's network that the new one gets too, so that its package managers reach theirs: proxies,
# mirrors and certificates. Paths of this machine's own folders are not among them.
PASSED='^([a-z]+_proxy|[A-Z]+_PROXY|PIP_.*|UV_.*|CARGO_(HTTP|NET|REGISTR|SOURCE)[A-Z_]*|RUSTUP_(DIST_SERVER|UPDATE_ROOT)|GO[A-Z]*(PROXY|SUMDB|PRIVATE|INSECURE)|[A-Z]*SSL_[A-Z_]*|[A-Z_]*CA_BUNDLE)$'
# Files of the same kind, besides those that these settings name; Debian's package makes what is in /etc/ssl.
FILES=(/etc/resolv.conf /etc/pip.conf "${CARGO_HOME:-$HOME/.cargo}/config.toml" /usr/local/share/ca-certificates/*.crt)

# The mirror that this machine's apt-get uses; nothing elsewhere, and debootstrap takes its own.
mirror() { # shellcheck disable=SC2016  # apt-get's own variables
    LC_ALL=C apt-get indextargets --format '$(LABEL) $(SITE)' 2>/dev/null | sed -n 's/^Debian //p' | head -1
}

# Says why a root cannot be made here.
cannot() {
    if [ "$(id -u)" -ne 0 ]; then echo "it needs root: sudo make test-bare"; return; fi
    for tool in debootstrap unshare chroot; do
        command -v "$tool" >/dev/null || { echo "$tool is not installed"; return; }
    done
}

make_root() {
    local root=$1 release=$2 named file
    debootstrap --variant=minbase --include=make,git "$release" "$root" $(mirror) >"$root.log" 2>&1 || return
    {
        apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|ftp)::(Proxy|CaInfo|Verify)|^Acquire::(Check|Retries)' || true
    } >"$root/etc/apt/apt.conf.d/90-network"
    named=$(env | sed -n 's|^\([A-Za-z_]*\)=\(/.*\)$|\1 \2|p' | grep -E "${PASSED%\$} " | cut -d' ' -f2- |
        grep -v '^/etc/ssl/')
    for file in "${FILES[@]}" $named; do
        [ -f "$file" ] || continue
        mkdir -p "$root$(dirname "${file/#$HOME//root}")"
        cat "$file" >"$root${file/#$HOME//root}"
    done
    git clone --quiet --no-hardlinks . "$root/root/ferry"
}

# Runs a command in the root, in namespaces that end with it, and its mounts with them.
inside() {
    local root=$1 passed set
    shift
    mapfile -t passed < <(env | grep -E "${PASSED%\$}=" | while IFS= read -r set; do
        # A folder that only this machine has.
        [ -d "${set#*=}" ] && [ ! -d "$root${set#*=}" ] || echo "$set"
    done)
    # shellcheck disable=SC2016  # of the inner shell
    unshare --mount --pid --fork --kill-child bash -c 'root=$1; shift
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" &&
            exec chroot "$root" "$@"' - "$root" \
        /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${passed[@]}" "$@" </dev/null
}

try() {
    local release=$1 root=$2 command started
    echo "== $release: debootstrap"
    if ! make_root "$root" "$release"; then
        tail -n 5 "$root.log"
        echo "SKIPPED $release: debootstrap could not make it (all it says: $root.log)"
        return $SKIP
    fi
    for command in "${commands[@]}"; do
        started=$SECONDS
        echo "== $release: make $command"
        inside "$root" sh -c 'cd && exec make -C ferry "$1"' - "$command" || { echo "FAILED  $release: make $command ($((SECONDS - started)) s)"; return 1; }
        echo "ok      $release: make $command ($((SECONDS - started)) s)"
    done
}

# bash reads the whole function before it runs: that takes long, and the file may be edited meanwhile.
main() {
    local reason release root passed=0 failed=0 skipped=0 told=()
    [ $# -gt 0 ] || set -- trixie bookworm
    reason=$(cannot)
    mkdir -p "$target/bare"
    for release; do
        if [ -n "$reason" ]; then
            told+=("SKIPPED $release: $reason")
            skipped=$((skipped + 1))
            continue
        fi
        root=$target/bare/$release
        rm -rf --one-file-system "$root"
        try "$release" "$root" 2>&1 | tee "$target/bare/$release.out"
        case ${PIPESTATUS[0]} in
        0) passed=$((passed + 1)) ;;
        "$SKIP") skipped=$((skipped + 1)) ;;
        *) failed=$((failed + 1)) ;;
        esac
        told+=("$(grep -E '^(ok     |FAILED |SKIPPED) ' "$target/bare/$release.out" | grep " $release: ")")
        [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"
    done
    printf '%s\n' "${told[@]}"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] || return 1
    [ "$passed" -gt 0 ] || return $SKIP
}

main "$@"; exit
