#!/bin/bash
# Runs each of the named programs as the decode worker of each, itself included: a prefill worker that kills itself in
# the midst of its push, a second one that does so later, then one that pushes a whole cache. A program is NAME=COMMAND;
# the command, of one or several words, gets `decode` or `prefill ADDRESS [DIES_IN]` as arguments
# (examples/src/bin/handoff.rs documents them). Fails if a pair failed.
#
#   tests/handoff.sh rust=target/release/handoff "python=python3 bindings/python/examples/handoff.py"
#
# LIMIT is the number of seconds that a program may take; the default is 60.
set -uo pipefail
limit=${LIMIT:-60}
[ $# -gt 0 ] || { echo "usage: handoff.sh NAME=COMMAND..." >&2; exit 2; }

work=$(mktemp -d)
decoder=
end_decoder() {
    [ -z "$decoder" ] || kill "$decoder" 2>/dev/null
    [ -z "$decoder" ] || wait "$decoder" 2>/dev/null
    decoder=
}
trap 'end_decoder; rm -rf "$work"' EXIT
mkfifo "$work/lines"

# The next line of the decoder has to begin with these words.
line() {
    local said
    read -r -t "$limit" said <&3 && [[ $said == "$1"* ]] && return
    echo "the decoder's line is not \"$1...\" but \"${said:-}\""
    return 1
}

# Prints the reason if the pair fails.
pair() {
    local decoding=$1 prefilling=$2 word address dies_in status
    # shellcheck disable=SC2086  # a command may have several words
    timeout "$limit" $decoding decode >"$work/lines" 2>"$work/decoder.err" &
    decoder=$!
    exec 3<"$work/lines"
    read -r -t "$limit" word address <&3 && [ "$word" = ADDRESS ] || { echo "no ADDRESS"; return 1; }
    for dies_in in 20 40; do
        # A shell of its own writes the message about a killed process into the file.
        # shellcheck disable=SC2086
        (timeout "$limit" $prefilling prefill "$address" $dies_in; exit $?) >"$work/prefill.out" 2>&1
        status=$?
        [ $status -eq 137 ] || { echo "the prefill worker that dies ended with $status"; cat "$work/prefill.out"; return 1; }
        line "LOST after " || return 1
    done
    # shellcheck disable=SC2086
    timeout "$limit" $prefilling prefill "$address" >"$work/prefill.out" 2>&1
    status=$?
    if [ $status -ne 0 ] || [ "$(cat "$work/prefill.out")" != OK ]; then
        echo "prefill ended with $status and said:"
        cat "$work/prefill.out"
        return 1
    fi
    line OK || return 1
    wait "$decoder"
    status=$?
    decoder=
    [ $status -eq 0 ] || { echo "decode ended with $status"; return 1; }
}

failed=0 pairs=0
for decoding in "$@"; do
    for prefilling in "$@"; do
        pairs=$((pairs + 1))
        names="${prefilling%%=*} hands over to ${decoding%%=*}"
        # Not in a subshell, which would not know the decoder.
        if pair "${decoding#*=}" "${prefilling#*=}" >"$work/why"; then
            echo "ok      $names"
        else
            failed=$((failed + 1))
            echo "FAILED  $names"
            end_decoder
            sed 's/^/        /' "$work/why" "$work/decoder.err"
        fi
        end_decoder
        exec 3<&-
    done
done
echo "$((pairs - failed)) of $pairs pairs handed over their cache"
[ "$failed" -eq 0 ]
