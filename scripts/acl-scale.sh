#!/bin/bash
# Measures the cost of ACLs on Redis in a volume with many files, 100 in each directory. A third of the files
# has no ACL. A third is in directories whose default ACL is equivalent to a mode. A third is in directories
# with access and default ACLs of 511 entries, the most that the kernel sends, and inherits such an ACL.
# Prints the rate and the cost of creating the files, and then the output of `limen bench acl` on that volume.
# Requires root, and two CPUs that do nothing else.
#
#   scripts/acl-scale.sh [LIMEN [DIRECTORIES [ROUNDS]]]
#
# Each third consists of two trees. A tree has a little more than DIRECTORIES * DIRECTORIES directories of 100
# files (default 41: a million files in all six trees). The trees are created in the order off, on, full,
# full, on, off, because creation becomes slower while the volume grows.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
directories=${2:-41}
rounds=${3:-7}
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because it mounts"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/mnt"
trap '"$limen" umount --force "$work/mnt" >/dev/null 2>&1 || true; servers_clean' EXIT

server_start redis
"$limen" format "$url" v --bucket "$work/objects" >/dev/null
"$limen" mount -d -o transport=dev --log "$work/mount.log" "$url" "$work/mnt" >/dev/null
mkdir "$work"/mnt/{off,on,full}
printf 'user::rwx\ngroup::r-x\nother::r-x\n' >"$work/on"
{
    cat "$work/on"
    echo 'mask::rwx'
    seq -f 'user:%g:r-x' 100001 100338
    seq -f 'group:%g:r-x' 200001 200169
} >"$work/full"
for acl in on full; do setfacl --default --modify-file="$work/$acl" "$work/mnt/$acl"; done

echo '| ACLs | files | creates/s | CPU of a create, us | round trips of a create |'
echo '|---|---|---|---|---|'
turn=0
for acl in off on full full on off; do
    turn=$((turn + 1))
    "$limen" mdtest "$url" "/$acl/$turn" --depth 2 --dirs "$directories" --files 100 --threads 16 --keep --json \
        >"$work/json" 2>>"$work/log"
    python3 - "$acl" "$work/json" <<'PY'
import json, sys
create = next(phase for phase in json.load(open(sys.argv[2]))["phases"] if phase["name"] == "create")
print(f'| {sys.argv[1]} | {create["count"]:,} | {create["ops_per_s"]:,.0f} | {create["cpu_us"]:.1f} | {create["engine_round_trips"]:.3f} |')
PY
done
for acl in off on full; do
    file=$(find "$work/mnt/$acl" -type f -print -quit)
    say "$acl: the ACL of a file has $(getfacl --absolute-names --omit-header --numeric "$file" | grep -c .) entries"
done
"$limen" bench acl "$work/mnt" --rounds "$rounds"
