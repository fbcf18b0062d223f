#!/bin/bash
# PostgreSQL on the mount: pgbench with an immediate stop in the middle; after recovery, no transaction is
# lost or duplicated.
#
#   tests/programs/postgres.sh DIRECTORY SCRATCH
set -euo pipefail
directory=$1 scratch=$2
bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
if [ -z "$bin" ] || [ ! -x "$bin/initdb" ]; then echo "PostgreSQL" && exit 77; fi
id postgres >/dev/null 2>&1 || { echo "the user postgres" && exit 77; }
seconds=4 rounds=1 scale=2
[ -z "${LONG:-}" ] || seconds=20 rounds=5 scale=10

chown postgres "$directory" "$scratch"
cd "$scratch"
data="$directory/data"
as() { setpriv --reuid postgres --regid "$(id -g postgres)" --init-groups env HOME="$scratch" LC_ALL=C "$@"; }
query() { as psql --host "$scratch" --dbname postgres --no-psqlrc --quiet --tuples-only --no-align --set ON_ERROR_STOP=1 "$@"; }
start() { as "$bin/pg_ctl" --pgdata "$data" --wait --timeout 120 --log "$scratch/log" --options "-k $scratch -c listen_addresses=" start; }
trap 'as "$bin/pg_ctl" --pgdata "$data" --mode immediate stop >/dev/null 2>&1 || true; tail -n 30 "$scratch/log" 2>/dev/null' EXIT

as "$bin/initdb" --pgdata "$data" --data-checksums --auth trust --username postgres >/dev/null
start
as pgbench --host "$scratch" --initialize --quiet --scale $scale postgres
for round in $(seq $rounds); do
    # Without --no-vacuum, pgbench would empty the history of the earlier rounds.
    as pgbench --no-vacuum --host "$scratch" --client 4 --jobs 2 --time $((seconds * 2)) postgres >"$scratch/bench-$round" 2>&1 &
    bench=$!
    sleep $seconds
    as "$bin/pg_ctl" --pgdata "$data" --mode immediate stop
    wait $bench || true
    start
    # Every transaction adds the same amount in three tables, and records it in a fourth table.
    sums=$(query --command "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches),
        (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)")
    IFS='|' read -r accounts branches tellers history <<<"$sums"
    echo "round $round: $(query --command 'SELECT count(*) FROM pgbench_history') transactions, sums $sums"
    [ "$accounts" = "$branches" ] && [ "$accounts" = "$tellers" ] && [ "$accounts" = "$history" ]
done
as pgbench --host "$scratch" --client 4 --jobs 2 --time $seconds postgres
query --command "CREATE EXTENSION amcheck" 2>/dev/null ||
    echo "amcheck is not installed: only pg_checksums checks the pages"
as "$bin/pg_amcheck" --host "$scratch" --heapallindexed --username postgres postgres 2>&1 || [ ! -x "$bin/pg_amcheck" ]
as "$bin/pg_ctl" --pgdata "$data" --mode fast --wait stop
as "$bin/pg_checksums" --pgdata "$data" --check
