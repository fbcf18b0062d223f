#!/bin/bash
# `make test-long`: what takes too long for `make test`, on a mounted volume, with an optimised limen. As root.
#
#   [LIMEN=target/release/limen] scripts/test-long.sh [SUITE]...
#
# A million steps of the differential machine, 20 seeds of 100,000 operations of fsx, and the programs with --long.
# Ends with one `counts:` line; how long each took is in the lines above it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
cd "$top"

# What the long versions need beside what `make test` does; a program that is missing is skipped, with a message.
for package in fio postgresql; do
    if [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
        say "installing $package from Debian"
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "$package"; } \
            >/dev/null 2>&1 || say "$package could not be installed"
    fi
done

if [ -z "${LIMEN:-}" ]; then
    cargo build --release --quiet --package cli
    LIMEN="${CARGO_TARGET_DIR:-$top/target}/release/limen"
fi
export LIMEN LONG=yes SUITE_SECONDS=14400
export DIFFTEST_STEPS="${DIFFTEST_STEPS:-1000000}" FSX_SEEDS="${FSX_SEEDS:-20}" FSX_OPERATIONS="${FSX_OPERATIONS:-100000}"
[ $# -gt 0 ] || set -- difftest fsx programs
exec "$top/scripts/test-mount.sh" "$@"
