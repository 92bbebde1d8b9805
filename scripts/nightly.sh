# The pinned nightly Rust, for the scripts that source this file: fuzz.sh, sanitize.sh and miri.sh. FERRY_NIGHTLY
# names another one.
nightly=${FERRY_NIGHTLY:-nightly-2026-05-20}
triple=$(rustc -vV | sed -n 's/^host: //p')

# Installs the toolchain if it is missing. Arguments: components that it must have.
toolchain() {
    local part have
    rustup run "$nightly" rustc --version >/dev/null 2>&1 || {
        echo "installing the toolchain $nightly" >&2
        rustup toolchain install "$nightly" --profile minimal >&2
    }
    have=$(rustup component list --toolchain "$nightly" --installed)
    for part in "$@"; do
        [[ $'\n'$have =~ $'\n'$part(-|$'\n'|$) ]] || rustup component add --toolchain "$nightly" "$part" >&2
    done
}
