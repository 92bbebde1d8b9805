#!/bin/bash
# The leg `rdma` in the virtual machine: checks the devices, checks that RDMA bytes cross the veth, and runs each
# named test binary in the folder in which cargo would run it. Every test is reported by its name; the last line
# counts the tests.
#
#   guest.sh 'TEST-BINARY [FILTER]'...
#
# RDMA_SECONDS is how long one binary may take (450). /out/passed lists those that passed, should the machine itself fail.
set -uo pipefail
[ -z "${FERRY_BENCH:-}" ] || FERRY_BENCH=$(realpath "$FERRY_BENCH")
cd "$(dirname "$0")/../../engine"
limit=${RDMA_SECONDS:-450}
log=$(mktemp)
passed=0 failed=0 skipped=0

# Soft-RoCE's devices, one on each end of a pair.
devices() {
    ibv_devinfo || return
    for device in rva0 rva1 rvb0 rvb1; do
        ibv_devinfo -d "$device" | grep -q PORT_ACTIVE || { echo "$device is not active"; return 1; }
    done
    [ "$(ls /sys/class/infiniband | wc -l)" -eq 4 ]
}

received() { cat "/sys/class/net/$1/statistics/rx_bytes"; }
# perftest's server listens on TCP 18515; its control messages go over lo, its payload does not.
listening() { grep -qi ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; }
bytes_cross_the_veth() {
    local server veth lo crossed strayed size=65536 count=200
    veth=$(received va1) lo=$(received lo)
    timeout 60 ib_write_bw -d rva1 -x 1 -F -s $size -n $count &
    server=$!
    until listening; do
        kill -0 $server || return
        sleep 0.1
    done
    timeout 60 ib_write_bw -d rva0 -x 1 -F -s $size -n $count 127.0.0.1 || return
    wait $server || return
    crossed=$(($(received va1) - veth)) strayed=$(($(received lo) - lo))
    echo "$crossed bytes over the veth, $strayed over lo"
    [ $crossed -ge $((size * count)) ] && [ $strayed -lt $((size * count / 10)) ]
}

# One test of ferry's own program, both ends; `$1` is its command line.
bench() {
    local server status
    # shellcheck disable=SC2086 # words
    timeout 60 "$FERRY_BENCH" $1 --transport rdma -d rva1 -x 1 --data_validation &
    server=$!
    until listening; do
        kill -0 $server || return
        sleep 0.1
    done
    # shellcheck disable=SC2086
    timeout 60 "$FERRY_BENCH" $1 --transport rdma -d rva0 -x 1 --data_validation 127.0.0.1
    status=$?
    [ $status -eq 0 ] || kill $server
    wait $server && [ $status -eq 0 ]
}
# Runs ferry's tests with perftest's options: both visibilities, READ, lists, and memory polled by both ends. Each has
# a second try, which is printed, as the tests below have.
ferry_bench_over_rdma() {
    local test
    for test in "write_bw -s 64k -n 200 -m 4096 -q 2" "write_bw -s 64k -n 200 --acked-only" "read_bw -s 64k -n 200" \
        "write_bw -s 16k -l 64 -n 20 --layout scattered -I 0" "write_lat -n 200" "write_lat --pingpong -n 200"; do
        echo "== $test"
        bench "$test" || { echo "once more"; bench "$test"; } || return
    done
}

# A job of this file, reported in libtest's form.
job() {
    if "$1" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "test $1 ... ok"
    else
        failed=$((failed + 1))
        cat "$log"
        echo "test $1 ... FAILED"
    fi
}

# The number before a word in libtest's last line; 0 where that is missing.
counted() { sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$log" | awk '{ sum += $1 } END { print sum + 0 }'; }

# Repeats the failed tests of a binary, each alone: an emulated machine on a busy host misses times that hold
# everywhere else. Each repetition is printed; a test that fails twice has failed.
again() {
    local name words named=0 first=$log
    read -ra words <<<"$1"
    log=$(mktemp)
    passed=$((passed + $(log=$first counted passed)))
    for name in $(awk '/^failures:$/ { names = "" } /^    [a-z_:0-9]+$/ { names = names " " $1 } END { print names }' "$first"); do
        named=1
        echo "== $name failed; once more, alone"
        if timeout -k 5 "$limit" "${words[0]}" --exact "$name" --test-threads=1 --show-output 2>&1 </dev/null | tee "$log" &&
            grep -q "^test result: ok. 1 passed" "$log"; then
            echo "== $name passed at the second try"
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
    [ "$named" -eq 1 ] || failed=$((failed + 1))
    log=$first
}

binary() {
    local words name status ran lost here_passed here_failed here_skipped started=$SECONDS
    read -ra words <<<"$1"
    name=$(basename "${words[0]}")
    echo "== $name"
    timeout -k 5 "$limit" "${words[@]}" --test-threads=1 --show-output 2>&1 </dev/null | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 101 ]; then
        again "$1"
        return
    fi
    # A test that can't run here prints SKIPPED and passes.
    lost=$(grep -c SKIPPED "$log")
    here_passed=$(($(counted passed) - lost))
    here_failed=$(counted failed)
    here_skipped=$(($(counted ignored) + lost))
    ran=$((here_passed + here_failed))
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "$name did not end within $limit s; its last test is above"
        here_failed=$((here_failed + 1))
    elif [ "$status" -ne 0 ] && [ "$here_failed" -eq 0 ]; then
        echo "$name ended with status $status"
        here_failed=1
    elif [ "$ran" -le 0 ]; then
        echo "$name ran no test"
        here_failed=$((here_failed + 1))
    fi
    echo "== $name: $((SECONDS - started)) s"
    passed=$((passed + (here_passed > 0 ? here_passed : 0)))
    failed=$((failed + here_failed))
    skipped=$((skipped + here_skipped))
}

job devices
job bytes_cross_the_veth
[ -z "${FERRY_BENCH:-}" ] || job ferry_bench_over_rdma
: >/out/passed
for line in "$@"; do
    before=$failed
    binary "$line"
    [ "$failed" -gt "$before" ] || echo "$line" >>/out/passed
done
if [ "$failed" -gt 0 ]; then
    echo "== errors and warnings of the guest's kernel"
    dmesg --level=emerg,alert,crit,err,warn | tail -n 40
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
