# Shared by the scripts beside it: sourced, never run.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Downloads, installed tools and logs live below target/, so that `make clean` removes them.
# shellcheck disable=SC2034  # read by the scripts that source this one
tools="$top/target/tools"

say() { printf '%s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Runs a command as root: directly, or through sudo where that exists.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root: run it as root, or install sudo (wanted to run: $*)"
    fi
}

need_root() {
    [ "$(id -u)" -eq 0 ] || die "must run as root: it switches users and checks what each of them may do"
}

# A test that does not run says so by a line that `make test` counts and prints again at its end; tests in Rust do by the
# crate `skip`. `skip` is for what this kernel cannot do and what is explained elsewhere; `missing` for what can be
# provided: unless LIMEN_ALLOW_SKIPS is set, it returns 1, and the test has failed.
skip() { # TEST REASON
    say "SKIPPED: $1: $2"
}
missing() { # TEST WHAT
    if [ -z "${LIMEN_ALLOW_SKIPS:-}" ]; then
        say "$1: FAILED: it cannot run without $2; provide it, or set LIMEN_ALLOW_SKIPS=1 to skip what cannot run"
        return 1
    fi
    skip "$1" "$2"
}

# Every suite ends with this line; `counts_of` reads it back.
print_counts() { printf 'counts: %s passed, %s failed, %s skipped\n' "$1" "$2" "$3"; }

# Prints "passed failed skipped" from the last `counts:` line of a log, nothing if there is none.
counts_of() {
    sed -n 's/^counts: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$1" | tail -n 1
}
