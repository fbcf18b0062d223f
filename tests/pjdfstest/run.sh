#!/bin/bash
# Runs all of pjdfstest (the Rust one, from crates.io) in DIRECTORY, as root.
#
#   [PJDFSTEST_STEPS="0.01 0.15"] tests/pjdfstest/run.sh DIRECTORY
#
# Runs once per step: the time in seconds that tests wait for a timestamp to change.
#
# The tests of EROFS remount the file system read-only. This fails while a file is open for writing, and other
# tests leave files open until their process ends. So there are two processes: the first runs all other tests,
# the second runs the tests of EROFS.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: run.sh DIRECTORY"; fi
need_root
here="$top/tests/pjdfstest"
directory=$(cd "$1" && pwd)

program=$("$top/tests/tool.sh" pjdfstest)

scratch=$(mktemp -d)
work="$directory/pjdfstest"
# pjdfstest builds a path of exactly PATH_MAX bytes below this path and two temporary directories (22 bytes).
# Its arithmetic underflows if the bytes that remain for the rest of the path are a multiple of 127.
[ $(((4095 - 22 - ${#work}) % 127)) -ne 0 ] || work="$work-"
trap 'rm -rf "$work" "$scratch"' EXIT
mkdir -p "$work"
chmod 755 "$work"

# A second file system, for EXDEV.
mkdir "$scratch/second"
mount -t tmpfs tmpfs "$scratch/second"
chmod 755 "$scratch" "$scratch/second"
trap 'umount --lazy "$scratch/second"; rm -rf "$work" "$scratch"' EXIT

# mount(8) calls a helper for FUSE types, which cannot remount; -i makes the call to the kernel instead.
mkdir "$scratch/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$scratch/bin/mount"
chmod 755 "$scratch/bin/mount"

run() {
    NO_COLOR=1 PATH="$scratch/bin:$PATH" "$program" --path "$work" --secondary-fs "$scratch/second" "$@" 2>&1 || true
}

mkdir -p "$top/target"
passed=0 failed=0 skipped=0
for step in ${PJDFSTEST_STEPS:-0.01 0.15}; do
    started=$SECONDS log="$top/target/pjdfstest-$step.log"
    sed "s/^naptime = .*/naptime = $step/" "$here/pjdfstest.toml" >"$scratch/config.toml"
    sed 's/^allow_remount = .*/allow_remount = true/' "$scratch/config.toml" >"$scratch/remount.toml"
    run --configuration-file "$scratch/config.toml" >"$log"
    run --configuration-file "$scratch/remount.toml" erofs >"$scratch/erofs.log"
    grep -q '^Summary: ' "$log" || die "pjdfstest did not finish: $(tail -n 3 "$log")"
    grep -q '^Summary: ' "$scratch/erofs.log" || die "pjdfstest did not finish: $(tail -n 3 "$scratch/erofs.log")"
    # The results of the second run replace the skips of the first.
    sed -i '/^[a-z0-9_:]*::erofs_[a-z_]* *skipped$/d; /^Summary: /d' "$log"
    cat "$scratch/erofs.log" >>"$log"

    ok=$(grep -c '^[a-z0-9_:]* *ok$' "$log" || true)
    bad=$(grep -c '^[a-z0-9_:]* *FAILED$' "$log" || true)
    left_out=0
    while read -r test; do
        if grep -qF "\`$test\`" "$here/skips.md"; then
            left_out=$((left_out + 1))
            skip "pjdfstest $test, step of $step s" "explained in tests/pjdfstest/skips.md"
        else
            say "$test: skipped without a reason in tests/pjdfstest/skips.md"
            bad=$((bad + 1))
        fi
    done < <(sed -n 's/^\([a-z0-9_:]*\) *skipped$/\1/p' "$log")

    grep -A 1 '^[a-z0-9_:]* *FAILED$' "$log" | grep -v '^--$' || true
    say "step of $step s: $ok ok, $bad failed, $left_out skipped, $((SECONDS - started)) s; log: $log"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + left_out))
done
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
