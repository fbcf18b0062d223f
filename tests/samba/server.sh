# An smbd with a private network, users and state; sourced. It is stopped when the script ends.
# shellcheck shell=bash

# Port 445 of this machine may be in use, and smbcacls supports no other port. The mount namespace is private
# too, so only the script's processes see the users and groups that it adds.
if [ -z "${SAMBA_OWN_NETWORK:-}" ]; then exec env SAMBA_OWN_NETWORK=yes unshare --net --mount "$0" "$@"; fi
ip link set lo up
here="$top/tests/samba"
address=127.0.0.1
state=$(mktemp -d)
server=
cleanup() {
    if [ -n "$server" ]; then
        kill -TERM -- "-$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        # Its helper processes stay for a while, and keep this script's mount namespace alive.
        while pkill -KILL --ns $$ --nslist net 'smbd|samba|rpcd'; do sleep 0.1; done
    fi
    rm -rf "$state"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$state"/{private,lock,state,cache,pid,rpc,etc}
for file in passwd group; do
    cp "/etc/$file" "$state/etc/$file"
    mount --bind "$state/etc/$file" "/etc/$file"
done
next_id=61000

add_user() { # NAME: adds a user with a group of the same name
    echo "$1:x:$next_id:$next_id::/nonexistent:/usr/sbin/nologin" >>"$state/etc/passwd"
    echo "$1:x:$next_id:" >>"$state/etc/group"
    users+=("$1")
    next_id=$((next_id + 1))
}

start_server() { # SED-ARGUMENT...: writes the configuration, and waits until the first user is served
    sed -e "s|@STATE@|$state|" "$@" >"$state/smb.conf"
    for user in "${users[@]}"; do
        printf 'pw\npw\n' | smbpasswd -c "$state/smb.conf" -s -a "$user" >/dev/null 2>&1
    done
    set -m
    smbd --foreground --no-process-group --configfile="$state/smb.conf" </dev/null >"$state/out" 2>&1 &
    server=$!
    set +m
    for _ in $(seq 300); do
        if ask 'IPC$' "${users[0]}" help >/dev/null; then return; fi
        sleep 0.2
    done
    die "smbd does not serve: $(tail -n 3 "$state/out" "$state/log" 2>&1)"
}

ask() { # SHARE USER COMMANDS
    smbclient --configfile="$state/smb.conf" "//$address/$1" --user="$2%pw" --command="$3" 2>&1
}
