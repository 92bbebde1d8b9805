#!/bin/bash
# Runs each of the named programs as the server of each, itself included, and prints the outcome of each pair;
# fails if a pair failed. A program is NAME=COMMAND; the command, of one or several words, gets `serve` or
# `connect ADDRESS` as arguments (examples/src/bin/exchange.rs documents them).
#
#   tests/exchange.sh rust=target/release/exchange "python=python3 bindings/python/examples/exchange.py"
#
# LIMIT is the number of seconds that a program may take; the default is 60.
set -uo pipefail
limit=${LIMIT:-60}
[ $# -gt 0 ] || { echo "usage: exchange.sh NAME=COMMAND..." >&2; exit 2; }
for program in "$@"; do
    case $program in
    ?*=?*) ;;
    *) echo "exchange.sh: $program is no NAME=COMMAND" >&2; exit 2 ;;
    esac
done

work=$(mktemp -d)
server=
end_server() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    [ -z "$server" ] || wait "$server" 2>/dev/null
    server=
}
trap 'end_server; rm -rf "$work"' EXIT

# Both ends must print OK and exit with 0. $work/why gets the reason of a failure.
pair() {
    local serving=$1 connecting=$2 word address rest status
    : >"$work/why"
    # shellcheck disable=SC2086  # a command may have several words
    timeout "$limit" $serving serve >"$work/lines" 2>"$work/server.err" &
    server=$!
    exec 3<"$work/lines"
    if ! read -r -t "$limit" word address <&3 || [ "$word" != ADDRESS ]; then
        { echo "the server's first line is no ADDRESS: ${word:-} ${address:-}"; cat "$work/server.err"; } >"$work/why"
        return 1
    fi
    # shellcheck disable=SC2086
    timeout "$limit" $connecting connect "$address" >"$work/client.out" 2>&1
    status=$?
    if [ $status -ne 0 ] || [ "$(cat "$work/client.out")" != OK ]; then
        { echo "connect ended with $status and said:"; cat "$work/client.out"; } >"$work/why"
        # The server waits for a notification that may not come.
        return 1
    fi
    rest=$(cat <&3)
    wait "$server"
    status=$?
    server=
    if [ $status -ne 0 ] || [ "$rest" != OK ]; then
        { echo "serve ended with $status and said:"; echo "$rest"; cat "$work/server.err"; } >"$work/why"
        return 1
    fi
}

failed=0 pairs=0
mkfifo "$work/lines"
for serving in "$@"; do
    for connecting in "$@"; do
        pairs=$((pairs + 1))
        names="${serving%%=*} serves ${connecting%%=*}"
        if pair "${serving#*=}" "${connecting#*=}"; then
            echo "ok      $names"
        else
            failed=$((failed + 1))
            echo "FAILED  $names"
            sed 's/^/        /' "$work/why"
        fi
        end_server
        exec 3<&-
    done
done
echo "$((pairs - failed)) of $pairs pairs exchanged their bytes"
[ "$failed" -eq 0 ]
