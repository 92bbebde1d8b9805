# Prints a report of AddressSanitizer without the leaks whose memory libferry did not allocate. Prints nothing if no
# other paragraph reports anything. The options of scripts/sanitize.sh make each frame name its library.
#
# An interpreter does not free its objects when the interpreter ends. A leak of ferry has a frame of libferry.
BEGIN { RS = ""; ORS = "\n\n" }
/^(Direct|Indirect) leak of / {
    if (!/libferry/) next
    kept = 1
}
/ERROR: / && !/LeakSanitizer: detected memory leaks/ { kept = 1 }
{ report = report $0 ORS }
END { if (kept) printf "%s", report }
