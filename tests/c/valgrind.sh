#!/bin/sh
# Runs a test program under valgrind, for run.sh here and for that of bindings/mooncake: valgrind.sh OUTDIR
# PROGRAM [ARGUMENT...]. The logs go to OUTDIR. FERRY_SKIP_VALGRIND=1 skips valgrind, and prints that.
set -eu
out=$1
shift
if [ "${FERRY_SKIP_VALGRIND:-}" = 1 ]; then
    echo "== SKIPPED: valgrind, because FERRY_SKIP_VALGRIND=1"
    exit 0
fi
echo "== valgrind"
# One log per process. valgrind is quiet, so a line in a forked child's log is an error too.
rm -f "$out"/valgrind.*.log
valgrind --quiet --leak-check=full --show-leak-kinds=definite,indirect,possible \
    --errors-for-leak-kinds=definite,indirect,possible --error-exitcode=99 \
    --suppressions="$(dirname "$0")/valgrind.supp" --fair-sched=try --log-file="$out/valgrind.%p.log" \
    "$@" || { cat "$out"/valgrind.*.log; exit 1; }
if grep -h '^==' "$out"/valgrind.*.log; then
    echo "valgrind found errors" >&2
    exit 1
fi
