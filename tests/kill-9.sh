#!/bin/bash
# Kills the process that serves a mount in the middle of work, mounts again, and asks for everything
# that had been acknowledged by fsync: content, ACL and name.
#
#   LIMEN=PROGRAM LIMEN_META=META-URL tests/kill-9.sh MOUNTPOINT
#
# The volume is mounted when this begins and when it ends. One test is one round.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: kill-9.sh MOUNTPOINT"; fi
: "${LIMEN:?the limen program}" "${LIMEN_META:?the URL of the volume}"
mnt=$1
rounds=${KILL9_ROUNDS:-6}
workers=3
notes=$(mktemp -d)
server=
trap 'kill -KILL $server 2>/dev/null || true; rm -rf "$notes"' EXIT

# What a file must hold follows from its name: 200 bytes, which live in the metadata, or 300 kB, which are an object.
content() { # NAME
    local lines=2
    [ $((${1##*-} % 4)) -ne 0 ] || lines=3000
    yes "$(printf '%-99s' "$1")" | head -n "$lines" || true
}

# Creates, writes, sets an ACL, renames, syncs, and only then writes the name down; ends at the first error.
work() { # ROUND WORKER
    local directory="$mnt/kill-$1/$2" name serial=0
    mkdir -p "$directory" || return 0
    while :; do
        serial=$((serial + 1))
        name="$1-$2-$serial"
        content "$name" >"$directory/new" || return 0
        setfacl -m "u:$((serial + 1000)):rw" "$directory/new" || return 0
        mv "$directory/new" "$directory/$name" || return 0
        sync "$directory/$name" && sync "$directory" || return 0
        echo "$directory/$name" >>"$notes/kept-$1-$2"
    done
}

acknowledged() { # ROUND
    find "$notes" -name "kept-$1-*" -exec cat {} + | wc -l
}

# Prints what is not as it was acknowledged.
verify() { # ROUND
    local file name
    while read -r file; do
        name=$(basename "$file")
        content "$name" | cmp - "$file" 2>&1 || true
        getfacl -cn --absolute-names "$file" 2>&1 | grep -qx "user:$((${name##*-} + 1000)):rw-" || echo "$file: its ACL is gone"
    done < <(cat "$notes/kept-$1"-*)
    # What was not acknowledged may be there or not, but it must be whole enough to be read and removed.
    find "$mnt/kill-$1" -type f -exec sha256sum {} + >"$notes/sums" || true
    rm -r "$mnt/kill-$1" 2>&1 || true
}

"$LIMEN" umount "$mnt"
passed=0 failed=0
for round in $(seq "$rounds"); do
    "$LIMEN" mount "$LIMEN_META" "$mnt" >"$notes/server" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        mountpoint -q "$mnt" && break
        sleep 0.1
    done
    mountpoint -q "$mnt" || die "limen mount does not serve: $(cat "$notes/server")"

    pids=()
    for worker in $(seq "$workers"); do
        work "$round" "$worker" 2>/dev/null &
        pids+=($!)
    done
    # On a busy machine the first file takes its time, and a round without one would show nothing.
    for _ in $(seq 300); do
        [ "$(acknowledged "$round")" -eq 0 ] || break
        sleep 0.1
    done
    sleep "1.$((RANDOM % 10))"
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
    wait "${pids[@]}" || true

    # As the killed process left it, before anything is cleaned up: no record may disagree, no byte be missing.
    damage=$("$LIMEN" fsck --data "$LIMEN_META" 2>&1) && damage=
    # The dead mount point is cleaned by the next mount; every second time by umount.
    [ $((round % 2)) -ne 0 ] || "$LIMEN" umount "$mnt"
    "$LIMEN" mount -d "$LIMEN_META" "$mnt"
    kept=$(acknowledged "$round")
    wrong=$(verify "$round" 2>&1)
    if [ "$kept" -gt 0 ] && [ -z "$wrong$damage" ]; then
        printf 'round %-2s ok      %s files acknowledged, all there, fsck clean\n' "$round" "$kept"
        passed=$((passed + 1))
    else
        printf 'round %-2s FAILED  %s files acknowledged\n%s\n' "$round" "$kept" "$(head -n 20 <<<"$damage$wrong")"
        failed=$((failed + 1))
    fi
    [ "$round" -eq "$rounds" ] || "$LIMEN" umount "$mnt"
done
print_counts "$passed" "$failed" 0
[ "$failed" -eq 0 ]
