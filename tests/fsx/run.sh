#!/bin/bash
# fsx, the file system exerciser (the Rust one, from crates.io): random reads, writes, truncations, mappings,
# hole punches and copies within one file, checked byte by byte.
#
#   [FSX_SEEDS=3] [FSX_OPERATIONS=10000] [FSX_FIRST_SEED=1] tests/fsx/run.sh DIRECTORY
#
# Each seed with each configuration counts as one test: `plain` has the operations that every file system
# supports; `ranges` has all that Linux supports, with a fifth of the operations on a file forty times as
# long.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: run.sh DIRECTORY"; fi
here="$top/tests/fsx"
directory=$(cd "$1" && pwd)
seeds=${FSX_SEEDS:-3} operations=${FSX_OPERATIONS:-10000} first=${FSX_FIRST_SEED:-1}

program=$("$top/tests/tool.sh" fsx)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
for seed in $(seq "$first" $((first + seeds - 1))); do
    for kind in plain ranges; do
        started=$SECONDS count=$operations
        [ "$kind" = plain ] || count=$((operations / 5))
        if "$program" -q -f "$here/$kind.toml" -N "$count" -S "$seed" -P "$scratch" "$directory/fsx-$kind-$seed" \
            >"$scratch/said" 2>&1; then
            say "seed $seed, $kind: $count operations ok, $((SECONDS - started)) s"
            passed=$((passed + 1))
        else
            say "seed $seed, $kind: FAILED"
            tail -n 40 "$scratch/said"
            failed=$((failed + 1))
        fi
        rm -f "$directory/fsx-$kind-$seed"
    done
done
print_counts "$passed" "$failed" 0
[ "$failed" -eq 0 ]
