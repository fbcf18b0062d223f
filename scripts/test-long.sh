#!/bin/bash
# `make test-long`: tests that take too long for `make test`, on a mounted volume, with an optimised limen.
# Requires root.
#
#   [LIMEN=target/release/limen] scripts/test-long.sh [SUITE]...
#
# 200 kills of the server, each followed by fsck --data; pjdfstest with steps of 10 ms and of 150 ms; a
# million steps of the differential tester, half against ext4 and half against tmpfs; 20 seeds of 100,000
# operations of fsx; the programs with --long, among them PostgreSQL and fio. `servers`: two mounts on each
# database server, which is killed 20 times under load; tools next to writers on each server; a dump of 30,000
# files that goes through the engines; the tests of the engine on TiKV; and twenty minutes of hundreds of
# writers on PostgreSQL and on MariaDB. Seeds and times are printed above the last `counts:` line, and are in
# target/test-long.log. DIFFTEST_SEED and FSX_FIRST_SEED repeat a run.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
cd "$top"

if [ -z "${LIMEN:-}" ]; then
    cargo build --release --quiet --package cli
    LIMEN="${CARGO_TARGET_DIR:-$top/target}/release/limen"
fi
export LIMEN LONG=yes SUITE_SECONDS=14400
export KILL9_ROUNDS="${KILL9_ROUNDS:-200}"
export DIFFTEST_STEPS="${DIFFTEST_STEPS:-1000000}" FSX_SEEDS="${FSX_SEEDS:-20}" FSX_OPERATIONS="${FSX_OPERATIONS:-100000}"
[ $# -gt 0 ] || set -- kill-9 pjdfstest difftest fsx programs servers
mkdir -p "$top/target"
"$LIMEN" version

suites=()
servers=
for suite in "$@"; do
    case $suite in
        servers) servers=yes ;;
        *) suites+=("$suite") ;;
    esac
done
: >"$top/target/test-long.log"
if [ ${#suites[@]} -gt 0 ]; then
    "$top/scripts/test-mount.sh" "${suites[@]}" 2>&1 | tee -a "$top/target/test-long.log"
fi
if [ -n "$servers" ]; then
    for tests in "cli --features tikv --test network" "cli --features tikv --test live_tools" "cli --test dump" "engine-tikv --features client --test server" "engine-postgres --test writers" "engine-mysql --test writers"; do
        # shellcheck disable=SC2086 # they are words
        LIMEN_LONG=1 cargo test --package $tests -- --nocapture --test-threads=1 2>&1 | tee -a "$top/target/test-long.log"
    done
fi
