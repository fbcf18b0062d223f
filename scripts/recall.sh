#!/bin/bash
# Measures how long another mount waits for a directory that a mount holds: the holder creates a directory
# with files, and the other mount looks at the newest file at once. Each look is on new mounts, because a
# mount from which directories were recalled holds none for a while. Then both mounts create and look at files
# in one directory, with and without `-o sync_metadata` in turns. At last, one mount creates files in an
# existing directory for twenty seconds, and the other one lists it ten times a second. Prints lines for
# docs/benchmarks.md. Requires root, and two CPUs that do nothing else.
#
#   scripts/recall.sh [LIMEN [ROUNDS [ENGINE ...]]]
#
# ENGINE is redis, postgres, mariadb or etcd (default: redis and postgres); ROUNDS is the number of looks
# (default 100).
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-100}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(redis postgres)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/a" "$work/b"
umount_both() {
    for mnt in a b; do "$limen" umount "$@" "$work/$mnt" >/dev/null 2>&1 || true; done
}
trap 'umount_both --force; servers_clean' EXIT
mount_both() { # OPTION
    for mnt in a b; do
        "$limen" mount -d -o "$1,transport=dev" --log "$work/log" "$url" "$work/$mnt" >/dev/null
    done
}

for engine in "${engines[@]}"; do
    server_start "$engine"
    "$limen" format "$url" v --bucket "$work/objects-$engine" >/dev/null
    for files in 1 20 500; do
        for round in $(seq "$rounds"); do
            mount_both noatime
            python3 - "$work" "$files-$round" "$files" <<'PY'
import os, sys, time
work, directory, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.mkdir(f"{work}/a/{directory}")
for file in range(files):
    with open(f"{work}/a/{directory}/{file}", "w") as out:
        out.write("text")
began = time.monotonic()
os.stat(f"{work}/b/{directory}/{files - 1}")
print(time.monotonic() - began)
PY
            umount_both
        done | sort -n | python3 -c '
import sys
engine, files = sys.argv[1:]
times = [1e3 * float(line) for line in sys.stdin]
median, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
print(f"{engine}, {files} new files, {len(times)} looks: median {median:.1f} ms, p99 {p99:.1f} ms, longest {times[-1]:.1f} ms")' \
            "$engine" "$files"
    done
    for turn in 1 2 3; do
        for option in sync_metadata noatime; do
            mount_both "$option"
            python3 - "$engine" "$work" "$option-$turn" >>"$work/both-$engine-$option" <<'PY'
import os, subprocess, sys, time
engine, work, name = sys.argv[1:]
os.mkdir(f"{work}/a/{name}")
# A process for each mount: it creates files, and looks at one of the other's.
program = """
import os, sys
own, other, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(count):
    with open(f"{own}-{n}", "w") as out:
        out.write("text")
    try:
        os.stat(f"{other}-{n}")
    except FileNotFoundError:
        pass
"""
began = time.monotonic()
running = [subprocess.Popen([sys.executable, "-c", program, f"{work}/{mnt}/{name}/{mnt}", f"{work}/{mnt}/{name}/{other}", "1000"])
           for mnt, other in (("a", "b"), ("b", "a"))]
assert [process.wait() for process in running] == [0, 0]
print(time.monotonic() - began)
PY
            umount_both
        done
    done
    for option in sync_metadata noatime; do
        echo "$engine, -o $option, both mounts in one directory: $(sort -n "$work/both-$engine-$option" | sed -n 2p) s for 2,000 files"
    done
    for turn in 1 2 3; do
        for option in sync_metadata noatime take_directories; do
            mount_both "$option"
            mkdir "$work/b/$option-$turn-polled"
            umount_both
            mount_both "$option"
            python3 - "$work" "$option-$turn-polled" >>"$work/polled-$engine-$option" <<'PY'
import os, subprocess, sys, time
work, name = sys.argv[1:]
program = """
import os, sys, time
n, until = 0, time.monotonic() + 20
while time.monotonic() < until:
    os.close(os.open(f"{sys.argv[1]}/{n // 100}-{n % 100}", os.O_CREAT | os.O_EXCL))
    n += 1
    if n % 5000 == 0:  # A directory with very many names is not taken.
        for old in os.scandir(sys.argv[1]):
            os.unlink(old)
print(n)
"""
creating = subprocess.Popen([sys.executable, "-c", program, f"{work}/a/{name}"], stdout=subprocess.PIPE)
times = []
while creating.poll() is None:
    began = time.monotonic()
    os.listdir(f"{work}/b/{name}")
    times.append(time.monotonic() - began)
    time.sleep(0.1)
times.sort()
print(int(creating.stdout.read()) / 20, 1e3 * times[len(times) // 2], 1e3 * times[-1])
PY
            umount_both
        done
    done
    for option in sync_metadata noatime take_directories; do
        sort -n "$work/polled-$engine-$option" | sed -n 2p | {
            read -r files median longest
            printf '%s, -o %s, one mount lists what the other creates: %.0f files/s, a listing %.1f ms at the median, %.0f ms at most\n' \
                "$engine" "$option" "$files" "$median" "$longest"
        }
    done
    server_stop
    rm -rf "$work/objects-$engine"
done
