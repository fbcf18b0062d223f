#!/bin/bash
# Measures dump and load of a volume with a million files of 100 bytes: dumps the volume from Redis, loads the
# dump into each database, reads everything back, and dumps the volume again. Compares the dumps record by
# record. Prints a table for docs/benchmarks.md. Requires root, and two CPUs that do nothing else.
#
#   scripts/dump.sh [LIMEN [DIRECTORIES [ENGINE ...]]]
#
# The volume has DIRECTORIES squared directories of 100 files (default 100). ENGINE is sqlite, redis,
# postgres, mariadb or etcd (default: all).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
directories=${2:-100}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite redis postgres mariadb etcd)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

# The records of a dump in a fixed order, without the line that names the moment and the database.
records() { # DUMP
    "$limen" load "sqlite://$work/compare.db" "$1" >/dev/null 2>&1
    "$limen" dump --json "sqlite://$work/compare.db" 2>/dev/null | tail -n +2 | head -n -1 | sort | sha256sum
    rm -f "$work"/compare.db*
}

# The embedded engine creates the files fastest.
"$limen" format "sqlite://$work/first.db" v --bucket "$work/objects" >/dev/null
"$limen" mdtest "sqlite://$work/first.db" /t --depth 2 --dirs "$directories" --files 100 --threads 2 --write 100 --keep \
    >>"$work/log" 2>&1
"$limen" dump "sqlite://$work/first.db" "$work/first" >>"$work/log" 2>&1
server_start redis
"$limen" load "$url" "$work/first" >>"$work/log" 2>&1
echo "redis: dump $(cost "$limen" dump "$url" "$work/dump") s (MiB), $(($(stat -c %s "$work/dump") / 1000000)) MB"
server_stop
rm -rf "$work/redis" "$work"/first*
expected=$(records "$work/dump")
echo '| database | load, s (MiB) | verify | dump | differences |'
echo '|---|---|---|---|---|'
for engine in "${engines[@]}"; do
    if [ "$engine" = sqlite ]; then url=sqlite://$work/v.db; else server_start "$engine"; fi
    load=$(cost "$limen" load "$url" "$work/dump")
    verify=$(cost "$limen" load --verify "$url" "$work/dump")
    dump=$(cost "$limen" dump "$url" "$work/again")
    same=none
    [ "$(records "$work/again")" = "$expected" ] || same='SOME'
    echo "| $engine | $load | $verify | $dump | $same |"
    server_stop
    rm -rf "${work:?}/$engine" "$work/again" "$work"/v.db*
done
