#!/bin/bash
# Compares the two ways to read a tree with the attributes of its files, on Redis: `ls -l` of each directory
# (READDIRPLUS: names and attributes together), and `stat` of each file by its name, as programs do that know
# the names. The two ways take turns, each on a new mount, without and with a delay of 1 ms for each round
# trip. Prints a table for docs/benchmarks.md: time, round trips, and what Redis received and sent. Requires
# root, and two CPUs that do nothing else.
#
#   scripts/readdirplus.sh [LIMEN [ROUNDS]]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-5}
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
need_root
(cd "$top" && cargo build --quiet --package servers --example delay)
delay=${CARGO_TARGET_DIR:-$top/target}/debug/examples/delay
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/mnt"

server_start redis
# A port below those that the kernel gives to clients.
relay=$((port - 10000))
"$delay" "$relay" "$port" 1000 &
relay_process=$!
trap '"$limen" umount --lazy "$work/mnt" >/dev/null 2>&1 || true; kill "$relay_process" 2>/dev/null || true; servers_clean' EXIT
"$limen" format "$url" v --bucket "$work/objects" >/dev/null
"$limen" mdtest "$url" /t --depth 1 --dirs 99 --files 100 --threads 16 --keep >>"$work/log" 2>&1

# Prints the bytes that Redis has received and sent, and the round trips that the mount has made for reads.
counters() {
    redis-cli -p "$port" info stats | tr -d '\r' | awk -F: '/^total_net_(input|output)_bytes/ { printf "%s ", $2 }'
    curl -fs "http://127.0.0.1:$((port + 1))/metrics" | awk '/^limen_engine_request_duration_seconds_count.*(read|scan)/ { n += $2 } END { print n + 0 }'
}

measure() { # WAY PORT: one line: seconds, KB in, KB out, round trips
    "$limen" mount -d -o transport=dev --metrics "$((port + 1))" --log "$work/mount.log" "redis://127.0.0.1:$2/" "$work/mnt" >/dev/null
    local before after began ended
    before=$(counters)
    began=$(date +%s%N)
    case $1 in
    list) ls -lR "$work/mnt/t" >"$work/listed" ;;
    stat) xargs -a "$work/names" stat -c %s >"$work/listed" ;;
    esac
    ended=$(date +%s%N)
    after=$(counters)
    "$limen" umount "$work/mnt" >/dev/null
    echo "$before $after $(((ended - began) / 1000))" |
        awk '{ printf "%.3f %.0f %.0f %d\n", $7 / 1e6, ($4 - $1) / 1000, ($5 - $2) / 1000, $6 - $3 }'
}

"$limen" mount -d -o transport=dev --log "$work/mount.log" "$url" "$work/mnt" >/dev/null
find "$work/mnt/t" -type f >"$work/names"
"$limen" umount "$work/mnt" >/dev/null
say "$(wc -l <"$work/names") files in 100 directories; medians of $rounds mounts"
echo
echo '| delay, way | time, s | round trips | to Redis, KB | from Redis, KB |'
echo '|---|---|---|---|---|'
for where in "0 ms:$port" "1 ms:$relay"; do
    for _ in $(seq "$rounds"); do
        for way in list stat; do measure "$way" "${where#*:}" >>"$work/$way"; done
    done
    for way in list stat; do
        column() { awk -v n="$1" '{ print $n }' "$work/$way" | sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'; }
        echo "| ${where%%:*}, $way | $(column 1) | $(column 4) | $(column 2) | $(column 3) |"
        rm "$work/$way"
    done
done
