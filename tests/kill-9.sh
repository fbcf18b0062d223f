#!/bin/bash
# Kills the process that serves a mount under load, mounts again, and checks everything that fsync had
# acknowledged: content, ACL and name.
#
#   LIMEN=PROGRAM LIMEN_META=META-URL tests/kill-9.sh MOUNTPOINT
#
# The volume must be mounted at the beginning, and is mounted at the end. Each round counts as one test.
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

# The content of a file follows from its name: 200 bytes, which are stored in the metadata, or 300 kB, which
# are an object.
content() { # NAME
    local lines=2
    [ $((${1##*-} % 4)) -ne 0 ] || lines=3000
    yes "$(printf '%-99s' "$1")" | head -n "$lines" || true
}

# Creates, writes, sets an ACL, renames, syncs, and only then records the name; ends at the first error.
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

# Prints differences from the acknowledged files.
verify() { # ROUND
    local file name
    while read -r file; do
        name=$(basename "$file")
        content "$name" | cmp - "$file" 2>&1 || true
        getfacl -cn --absolute-names "$file" 2>&1 | grep -qx "user:$((${name##*-} + 1000)):rw-" || echo "$file: its ACL is lost"
    done < <(cat "$notes/kept-$1"-*)
    # Files that were not acknowledged may exist or not, but must be readable and removable.
    find "$mnt/kill-$1" -type f -exec sha256sum {} + >"$notes/sums" || true
    rm -r "$mnt/kill-$1" 2>&1 || true
}

"$LIMEN" umount "$mnt"
passed=0 failed=0
for round in $(seq "$rounds"); do
    "$LIMEN" mount "$LIMEN_META" "$mnt" >"$notes/server" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        mountpoint -q "$mnt" && break
        sleep 0.1
    done
    mountpoint -q "$mnt" || die "limen mount does not serve: $(cat "$notes/server")"

    pids=()
    for worker in $(seq "$workers"); do
        work "$round" "$worker" 2>/dev/null &
        pids+=($!)
    done
    # On a busy machine the first file takes time, and a round without a file tests nothing.
    for _ in $(seq 600); do
        [ "$(acknowledged "$round")" -eq 0 ] || break
        sleep 0.1
    done
    sleep "1.$((RANDOM % 10))"
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
    wait "${pids[@]}" || true

    # Check the state that the killed process left, before anything is cleaned up: records must agree, and no
    # byte may be missing.
    damage=$("$LIMEN" fsck --data "$LIMEN_META" 2>&1) && damage=
    # The next mount cleans up the dead mount point; in every second round umount does.
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
