# A temporary volume for other scripts; sourced after lib.sh, never executed.
# shellcheck shell=bash
#
# Sets: work (a temporary directory that every user may enter), meta (the volume's URL), mnt (the mount
# point).
# Expects: limen (the program).

# Formats a volume. `sync_metadata` is the same as `redis` here: the caller mounts it with `-o sync_metadata`.
# shellcheck disable=SC2154  # limen is set by the script that sources this
volume_create() { # NAME [sqlite|redis|sync_metadata|nfsv4]
    work=$(mktemp -d "${TMPDIR:-/tmp}/limen-$1.XXXXXX")
    # Other users need access to the mount point.
    chmod 755 "$work"
    mnt="$work/mnt"
    mkdir "$mnt" "$work/objects"
    local acl=()
    case ${2:-sqlite} in
    nfsv4) meta="sqlite://$work/meta.db" acl=(--acl nfsv4) ;;
    sqlite) meta="sqlite://$work/meta.db" ;;
    redis | sync_metadata) redis_start ;;
    esac
    "$limen" format "$meta" "$1" --storage file --bucket "$work/objects" "${acl[@]}"
}

# A private Redis server for this volume, on a Unix socket; acknowledged data is durable.
redis_start() {
    meta="redis+unix://$work/redis.sock"
    mkdir "$work/redis"
    redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$work/redis" --pidfile "$work/redis.pid" \
        --save '' --appendonly yes --appendfsync always --daemonize yes --logfile log >/dev/null || return
    for _ in $(seq 600); do
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

# The IDs of the limen processes that serve this volume, and of no others.
volume_processes() {
    local process
    for process in /proc/[0-9]*; do
        [ "$process/exe" -ef "$limen" ] || continue
        if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qF "$work/"; then
            echo "${process#/proc/}"
        fi
    done
}

# For traps: removes the volume in whatever state it is, without output.
volume_remove() {
    [ -n "${work:-}" ] && [ -d "$work" ] || return 0
    cd /
    # A daemon that hangs must not block the cleanup.
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
    # Never delete through a mount that could not be unmounted.
    grep -qF " $work/" /proc/self/mountinfo || rm -rf "$work"
}
