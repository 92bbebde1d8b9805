# For the scripts that source this file, test.sh and prove.sh: ends what a part of theirs has left behind.

# Kills the remaining processes of a session; each part has its own session.
end_session() {
    local stat line pid words
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        # The name, in parentheses, may have blanks.
        read -ra words <<<"${line##*) }"
        pid=${line%% *}
        [ "${words[3]:-}" != "$1" ] || kill -KILL "$pid" 2>/dev/null
    done
}
