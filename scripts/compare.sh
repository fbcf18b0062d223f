#!/bin/bash
# Compares two versions of limen in turns: `limen mdtest` on each engine, and `limen bench` through mounts.
# Prints the ratio NEW / OLD of the medians, and each median. Requires root, and two CPUs that do nothing
# else.
#
#   scripts/compare.sh OLD NEW [ROUNDS [ENGINE ...]]
#
# ENGINE is sqlite, redis, postgres, mariadb or etcd, or one of them with `-mount`; default: the five,
# sqlite-mount and redis-mount. THREADS sets the threads of mdtest (default 8), FILES the files of each of its
# 43 directories (default 200). With few files, single rounds differ by 20 %.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -ge 2 ] || die "usage: compare.sh OLD NEW [ROUNDS [ENGINE ...]]"
old=$(readlink -f "$1") new=$(readlink -f "$2")
rounds=${3:-11}
engines=("${@:4}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite redis postgres mariadb etcd sqlite-mount redis-mount)
threads=${THREADS:-8}
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

# The URL of a version's own volume, because the versions may store records differently.
url_of() { # ENGINE WHICH
    case $1 in
    sqlite) echo "sqlite://$work/$2.db" ;;
    redis) echo "redis://127.0.0.1:$port/$([ "$2" = old ] && echo 0 || echo 1)" ;;
    postgres) echo "postgres://limen@127.0.0.1:$port/$2?sslmode=disable" ;;
    mariadb) echo "mysql://root@127.0.0.1:$port/$2" ;;
    etcd) echo "etcd://127.0.0.1:$port/?table_prefix=$2_" ;;
    esac
}

# One line per phase: the version, the phase, operations per second, CPU microseconds and round trips per
# operation.
measure() { # ENGINE WHICH LIMEN
    if [[ $1 == *-mount ]]; then
        "$3" mount -d --log "$work/$2.log" "$(url_of "${1%-mount}" "$2")" "$work/mnt" >/dev/null
        "$3" bench "$work/mnt" --threads 4 --files 4000 --rounds 1 --json >"$work/json" 2>/dev/null
        "$3" umount "$work/mnt" >/dev/null
    else
        "$3" mdtest "$(url_of "$1" "$2")" /mdtest --depth 2 --dirs 6 --files "${FILES:-200}" --threads "$threads" --json >"$work/json" 2>/dev/null
    fi
    python3 - "$2" "$work/json" <<'PY'
import json, sys
result = json.load(open(sys.argv[2]))
for phase in result.get("phases", []):
    print(sys.argv[1], phase["name"].replace(" ", "_"), phase["ops_per_s"], phase["cpu_us"], phase["engine_round_trips"])
for phase in result.get("operations", []):
    mount = phase["mount"]
    print(sys.argv[1], phase["name"].replace(" ", "_"), phase["ops_per_s"]["median"], mount["cpu_us"], mount["engine_round_trips"])
PY
}

for engine in "${engines[@]}"; do
    kind=${engine%-mount}
    rm -rf "${work:?}/$kind" "$work"/*.db* "$work/objects"
    mkdir -p "$work/mnt"
    [ "$kind" = sqlite ] || server_start "$kind"
    case $kind in
    postgres) for which in old new; do "${psql[@]}" -c "CREATE DATABASE $which"; done ;;
    mariadb) for which in old new; do "${mariadb[@]}" -e "CREATE DATABASE $which"; done ;;
    esac
    for which in old new; do
        "${!which}" format "$(url_of "$kind" "$which")" "$which" --bucket "$work/objects-$which" >/dev/null
    done
    : >"$work/results"
    for round in $(seq "$rounds"); do
        order=(old new)
        [ $((round % 2)) = 0 ] || order=(new old)
        for which in "${order[@]}"; do measure "$engine" "$which" "${!which}" >>"$work/results"; done
    done
    server_stop
    rm -rf "$work"/objects-*
    echo "== $engine, $rounds rounds: phase, rate new / old (medians), CPU new / old, round trips old and new"
    python3 - "$work/results" <<'PY'
import statistics, sys
rows = {}
for line in open(sys.argv[1]):
    which, phase, *values = line.split()
    rows.setdefault(phase, {}).setdefault(which, []).append([float(value) for value in values])
def median(values, index): return statistics.median(value[index] for value in values)
for phase, by in rows.items():
    old, new = by["old"], by["new"]
    rates, cpus = [[median(w, i) for w in (old, new)] for i in (0, 1)]
    paired = sorted(n[0] / o[0] for o, n in zip(old, new))
    cpu = f"{cpus[1] / cpus[0]:.3f}" if cpus[0] else "-"
    print(f"{phase:12} {rates[1] / rates[0]:.3f} ({rates[0]:.0f}, {rates[1]:.0f}; paired {statistics.median(paired):.3f}, "
          f"{paired[len(paired) // 4]:.2f} to {paired[-1 - len(paired) // 4]:.2f})  {cpu}  {median(old, 2):.3f} {median(new, 2):.3f}")
PY
done
