#!/bin/bash
# Measures how cost grows with a volume: creates 10^4 to 10^7 files, 100 a directory, and then lists, checks,
# audits and dumps them. Prints a table for docs/benchmarks.md. Requires root, some 30 GB of disk for 10^7
# files, and two CPUs that do nothing else.
#
#   scripts/scale.sh [LIMEN [LARGEST [ENGINE ...]]]
#
# LARGEST is the last power of ten (default 7); ENGINE is sqlite, redis, postgres, mariadb or etcd (default:
# sqlite and postgres).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
largest=${2:-7}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite postgres)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/mnt"
trap '"$limen" umount --force "$work/mnt" >/dev/null 2>&1 || true; servers_clean' EXIT

# The resident memory of the mount in MiB.
resident() {
    local pid
    pid=$("$limen" status --json "$work/mnt" | python3 -c 'import json, sys; print(json.load(sys.stdin)["sessions"][0]["pid"])')
    awk '/VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$pid/status"
}

echo '| engine, files | creates/s | ls -lR cold, warm, s | mount MiB: idle, after ls | fsck, s (MiB) | audit | summary | dump | dump, MB | database, MB |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for engine in "${engines[@]}"; do
    for power in $(seq 4 "$largest"); do
        if [ "$engine" = sqlite ]; then
            url=sqlite://$work/v.db
            place=$work/v.db
        else
            server_start "$engine"
            place=$work/$engine
        fi
        "$limen" format "$url" v --bucket "$work/objects" >/dev/null
        # The tree has 10, 31, 100 or 316 directories, each with as many subdirectories. Each directory, the
        # top included, has 100 files.
        "$limen" mdtest "$url" /t --depth 2 --dirs $((power == 4 ? 10 : power == 5 ? 31 : power == 6 ? 100 : 316)) \
            --files 100 --threads 16 --keep --json >"$work/json" 2>>"$work/log"
        creates=$(python3 -c '
import json, sys
print("%.0f" % next(phase["ops_per_s"] for phase in json.load(open(sys.argv[1]))["phases"] if phase["name"] == "create"))' "$work/json")
        "$limen" mount -d -o transport=dev --log "$work/mount.log" "$url" "$work/mnt" >/dev/null
        idle=$(resident)
        cold=$(cost ls -lR "$work/mnt/t")
        warm=$(cost ls -lR "$work/mnt/t")
        after=$(resident)
        "$limen" umount "$work/mnt" >/dev/null
        : >"$work/log"
        fsck=$(cost "$limen" fsck "$url")
        audit=$(cost "$limen" access audit --user nobody "$url")
        summary=$(cost "$limen" summary --depth 1 "$url:/")
        dump=$(cost "$limen" dump "$url" "$work/dump")
        echo "| $engine, 10^$power | $creates | ${cold% *}, ${warm% *} | $idle, $after | $fsck | $audit | $summary | $dump | $(($(stat -c %s "$work/dump") / 1000000)) | $(du -s --block-size=1000000 "$place"* | awk '{ n += $1 } END { print n }') |"
        server_stop
        rm -rf "$work/objects" "$work/dump" "$place"*
    done
done
