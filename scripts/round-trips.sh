#!/bin/bash
# Counts the round trips to the database of each operation on a mount, for limenfs and for JuiceFS, on Redis
# and PostgreSQL. A relay between the mount and the server counts how often the client sends after the server
# has answered. Prints a table for docs/benchmarks.md. Requires root.
#
#   scripts/round-trips.sh LIMEN JUICEFS
#
# Runs 300 operations of each kind, one after another, and subtracts the round trips of an idle mount in the
# same time. On Redis, the requests that wait for changes of other mounts (XREAD) are not counted, because no
# operation waits for them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -eq 2 ] || die "usage: round-trips.sh LIMEN JUICEFS"
limen=$(readlink -f "$1") peer=$(readlink -f "$2")
need_root
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"
mkdir "$work/mnt"
relay=
trap '[ $? = 0 ] || tail -n 20 "$work/log" >&2; umount -l "$work/mnt" 2>/dev/null || true; kill $relay 2>/dev/null || true; servers_clean' EXIT

cat >"$work/relay.py" <<'PY'
import os, socket, sys, threading
port, server, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
lock, trips = threading.Lock(), 0
def copy(source, target, state, is_client):
    global trips
    try:
        while data := source.recv(1 << 16):
            with lock:
                if is_client and state["answered"] and b"XREAD" not in data:
                    trips += 1
                    with open(file + ".new", "w") as out:
                        out.write(str(trips))
                    os.replace(file + ".new", file)
                state["answered"] = not is_client
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        end.close()
listener = socket.create_server(("127.0.0.1", port), backlog=64)
while True:
    client, _ = listener.accept()
    upstream = socket.create_connection(("127.0.0.1", server))
    for one in (client, upstream):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    state = {"answered": True}
    threading.Thread(target=copy, args=(client, upstream, state, True), daemon=True).start()
    threading.Thread(target=copy, args=(upstream, client, state, False), daemon=True).start()
PY

cat >"$work/operations.py" <<'PY'
import os, sys, time
mnt, file = sys.argv[1], sys.argv[2]
count = 300
def trips():
    with open(file) as trips:
        return int(trips.read())
os.mkdir(f"{mnt}/t")
os.chdir(f"{mnt}/t")
time.sleep(2)
before = trips()
time.sleep(10)
idle = (trips() - before) / 10
def create(n):
    os.close(os.open(f"f{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
operations = {
    "mkdir": lambda n: os.mkdir(f"d{n}"),
    "create": create,
    "link": lambda n: os.link(f"f{n}", f"l{n}"),
    "symlink": lambda n: os.symlink("target", f"s{n}"),
    "chmod": lambda n: os.chmod(f"f{n}", 0o600),
    "setxattr": lambda n: os.setxattr(f"f{n}", "user.name", b"value"),
    "rename": lambda n: os.rename(f"f{n}", f"g{n}"),
    "unlink": lambda n: os.unlink(f"l{n}"),
    "rmdir": lambda n: os.rmdir(f"d{n}"),
}
counts = []
for operation in operations.values():
    time.sleep(1)
    before, began = trips(), time.monotonic()
    for n in range(count):
        operation(n)
    counts.append("%.2f" % max(0, (trips() - before - idle * (time.monotonic() - began)) / count))
print(" | ".join(counts))
PY

echo '| | mkdir | create | link | symlink | chmod | setxattr | rename | unlink | rmdir |'
echo '|---|---|---|---|---|---|---|---|---|---|'
for engine in redis postgres; do
    for program in ${PROGRAMS:-limen limen,sync_metadata juicefs}; do
        server_start "$engine"
        python3 "$work/relay.py" $((port + 10000)) "$port" "$work/trips" &
        relay=$!
        sleep 0.5
        url=${url/:$port/:$((port + 10000))}
        if [ "$program" = juicefs ]; then
            [ "$engine" = redis ] && url=${url%/}/1
            "$peer" format --storage file --bucket "$work/peer/" --trash-days 0 "$url" volume >>"$work/log" 2>&1
            "$peer" mount -d --no-usage-report --enable-xattr "$url" "$work/mnt" >>"$work/log" 2>&1
        else
            "$limen" format "$url" v --bucket "$work/objects" >>"$work/log" 2>&1
            "$limen" mount -d -o "noatime${program#limen}" --log "$work/log" "$url" "$work/mnt" >>"$work/log" 2>&1
        fi
        echo "| $engine, $program | $(python3 "$work/operations.py" "$work/mnt" "$work/trips") |"
        umount "$work/mnt"
        sleep 1
        kill "$relay"
        wait "$relay" 2>/dev/null || true
        server_stop
        rm -rf "${work:?}/$engine" "$work/objects" "$work/peer"
    done
done
