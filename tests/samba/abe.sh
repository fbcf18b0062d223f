#!/bin/bash
# Compares listings that hide unreadable entries, through smbclient, of the same tree: by a mount with --abe,
# and by Samba's own `hide unreadable` on another file system.
#
#   [ABE_DIRECTORIES=21000] [ABE_ROUNDS=5] tests/samba/abe.sh MOUNTPOINT DIRECTORY
#
# The tree has ABE_DIRECTORIES directories with one file each; an ACL that names a group lets users read 1,000
# of them. One user is in 4 groups and one in 400; each lists everything on both sides in turns. The lists of
# names must be the same: one test per user. The times are medians. Requires root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

if [ $# -ne 2 ] || [ ! -d "$1" ] || [ ! -d "$2" ]; then die "usage: abe.sh MOUNTPOINT DIRECTORY"; fi
need_root
# shellcheck source=tests/samba/server.sh
. "$(dirname "$0")/server.sh"
directories=${ABE_DIRECTORIES:-21000} rounds=${ABE_ROUNDS:-5} shown=1000
if [ "$directories" -lt "$shown" ]; then die "ABE_DIRECTORIES must be at least $shown"; fi
mount=$(mktemp -d "$(cd "$1" && pwd)/abe.XXXXXX")
store=$(mktemp -d "$(cd "$2" && pwd)/abe.XXXXXX")
trap 'rm -rf "$mount" "$store"; cleanup' EXIT

# The group with access is the last group of each user.
add_user limen-abe-few
add_user limen-abe-many
lets_in=62399
for group in $(seq 62000 $lets_in); do
    members=limen-abe-many
    if [ "$group" -gt $((lets_in - 3)) ]; then members+=,limen-abe-few; fi
    echo "limen-abe-$group:x:$group:$members" >>"$state/etc/group"
done

say "creating $directories directories on each side"
for top in "$mount" "$store"; do
    chmod 0755 "$top"
    cd "$top"
    seq -f 'd%06.0f' "$directories" | xargs mkdir -m 0700
    seq -f 'd%06.0f/file' "$directories" | xargs touch
    # Spread over the whole listing, like in real trees.
    seq -f 'd%06.0f' 1 $((directories / shown)) "$directories" | head -n $shown | xargs setfacl -m g:$lets_in:rx
    cd /
done
cat "$here/abe.conf" >"$state/shares"
start_server -e "s|@SHARE@|$mount|" -e "s|@TRAVERSE@|$mount|" -e "s|@MOUNT@|$mount|" -e "s|@STORE@|$store|" "$here/smb.conf" "$state/shares"

listed() { # SHARE USER: the names, of directories and files
    ask "$1" "$2" 'recurse ON; ls' | grep -oE '^ +(d[0-9]{6}|file) |^\\\\d[0-9]{6}' | tr -d ' ' | sort
}
passed=0 failed=0
for user in limen-abe-few limen-abe-many; do
    names=$(listed mount $user)
    count=$(grep -c '^d' <<<"$names" || true)
    if [ "$names" = "$(listed store $user)" ] && [ "$count" = $shown ]; then
        passed=$((passed + 1))
    else
        say "FAILED: $user sees $count directories of $shown, or other names than through Samba"
        failed=$((failed + 1))
    fi
done

for ((round = 0; round < rounds; round++)); do
    for user in limen-abe-few limen-abe-many; do
        for share in mount store; do
            started=$(date +%s%N)
            ask $share $user 'recurse ON; ls' >/dev/null
            echo $((($(date +%s%N) - started) / 1000)) >>"$state/$share-$user"
        done
    done
done
printf '%-18s %12s %12s\n' 'ms, medians' 'mount' 'Samba'
for user in limen-abe-few limen-abe-many; do
    median() { sort -n "$state/$1-$user" | awk '{ us[NR] = $1 } END { printf "%.0f", us[int((NR + 1) / 2)] / 1000 }'; }
    if [ "$rounds" -gt 0 ]; then printf '%-18s %12s %12s\n' "$user" "$(median mount)" "$(median store)"; fi
done
print_counts "$passed" "$failed" 0
[ "$failed" -eq 0 ]
