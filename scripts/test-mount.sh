#!/bin/bash
# Formats a volume, mounts it, and runs the suites that test a file system from outside.
#
#   [LIMEN=target/debug/limen] [SUITE_SECONDS=1800] scripts/test-mount.sh [SUITE]...
#
# A suite is tests/NAME/run.sh or tests/NAME.sh. NAME runs it on a volume on the embedded engine, NAME@redis
# on a volume on a private Redis server, NAME@sync_metadata on such a volume mounted with `-o sync_metadata`,
# and NAME@nfsv4 on a volume on the embedded engine with NFSv4 ACLs. Without arguments, the suites of `make
# test` run.
#
# Prints one `counts:` line last. Cleans up even if it is interrupted.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/volume.sh
. "$top/scripts/volume.sh"

need_root
limen=$(readlink -f "${LIMEN:-${CARGO_TARGET_DIR:-$top/target}/debug/limen}")
[ -x "$limen" ] || die "$limen does not exist: build it first (cargo build -p cli), or set LIMEN"
[ $# -gt 0 ] || set -- acl-package pjdfstest roundtrip kill-9 difftest fsx programs difftest@redis difftest@sync_metadata pjdfstest@redis samba@nfsv4

log=$(mktemp)
suite_process=
cleanup() {
    # `timeout` leads its own process group and passes the signal on to all of it.
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
    name=${suite%@*} variant=sqlite steps= options=()
    if [ "$name" != "$suite" ]; then variant=${suite#*@}; fi
    # The rules are the same on every engine, so a short run is enough to find differences between engines.
    if [ "$variant" = redis ] || [ "$variant" = sync_metadata ]; then steps=4000; fi
    if [ "$variant" = sync_metadata ]; then options=(-o sync_metadata); fi
    program="$top/tests/$name/run.sh"
    [ -x "$program" ] || program="$top/tests/$name.sh"
    [ -x "$program" ] || die "tests/ has no suite '$name'"
    # Each suite gets a new volume, so that suites do not affect each other.
    started=$SECONDS
    if volume_create test "$variant" >"$log" 2>&1 && volume_mount "${options[@]}" >>"$log" 2>&1; then
        # Runs in the background, so that signals are handled at once.
        LIMEN="$limen" LIMEN_META="$meta" DIFFTEST_STEPS="${DIFFTEST_STEPS:-$steps}" timeout --kill-after=30 "${SUITE_SECONDS:-1800}" "$program" "$mnt" </dev/null >"$log" 2>&1 &
        suite_process=$!
        # The counts decide, not the exit status.
        wait "$suite_process" || true
        suite_process=
    else
        say "$suite: cannot create or mount a volume"
    fi
    cat "$log"
    counts=$(counts_of "$log")
    if [ -n "$counts" ]; then
        read -r p f s <<<"$counts"
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        say "$suite: printed no counts"
        failed=$((failed + 1))
    fi
    if mountpoint -q "$mnt" && ! timeout 120 "$limen" umount "$mnt"; then
        say "$suite: the volume cannot be unmounted"
        failed=$((failed + 1))
    fi
    say "($suite took $((SECONDS - started)) s)"
    volume_remove
done
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
