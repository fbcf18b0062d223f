# A throwaway volume for the scripts that need one: sourced after lib.sh, never run.
# shellcheck shell=bash
#
# Sets: work (a directory of its own, which every user may enter), meta (its URL), mnt (the mount point).
# Expects: limen (the program).

# shellcheck disable=SC2154  # limen is set by the script that sources this
volume_create() { # NAME [sqlite|redis|nfsv4]
    work=$(mktemp -d "${TMPDIR:-/tmp}/limen-$1.XXXXXX")
    # Other users will be asked to reach the mount point.
    chmod 755 "$work"
    mnt="$work/mnt"
    mkdir "$mnt" "$work/objects"
    local acl=()
    case ${2:-sqlite} in
    nfsv4) meta="sqlite://$work/meta.db" acl=(--acl nfsv4) ;;
    sqlite) meta="sqlite://$work/meta.db" ;;
    redis) redis_start ;;
    esac
    "$limen" format "$meta" "$1" --storage file --bucket "$work/objects" "${acl[@]}"
}

# A server of this volume's own, which keeps what it acknowledges; nobody else can reach it.
redis_start() {
    meta="redis+unix://$work/redis.sock"
    mkdir "$work/redis"
    redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work/redis" --pidfile "$work/redis.pid" \
        --save '' --appendonly yes --appendfsync always --daemonize yes --logfile log >/dev/null || return
    for _ in $(seq 100); do
        [ "$(redis-cli -s "$work/redis.sock" ping 2>/dev/null)" != PONG ] || return 0
        sleep 0.1
    done
    say "redis-server does not answer"
    return 1
}

# Returns once the mount serves requests.
volume_mount() { # [OPTION]...
    "$limen" mount -d "$@" "$meta" "$mnt" || return
    if ! mountpoint -q "$mnt"; then
        say "limen mount returned, but $mnt is not a mount point"
        return 1
    fi
}

volume_umount() { "$limen" umount "$mnt"; }

# Process ids of the limen processes that serve this volume, and of no other.
volume_processes() {
    local process
    for process in /proc/[0-9]*; do
        [ "$process/exe" -ef "$limen" ] || continue
        if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qF "$work/"; then
            echo "${process#/proc/}"
        fi
    done
}

# For traps: takes the volume away in whatever state it is, without a word.
volume_remove() {
    [ -n "${work:-}" ] && [ -d "$work" ] || return 0
    cd /
    # A hung daemon must not hang the cleaning up.
    if mountpoint -q "$mnt" 2>/dev/null || grep -qF " $mnt " /proc/self/mountinfo; then
        timeout 20 "$limen" umount "$mnt" >/dev/null 2>&1 || umount --lazy "$mnt" 2>/dev/null || true
    fi
    local process
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(volume_processes)" ] || break
        sleep 0.2
    done
    for process in $(volume_processes); do kill -KILL "$process" 2>/dev/null || true; done
    while grep -qF " $mnt " /proc/self/mountinfo; do umount --lazy "$mnt" 2>/dev/null || break; done
    [ ! -f "$work/redis.pid" ] || kill -KILL "$(cat "$work/redis.pid")" 2>/dev/null || true
    # Never walk into a mount that would not go away.
    grep -qF " $work/" /proc/self/mountinfo || rm -rf "$work"
}
