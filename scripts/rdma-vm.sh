#!/bin/bash
# Runs a command in a virtual machine with RDMA devices: Soft-RoCE over veth pairs, laid out as two hosts with
# two NICs each (tests/rdma-vm/network.sh). The machine's root is the host's root, read-only, so that the command
# and its libraries are those built here. No KVM is needed. Nothing is installed or changed outside
# $target/rdma-vm.
#
#   scripts/rdma-vm.sh [--limit SECONDS] [--out DIR] run COMMAND [ARGUMENT...]
#
# The command runs in this repository's folder with an empty stdin. Its output is printed at once, and its
# exit status is the script's. Files that it writes to /out in the guest are in DIR afterwards
# ($target/rdma-vm/out by default). FERRY_*, RUST_* and CARGO_TARGET_DIR are passed on. 124 means that the
# limit (600 s) passed, 125 that the machine itself failed.
#
# tests/rdma-vm/init is the guest's first process.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cache=$target/rdma-vm

TIMED_OUT=124
BROKEN=125
# A processor of the guest that does not leave its kernel for a minute ends the machine: Soft-RoCE of Linux 6.1 may
# loop for ever in its tasklet when a port goes down under traffic, about once in 20 times.
watchdog="watchdog_thresh=30 softlockup_panic=1"
# In the order of loading; dependencies are found and put first. rdma_rxe doesn't name crc32_generic, and
# without its checksum fails with "failed to add".
MODULES=(virtio_pci virtio_net 9pnet_virtio 9p crc32_generic ib_core ib_uverbs rdma_rxe rdma_ucm veth dummy sch_netem)

say() { echo "rdma-vm: $*" >&2; }
die() {
    say "$*"
    exit "$BROKEN"
}
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}

# The distribution's kernel, unpacked but not installed. It is fetched once.
fetch_kernel() {
    kernel=$cache/kernel
    exec 9>"$cache/lock"
    flock 9 # another run of this checkout may be at it
    if [ ! -e "$kernel/complete" ]; then
        local package new=$cache/kernel.new
        package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
        [ -n "$package" ] || die "apt knows no linux-image-amd64 to take the guest's kernel from (apt-get update?)"
        say "fetching $package"
        rm -rf "$new" "$kernel"
        mkdir -p "$new"
        (cd "$new" && apt-get download -q "$package") >"$cache/fetch.log" 2>&1 || {
            cat "$cache/fetch.log" >&2
            die "could not download $package, the guest's kernel"
        }
        dpkg -x "$new"/*.deb "$new/root" || die "could not unpack $package"
        # From Debian 13 on the package has its modules in usr/lib.
        [ -e "$new/root/lib" ] || ln -s usr/lib "$new/root/lib"
        rm "$new"/*.deb
        version=$(ls "$new/root/lib/modules")
        depmod -b "$new/root" "$version" || die "depmod failed"
        touch "$new/complete"
        mv "$new" "$kernel"
    fi
    exec 9>&-
    version=$(ls "$kernel/root/lib/modules")
    vmlinuz=$kernel/root/boot/vmlinuz-$version
}

# A static shell, the modules and init. Building them takes less time than a check whether old ones still fit.
build_initramfs() {
    local tree=$work/initramfs module path name
    mkdir -p "$tree/bin" "$tree/modules"
    cp "$(command -v busybox)" "$tree/bin/busybox"
    cp tests/rdma-vm/init "$tree/init"
    chmod +x "$tree/init"
    for module in "${MODULES[@]}"; do
        modprobe -d "$kernel/root" -S "$version" --show-depends "$module" >"$work/depends" 2>&1 ||
            die "the kernel package has no module $module: $(cat "$work/depends")"
        awk '$1 == "insmod" { print $2 }' "$work/depends"
    done | awk '!seen[$0]++' >"$work/paths"
    while read -r path; do
        name=$(basename "$path")
        case $name in
        *.xz) xz -dc "$path" >"$tree/modules/${name%.xz}" ;;
        *) cp "$path" "$tree/modules/" ;;
        esac
        echo "${name%.xz}" >>"$tree/modules/order"
    done <"$work/paths"
    (cd "$tree" && find . | cpio --quiet -o -H newc) >"$work/initrd"
}

# The parameters of init, and the command as a script. $work/share is the guest's only way to write to the
# host.
write_job() {
    local name
    mkdir -p "$work/share/out"
    {
        printf 'repository=%q\n' "$root"
        printf 'target=%q\n' "$target"
        printf 'now=%s\n' "$(date +%s)"
    } >"$work/share/settings"
    {
        echo '#!/bin/bash'
        # The system's own programs first: wrappers that a person has in PATH are slow under emulation.
        printf 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:%q\n' "$PATH"
        printf 'export HOME=/tmp LANG=C.UTF-8 FERRY_TEST_RDMA=1 CARGO_TARGET_DIR=%q\n' "$target"
        for name in $(compgen -e | grep -E '^(FERRY|RUST)_'); do printf 'export %s=%q\n' "$name" "${!name}"; done
        echo 'ulimit -l unlimited -c 0 || exit 1'
        printf 'cd %q || exit 1\n' "$root"
        printf 'tests/rdma-vm/network.sh || exit %s\n' "$BROKEN"
        printf 'exec %s\n' "$(printf '%q ' "$@")"
    } >"$work/share/job"
    : >"$work/share/output"
}

boot() {
    local pid tail_pid status=0
    # If this script is killed, its machine ends too.
    setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -no-reboot \
        -display none -monitor none -parallel none -serial "file:$work/console" -nic none \
        -kernel "$vmlinuz" -initrd "$work/initrd" -append "console=ttyS0 quiet tsc=reliable panic=-1 oops=panic $watchdog" \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=${work//,/,,}/share,mount_tag=share,security_model=none" \
        </dev/null 9>&- &
    pid=$!
    # timeout passes the signal on to qemu.
    trap 'kill $pid 2>/dev/null; exit 143' INT TERM HUP
    tail -q -s 0.1 -n +1 --pid="$pid" -f "$work/share/output" &
    tail_pid=$!
    wait "$pid" || status=$?
    trap - INT TERM HUP
    wait "$tail_pid" || true
    return "$status"
}

console_tail() {
    [ -s "$work/console" ] || return 0
    say "the end of its console:"
    tail -n 40 "$work/console" | tr -d '\r' >&2
}

# bash reads the whole function before it runs: a run takes minutes, and the file may be edited meanwhile.
main() {
    local program status started qemu=0
    limit=600
    out=$cache/out
    while [ $# -gt 0 ]; do
        case $1 in
        --limit) limit=${2:?} && shift 2 ;;
        --out) out=$(realpath -m "${2:?}") && shift 2 ;;
        run) shift && break ;;
        *) usage ;;
        esac
    done
    [ $# -gt 0 ] && [[ $limit =~ ^[1-9][0-9]*$ ]] || usage
    [ "$(uname -m)" = x86_64 ] || die "the virtual machine is for x86_64; this is $(uname -m)"
    PATH=$PATH:/usr/sbin:/sbin
    for program in qemu-system-x86_64 busybox cpio depmod modprobe apt-get dpkg flock setpriv ip rdma; do
        command -v "$program" >/dev/null || die "there is no $program here; scripts/setup.sh rdma installs it"
    done
    ! ldd "$(command -v busybox)" >/dev/null 2>&1 ||
        die "busybox needs libraries; scripts/setup.sh rdma installs one that doesn't"

    [ "$out" != "$cache/out" ] || rm -rf "$out" # what an earlier run left would pass for this one's
    mkdir -p "$cache" "$out"
    work=$(mktemp -d "$cache/run.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch_kernel
    build_initramfs
    write_job "$@"
    started=$SECONDS
    boot || qemu=$?

    mkdir -p "$out"
    cp -r "$work/share/out/." "$out/"
    # timeout's own status is 124, or 137 if qemu had to be killed.
    if { [ "$qemu" -eq 124 ] || [ "$qemu" -eq 137 ]; } && [ $((SECONDS - started)) -ge "$limit" ]; then
        say "the limit of $limit s passed; the machine was killed"
        console_tail
        exit "$TIMED_OUT"
    fi
    # init writes this file last, after the command has ended.
    if ! status=$(grep -xE '[0-9]+' "$work/share/status" 2>/dev/null); then
        say "the machine ended without saying how the command went (qemu's status is $qemu)"
        console_tail
        exit "$BROKEN"
    fi
    [ "$status" -ne "$BROKEN" ] || console_tail
    exit "$status"
}

main "$@"
