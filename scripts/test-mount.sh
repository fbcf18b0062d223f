#!/bin/bash
# Formats a volume, mounts it, and runs on it the suites that judge a file system from outside.
#
#   [LIMEN=target/debug/limen] [SUITE_SECONDS=900] scripts/test-mount.sh [SUITE]...
#
# A suite is tests/NAME/run.sh or tests/NAME.sh, on a volume on the embedded engine; as NAME@redis, on one on a Redis server
# of its own; as NAME@nfsv4, on one of NFSv4 ACLs. Without any, those of `make test`.
#
# Ends with one `counts:` line. Leaves nothing behind, interrupted or not.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/volume.sh
. "$top/scripts/volume.sh"

need_root
limen=$(readlink -f "${LIMEN:-${CARGO_TARGET_DIR:-$top/target}/debug/limen}")
[ -x "$limen" ] || die "no program at $limen: build it first (cargo build -p cli), or set LIMEN"
[ $# -gt 0 ] || set -- acl-package pjdfstest roundtrip kill-9 difftest fsx programs difftest@redis samba@nfsv4

log=$(mktemp)
suite_process=
cleanup() {
    # `timeout` leads a process group of its own, and hands the signal to all of it.
    if [ -n "$suite_process" ]; then
        kill -TERM "$suite_process" 2>/dev/null || true
        wait "$suite_process" 2>/dev/null || true
    fi
    volume_remove
    rm -f "$log"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

passed=0 failed=0 skipped=0
for suite in "$@"; do
    say "--- $suite"
    name=${suite%@*} engine=sqlite steps=
    if [ "$name" != "$suite" ]; then engine=${suite#*@}; fi
    # The rules are the same on every engine: a short run finds what an engine does otherwise.
    if [ "$engine" = redis ]; then steps=4000; fi
    program="$top/tests/$name/run.sh"
    [ -x "$program" ] || program="$top/tests/$name.sh"
    [ -x "$program" ] || die "no suite $name in tests/"
    # A volume for each suite, so that one cannot spoil the next.
    started=$SECONDS
    if volume_create test "$engine" >"$log" 2>&1 && volume_mount >>"$log" 2>&1; then
        # Waited for in the background: a signal is answered at once, not when the suite is through.
        LIMEN="$limen" LIMEN_META="$meta" DIFFTEST_STEPS="${DIFFTEST_STEPS:-$steps}" timeout --kill-after=30 "${SUITE_SECONDS:-900}" "$program" "$mnt" </dev/null >"$log" 2>&1 &
        suite_process=$!
        # Its exit status says no more than its counts do.
        wait "$suite_process" || true
        suite_process=
    else
        say "$suite: no volume to run on"
    fi
    cat "$log"
    counts=$(counts_of "$log")
    if [ -n "$counts" ]; then
        read -r p f s <<<"$counts"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        say "$suite: did not finish"
        failed=$((failed + 1))
    fi
    if mountpoint -q "$mnt" && ! timeout 60 "$limen" umount "$mnt"; then
        say "$suite: the volume did not unmount"
        failed=$((failed + 1))
    fi
    say "($suite took $((SECONDS - started)) s)"
    volume_remove
done
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
