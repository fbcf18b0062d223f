#!/bin/bash
# SQLite in its three journal modes: four processes write to one database concurrently, and it stays
# consistent.
#
#   tests/programs/sqlite.sh DIRECTORY SCRATCH
set -euo pipefail
here=$(dirname "$0")
command -v python3 >/dev/null || { echo "python3" && exit 77; }
python3 -c 'import sqlite3' 2>/dev/null || { echo "the module sqlite3 of python3" && exit 77; }
rounds=30
[ -z "${LONG:-}" ] || rounds=1000
for mode in DELETE TRUNCATE WAL; do
    python3 "$here/sqlite.py" "$1/$mode.db" "$mode" "$rounds"
done
