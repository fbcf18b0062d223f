#!/bin/bash
# Runs common programs in DIRECTORY; each checks its results.
#
#   [LONG=yes] tests/programs/run.sh DIRECTORY [--long] [PROGRAM...]
#
# Each script in this directory is one test. It gets a new directory and a scratch directory on another file
# system. It exits with 0 on success, with 77 if this machine lacks something (the last line of output says
# what), and with another status on failure.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

here="$top/tests/programs"
if [ $# -lt 1 ] || [ ! -d "$1" ]; then die "usage: run.sh DIRECTORY [--long] [PROGRAM...]"; fi
directory=$(cd "$1" && pwd)
shift
export LONG=${LONG:-}
if [ "${1:-}" = --long ]; then
    LONG=yes
    shift
fi
[ $# -gt 0 ] || set -- git sqlite make coreutils python cpython postgres fio

limit_seconds=600
[ -z "$LONG" ] || limit_seconds=7200

scratch=$(mktemp -d)
chmod 755 "$scratch"
process=
# Each test is a job of its own, so that a signal ends everything that it started.
clean() {
    [ -z "$process" ] || kill -TERM -- "-$process" 2>/dev/null || true
    cd /
    rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

passed=0 failed=0 skipped=0
for name in "$@"; do
    [ -x "$here/$name.sh" ] || die "tests/programs/ has no program '$name'"
    mkdir -m 755 "$directory/$name" "$scratch/$name"
    started=$SECONDS status=0
    set -m
    timeout --kill-after=20 "$limit_seconds" "$here/$name.sh" "$directory/$name" "$scratch/$name" >"$scratch/said" 2>&1 </dev/null &
    process=$!
    set +m
    wait "$process" || status=$?
    process=
    case $status in
    0)
        say "$name: ok, $((SECONDS - started)) s"
        passed=$((passed + 1))
        ;;
    77)
        if missing "programs $name" "$(tail -n 1 "$scratch/said")"; then
            skipped=$((skipped + 1))
        else
            failed=$((failed + 1))
        fi
        ;;
    *)
        say "$name: FAILED with status $status"
        tail -n 40 "$scratch/said"
        failed=$((failed + 1))
        ;;
    esac
    rm -rf "${directory:?}/$name" "${scratch:?}/$name" || { say "$name: its files cannot be removed" && failed=$((failed + 1)); }
done
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
