#!/bin/bash
# Measures programs that make and remove many small files on a mount: tar, cp -a and rm -rf of a tree of C headers, on
# the embedded engine and on database servers, with and without `-o sync_metadata` by turns. Prints the medians in
# seconds, for docs/benchmarks.md. Requires root, and two CPUs that do nothing else.
#
#   scripts/untar.sh [LIMEN [ROUNDS [ENGINE ...]]]
#
# DELAY adds this many microseconds to each round trip to a server, TRANSPORT sets the transport of the mounts (default dev),
# and TREE names another directory than /usr/include.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-5}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite redis postgres mariadb etcd)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

tree=${TREE:-/usr/include}
delay=${CARGO_TARGET_DIR:-$top/target}/debug/examples/delay
[ -z "${DELAY:-}" ] || (cd "$top" && cargo build --quiet --package servers --example delay)
tar cf "$work/tree.tar" -C "$(dirname "$tree")" "$(basename "$tree")"
say "$tree: $(tar tf "$work/tree.tar" | wc -l) entries, $(du -sm "$work/tree.tar" | cut -f 1) MB"
say "engine, options: tar, cp -a, rm -rf of both (medians of $rounds, seconds)"
mkdir "$work/mnt"
# A server does not stop while the mount is connected to it.
relay=
trap '"$limen" umount --force "$work/mnt" >/dev/null 2>&1 || true; kill $relay 2>/dev/null || true; servers_clean' EXIT

# One round: the times of the three programs. The next one begins when everything is committed.
round() { # URL OPTION
    "$limen" mount -d -o "$2,transport=${TRANSPORT:-dev}" --log "$work/log" "$1" "$work/mnt" >/dev/null
    mkdir "$work/mnt/t"
    python3 - "$work" "$(basename "$tree")" <<'PY'
import os, subprocess, sys, time
work = sys.argv[1]
mnt = work + "/mnt/t"
times = []
for command in (["tar", "xf", work + "/tree.tar", "-C", mnt], ["cp", "-a", mnt + "/" + sys.argv[2], mnt + "/copy"],
                ["rm", "-rf", mnt + "/" + sys.argv[2], mnt + "/copy"]):
    began = time.monotonic()
    subprocess.run(command, check=True)
    times.append(time.monotonic() - began)
    fd = os.open(mnt, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
print(*times)
PY
    rmdir "$work/mnt/t"
    "$limen" umount "$work/mnt" >/dev/null
}

for engine in "${engines[@]}"; do
    options=(sync_metadata noatime)
    if [ "$engine" = sqlite ]; then
        url=sqlite://$work/v.db
        options=(noatime)
    else
        server_start "$engine"
    fi
    if [ -n "${DELAY:-}" ] && [ "$engine" != sqlite ]; then
        # Below the ports that the kernel gives to clients.
        "$delay" $((port - 10000)) "$port" "$DELAY" &
        relay=$!
        url=${url/:$port/:$((port - 10000))}
        sleep 0.2
    fi
    "$limen" format "$url" v --bucket "$work/objects-$engine" >/dev/null
    for option in "${options[@]}"; do : >"$work/$option"; done
    for _ in $(seq "$rounds"); do
        for option in "${options[@]}"; do round "$url" "$option" >>"$work/$option"; done
    done
    for option in "${options[@]}"; do
        say "$engine, -o $option: $(python3 -c '
import statistics, sys
print(", ".join("%.2f" % statistics.median(column) for column in zip(*(map(float, line.split()) for line in open(sys.argv[1])))))' "$work/$option")"
    done
    if [ -n "$relay" ]; then
        kill "$relay"
        wait "$relay" 2>/dev/null || true
        relay=
    fi
    server_stop
    rm -rf "$work/objects-$engine"
done
