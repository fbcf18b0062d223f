#!/bin/bash
# Runs the differential tester (crates/difftest): random system calls by several users, on the mount and on a
# file system of Linux, compared after every step. Half of the steps run against ext4, half against tmpfs.
#
#   [DIFFTEST_STEPS=20000] [DIFFTEST_SEED=N] tests/difftest.sh MOUNTPOINT
#
# A difference is reduced to a few steps and printed with its seed. Each of the two file systems counts as one
# test.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: difftest.sh MOUNTPOINT"; fi
need_root
mnt=$1
steps=${DIFFTEST_STEPS:-20000}
seed=${DIFFTEST_SEED:-$((RANDOM * 32768 + RANDOM))}

cd "$top"
# Optimised, so that most of the time is spent in the mount.
cargo build --release --quiet --package difftest
program=${CARGO_TARGET_DIR:-$top/target}/release/difftest

scratch=$(mktemp -d)
clean() {
    umount --lazy "$scratch"/{ext4,tmpfs} 2>/dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT
trap 'exit 143' INT TERM HUP
chmod 755 "$scratch"
mkdir "$scratch"/{ext4,tmpfs}

# Mounts a reference; fails if this machine does not support it.
prepare() { # ext4|tmpfs
    case $1 in
    tmpfs) mount -t tmpfs -o noatime,size=4G tmpfs "$scratch/tmpfs" ;;
    ext4)
        truncate -s 2G "$scratch/image"
        # No lazy initialisation in the background and no journal, because nothing has to survive.
        mkfs.ext4 -q -m 0 -O ^has_journal -E lazy_itable_init=0 "$scratch/image" &&
            mount -o loop,noatime "$scratch/image" "$scratch/ext4"
        ;;
    esac
}

passed=0 failed=0 skipped=0
for reference in ext4 tmpfs; do
    if [ "$reference" = ext4 ] && ! command -v mkfs.ext4 >/dev/null; then
        if missing "difftest ext4" mkfs.ext4; then skipped=$((skipped + 1)); else failed=$((failed + 1)); fi
    elif ! prepare "$reference" >"$scratch/said" 2>&1; then
        skip "difftest $reference" "cannot be mounted here: $(tail -n 1 "$scratch/said")"
        skipped=$((skipped + 1))
    elif "$program" --tested "$mnt" --reference "$scratch/$reference" --steps $((steps / 2)) --seed "$seed"; then
        passed=$((passed + 1))
    else
        say "$reference: FAILED"
        failed=$((failed + 1))
    fi
done
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
