#!/bin/bash
# Measures the commands clone, summary, fsck, gc, compact and rmr on a volume with about a million files, while
# a program works on another mount of the volume. Prints a Markdown table. It has for each command the time in
# seconds and, in parentheses, the peak memory of the process in MiB. Requires root, and two CPUs that do
# nothing else.
#
#   scripts/maintenance.sh [LIMEN [DIRS [ENGINE ...]]]
#
# The tree has DIRS directories (default 100), each with DIRS subdirectories, and 100 files of 100 bytes in each
# directory. ENGINE is sqlite, redis, postgres, mariadb or etcd (default: sqlite and postgres). An SQLite volume
# has only one mount, so there the program works on the mount that is measured.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
dirs=${2:-100}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite postgres)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/mnt" "$work/other"
worker=
trap 'kill $worker 2>/dev/null || true; "$limen" umount --force "$work/mnt" "$work/other" >/dev/null 2>&1 || true; servers_clean' EXIT

# Starts the program: it creates, reads and removes files until it is killed, and writes the number of rounds
# that it has completed to a file.
work_on() { # DIR
    python3 - "$1" "$work/rounds" <<'PY' &
import os, sys
dir, rounds = sys.argv[1:]
os.mkdir(dir)
n = 0
while True:
    for i in range(20):
        with open(f"{dir}/{i}", "w") as file:
            file.write(str(n))
    for i in range(20):
        assert open(f"{dir}/{i}").read() == str(n)
        os.unlink(f"{dir}/{i}")
    n += 1
    with open(rounds, "w") as file:
        file.write(str(n))
PY
    worker=$!
}

# Prints the peak memory, in MiB, of the process of the volume's oldest session, which is that of the mount on
# $work/mnt.
greatest() { # MOUNTPOINT
    local pid
    pid=$("$limen" status --json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["sessions"][0]["pid"])')
    awk '/VmHWM/ { printf "%.0f", $2 / 1024 }' "/proc/$pid/status"
}

echo '| engine, files | clone | summary | fsck | gc | compact | rmr of the copy | mount, MiB | rounds of the program | fsck after |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for engine in "${engines[@]}"; do
    if [ "$engine" = sqlite ]; then url=sqlite://$work/v.db; else server_start "$engine"; fi
    "$limen" format "$url" v --bucket "$work/objects" >/dev/null
    "$limen" mdtest "$url" /t --depth 2 --dirs "$dirs" --files 100 --threads 16 --write 100 --keep >/dev/null 2>>"$work/log"
    "$limen" mount -d --log "$work/mount.log" "$url" "$work/mnt" >/dev/null
    other=$work/mnt
    if [ "$engine" != sqlite ]; then
        other=$work/other
        "$limen" mount -d --log "$work/other.log" "$url" "$other" >/dev/null
    fi
    work_on "$other/w"
    sleep 2
    clone=$(cost "$limen" clone "$work/mnt/t" "$work/mnt/copy")
    summary=$(cost "$limen" summary --depth 0 "$work/mnt")
    check=$(cost "$limen" fsck "$url")
    gc=$(cost "$limen" gc "$work/mnt")
    compact=$(cost "$limen" compact "$work/mnt/t")
    rmr=$(cost "$limen" rmr "$work/mnt/copy")
    kill -0 "$worker" || die "the program on the mount has failed"
    memory=$(greatest "$work/mnt")
    kill "$worker"
    wait "$worker" 2>/dev/null || true
    [ "$engine" = sqlite ] || "$limen" umount "$other" >/dev/null
    "$limen" umount "$work/mnt" >/dev/null
    : >"$work/log"
    after=$(cost "$limen" fsck "$url")
    echo "| $engine, $((100 * (1 + dirs + dirs * dirs))) | $clone | $summary | $check | $gc | $compact | $rmr | $memory | $(cat "$work/rounds") | $after |"
    server_stop
    rm -rf "$work/objects"
done
