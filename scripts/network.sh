#!/bin/bash
# Measures `limen mdtest` on database servers with a delay added to each round trip (the example `delay` of
# the crate servers, which this script builds), then with 1 to 20 connections. Prints tables for
# docs/benchmarks.md. Requires root.
#
#   scripts/network.sh [LIMEN [ROUNDS [ENGINE ...]]]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-3}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(redis postgres mariadb etcd)  # and tikv, if limen is built with --features tikv
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user"
(cd "$top" && cargo build --quiet --package servers --example delay)
delay=${CARGO_TARGET_DIR:-$top/target}/debug/examples/delay
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

# Prints the medians of create, readdirplus, rename and unlink: operations per second, or round trips per
# operation.
medians() { # FIELD FILE...
    python3 - "$@" <<'PY'
import json, statistics, sys
field, *files = sys.argv[1:]
runs = [{phase["name"]: phase for phase in json.load(open(file))["phases"]} for file in files]
values = [statistics.median(run[name][field] for run in runs) for name in ("create", "readdirplus", "rename", "unlink")]
print(" | ".join(f"{value:,.0f}" if field == "ops_per_s" else f"{value:.2f}" for value in values))
PY
}

measure() { # URL THREADS FILES [OPTIONS]
    local files=()
    # shellcheck disable=SC2086  # several options, or none
    for round in $(seq "$rounds"); do
        "$limen" mdtest "$1" /mdtest --depth 1 --dirs 9 --files "$3" --threads "$2" ${4:-} --json >"$work/$round.json" 2>/dev/null
        files+=("$work/$round.json")
    done
    printf '%s | %s' "$(medians ops_per_s "${files[@]}")" "$(medians engine_round_trips "${files[@]}")"
}

columns='create | readdirplus | rename | unlink'
for engine in "${engines[@]}"; do
    server_start "$engine"
    "$limen" format "$url" mdtest --bucket "$work/$engine/objects" >/dev/null
    echo
    echo "$engine: operations a second, then round trips per operation"
    echo
    echo "| delay, threads | $columns | $columns |"
    echo '|---|---|---|---|---|---|---|---|---|'
    for micros in 0 200 1000 5000; do
        # A port below those that the kernel gives to clients.
        relay=$((port - 10000))
        "$delay" "$relay" "$port" "$micros" &
        relay_process=$!
        trap 'kill "$relay_process" 2>/dev/null || true; servers_clean' EXIT
        sleep 0.2
        for threads in 1 50; do
            # Fewer files with one thread, so that each run takes at most some seconds.
            files=$((threads == 1 ? 30 : 200))
            echo "| $(awk -v us="$micros" 'BEGIN { print us / 1000 }') ms, $threads | $(measure "${url/:$port/:$relay}" "$threads" "$files") |"
        done
        kill "$relay_process"
        wait "$relay_process" 2>/dev/null || true
    done
    if [ "$engine" != tikv ]; then
        echo
        echo "$engine, 50 threads, files of all directories in turns: operations a second, then round trips per operation"
        echo
        echo "| max_open_conns | $columns | $columns |"
        echo '|---|---|---|---|---|---|---|---|---|'
        for connections in 1 2 3 5 10 20; do
            separator=$([[ $url == *\?* ]] && echo '&' || echo '?')
            echo "| $connections | $(measure "$url${separator}max_open_conns=$connections" 50 200 --spread) |"
        done
    fi
    server_stop
done
