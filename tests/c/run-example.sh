#!/bin/sh
# Runs both ends of examples/c/transfer.c: the server's first line is the address for the client.
set -eu
work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
mkfifo "$work/lines"
"$1" server >"$work/lines" &
server=$!
exec 3<"$work/lines"
read -r address <&3
"$1" client "$address"
cat <&3
status=0
wait "$server" || status=$?
server=
exit "$status"
