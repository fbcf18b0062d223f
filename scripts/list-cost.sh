#!/bin/bash
# Measures the cost of ACLs in listings: `ls -lR` of 10,000 files in 100 directories, as a user that owns none
# of them, on a volume with ACLs and on a volume without. The two volumes take turns, so that other load
# affects both; medians are printed. Requires root. Takes the limen to measure, by default the release build.
#
#   scripts/list-cost.sh [LIMEN [ROUNDS]]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=${1:-$top/target/release/limen}
rounds=${2:-9}
runs=4
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because it mounts and lists as another user"

work=$(mktemp -d)
chmod 755 "$work"
clean() {
    for kind in off posix; do
        "$limen" umount --lazy "$work/$kind" >/dev/null 2>&1 || true
    done
    rm -rf "$work"
}
trap clean EXIT

mount_volume() { "$limen" mount -d --log "$work/$1.log" "sqlite://$work/$1.db" "$work/$1" >/dev/null; }
umount_volume() { "$limen" umount "$work/$1" >/dev/null; }

for kind in off posix; do
    mkdir "$work/$kind"
    "$limen" format "sqlite://$work/$kind.db" "$kind" --acl "$kind" >/dev/null
    mount_volume "$kind"
    for d in $(seq -w 100); do
        mkdir -p "$work/$kind/tree/directory-$d"
        (cd "$work/$kind/tree/directory-$d" && seq -f 'file-%03g' 100 | xargs touch)
    done
    umount_volume "$kind"
done

list() { setpriv --reuid 65534 --regid 65534 --clear-groups ls -lR "$1" >/dev/null; }

# One line per listing: kind, number of the listing since the mount, units of 10 microseconds.
for _ in $(seq "$rounds"); do
    for kind in off posix; do
        mount_volume "$kind"
        for run in $(seq "$runs"); do
            begin=$(date +%s%N)
            list "$work/$kind/tree"
            end=$(date +%s%N)
            echo "$kind $run $(((end - begin) / 10000))"
        done
        umount_volume "$kind"
    done
done >"$work/times"

median() { awk -v kind="$1" -v run="$2" '$1 == kind && $2 == run { print $3 }' "$work/times" | sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] / 100 }'; }

echo "ls -lR, 10,000 files in 100 directories, by another user; medians of $rounds mounts in ms"
echo
echo '| listing since the mount | --acl off | ACLs on | ratio |'
echo '|---|---|---|---|'
for run in $(seq "$runs"); do
    off=$(median off "$run") posix=$(median posix "$run")
    echo "| $run | $off | $posix | $(awk -v a="$posix" -v b="$off" 'BEGIN { printf "%.2f", a / b }') |"
done
