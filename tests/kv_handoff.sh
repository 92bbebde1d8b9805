#!/bin/bash
# Hands a KV cache from two prefill ranks to a decode rank, with each of the named programs as each rank: each decodes
# what each prefills as rank 0, and the next one in the list as rank 1. Then rank 1 is killed while it computes: the
# decoder must name it. A program is NAME=COMMAND; the command, of one or several words, gets `prefill RANK` or `decode
# ADDRESS ADDRESS` as arguments (examples/c/kv_handoff.c documents them). Fails if a handoff failed.
#
#   tests/kv_handoff.sh c=target/cxx-tests/kv_handoff-c "python=python3 bindings/python/examples/kv_handoff.py"
#
# LIMIT is the number of seconds for which a line may be waited for; the default is 60.
set -uo pipefail
limit=${LIMIT:-60}
[ $# -gt 0 ] || { echo "usage: kv_handoff.sh NAME=COMMAND..." >&2; exit 2; }

work=$(mktemp -d)
declare -A pid=() out=() said=()
end() { kill -KILL "${pid[@]}" 2>/dev/null; pid=(); }
trap 'end; rm -rf "$work"' EXIT
mkfifo "$work/0" "$work/1"
exec 3<>"$work/0" 4<>"$work/1"

# Starts the process of a rank. What it prints ends with EXIT and its status.
start() { # rank, standard input, command with its arguments
    local rank=$1 input=$2 fd
    shift 2
    # shellcheck disable=SC2086,SC2016  # a command may have several words
    exec {fd}< <(sh -c 'echo $$; exec '"$*" <"$input" 2>"$work/$rank.err"; echo "EXIT $?") 2>/dev/null
    out[$rank]=$fd
    read -r -t "$limit" -u "$fd" "pid[$rank]"
}
# Reads the next line of a rank, which has to begin with this word; sets `line` to the rest.
next() { # rank, word
    local word
    read -r -t "$limit" -u "${out[$1]}" word line && [ "$word" = "$2" ] && return
    echo "rank $1 says \"${word:-} ${line:-}\" and not $2"
    return 1
}
# Reads what a rank says until it ends, into said[rank].
rest() {
    local line all=
    while read -r -t "$limit" -u "${out[$1]}" line; do
        all+=$line$'\n'
        [[ $line == EXIT* ]] || continue
        unset "pid[$1]"
        break
    done
    said[$1]=$all
}
says() { # rank, pattern
    # shellcheck disable=SC2053  # a pattern
    [[ ${said[$1]} == $2 ]] && return
    echo "rank $1 does not say $2, but:"
    echo "${said[$1]}"
    return 1
}

# Prints the reason if the handoff fails; 2 if the handoff was over before the kill.
handoff() { # decoder, rank 0, rank 1, `kill` or nothing
    local rank address=()
    start 0 "$work/0" "$2" prefill 0 && start 1 "$work/1" "$3" prefill 1 || { echo "a rank does not start"; return 1; }
    for rank in 0 1; do
        next $rank ADDRESS || return 1
        address+=("$line")
    done
    start decode /dev/null "$1" decode "${address[@]}" && next decode ID || return 1
    echo "$line" >&3
    echo "$line" >&4
    next decode LAYERS || return 1
    [ "${4:-}" != kill ] || kill -KILL "${pid[1]}"
    for rank in decode 0 1; do rest $rank; done
    if [ "${4:-}" != kill ]; then
        says decode "*RECEIVED*EXIT 0"$'\n' && says 0 "*SENT*EXIT 0"$'\n' && says 1 "*SENT*EXIT 0"$'\n'
        return
    fi
    [[ ${said[decode]} != *RECEIVED* ]] || return 2
    says decode "*ended: PEER_LOST PEER_LOST by rank 1 (peer ${address[1]}): * tokens valid?(; id +([0-9a-f]))"$'\n'"EXIT 3"$'\n' || return 1
    says 1 "EXIT 137"$'\n' && says 0 "*ended its take*EXIT *" || return 1
    [[ ${said[0]} != *SENT* ]] || { echo "rank 0 says SENT, but the consumer has not everything"; return 1; }
}

failed=0 handoffs=0
try() { # what happens, then as handoff
    local what=$1 try status=2
    shift
    handoffs=$((handoffs + 1))
    # On a busy machine a kill may come too late.
    for try in 1 2 3 4 5; do
        # Not in a subshell, which would not know the processes.
        handoff "$@" >"$work/why"
        status=$?
        [ $status -eq 1 ] && cat "$work"/*.err >>"$work/why"
        end
        for rank in "${!out[@]}"; do exec {out[$rank]}<&-; done
        [ $status -eq 2 ] || break
    done
    if [ $status -eq 0 ]; then
        echo "ok      $what"
    else
        failed=$((failed + 1))
        echo "FAILED  $what"
        sed 's/^/        /' "$work/why"
    fi
}
programs=("$@")
for decoding in "$@"; do
    for i in "${!programs[@]}"; do
        first=${programs[i]} second=${programs[(i + 1) % $#]}
        names="${first%%=*} and ${second%%=*} hand over to ${decoding%%=*}"
        try "$names" "${decoding#*=}" "${first#*=}" "${second#*=}"
        try "$names, and rank 1 dies" "${decoding#*=}" "${first#*=}" "${second#*=}" kill
    done
done
echo "$((handoffs - failed)) of $handoffs handoffs ended as they should"
[ "$failed" -eq 0 ]
