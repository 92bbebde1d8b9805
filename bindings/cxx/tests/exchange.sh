#!/bin/bash
# Runs the two ends of the exchange example, which may be of different languages.
#
# usage: exchange.sh SERVER CLIENT     each a command line, to which `serve` or `connect ADDRESS` is added
set -euo pipefail
work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
mkfifo "$work/lines"
# shellcheck disable=SC2086 # command lines are meant to split
timeout 60 $1 serve >"$work/lines" &
server=$!
exec 3<"$work/lines"
read -r word address <&3
[ "$word" = ADDRESS ] || { echo "the server's first line is \"$word $address\""; exit 1; }
# shellcheck disable=SC2086
said=$(timeout 60 $2 connect "$address")
[ "$said" = OK ] || { echo "the client said \"$said\""; exit 1; }
said=$(cat <&3)
[ "$said" = OK ] || { echo "the server said \"$said\""; exit 1; }
status=0
wait "$server" || status=$?
server=
exit "$status"
