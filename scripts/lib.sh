# Functions for the other scripts; sourced, never executed.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Downloads, installed tools and logs are below target/, so `make clean` removes them.
# shellcheck disable=SC2034  # read by the scripts that source this one
tools="$top/target/tools"

# Test builds include what the default build does not: TiKV's client, and spans for OpenTelemetry.
# shellcheck disable=SC2034
test_features=(--features cli/tikv,cli/otel)

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Runs a command as root: directly, or through sudo if it exists.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "cannot run '$*' without root: run as root, or install sudo"
    fi
}

need_root() {
    [ "$(id -u)" -eq 0 ] || die "must run as root, because it acts as several users"
}

# Reports a skipped test with a line that `make test` counts and prints again at its end; tests in Rust use
# the crate `skip` for this. `skip` is for a test that this kernel does not support, and for a skip that is
# explained elsewhere. `missing` is for something that can be provided: `missing` returns 1, and the test
# fails, unless LIMEN_ALLOW_SKIPS is set.
skip() { # TEST REASON
    say "SKIPPED: $1: $2"
}
missing() { # TEST WHAT
    if [ -z "${LIMEN_ALLOW_SKIPS:-}" ]; then
        say "$1: FAILED: cannot run without $2; provide it, or set LIMEN_ALLOW_SKIPS=1 to skip tests that cannot run"
        return 1
    fi
    skip "$1" "$2"
}

# Every suite prints this line last; `counts_of` parses it.
print_counts() { printf 'counts: %s passed, %s failed, %s skipped\n' "$1" "$2" "$3"; }

# Prints "passed failed skipped" from the last `counts:` line of a log; prints nothing if there is none.
counts_of() {
    sed -n 's/^counts: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$1" | tail -n 1
}
