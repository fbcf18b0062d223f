# Database servers for measurements; sourced after lib.sh, never executed.
#
# Each server, except that of TiKV, is Debian's, and syncs each commit: Redis by `appendfsync always`, the
# others by default. Each server has its own directory below `work`, and its own loopback port. Requires root,
# because PostgreSQL runs as its own user.
# shellcheck shell=bash
#
# Sets: work (a temporary directory), and for the running server: server (its process), port, url.

work=$(mktemp -d)
chmod 755 "$work"
server=
port=$((20000 + $$ % 10000))

server_stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true
        server=
    fi
}
servers_clean() {
    server_stop
    rm -rf "$work"
}
trap servers_clean EXIT

server_wait() {
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    die "the server does not start; its log is in $work"
}

server_start() { # redis|postgres|mariadb|etcd|tikv
    local d=$work/$1
    mkdir "$d"
    port=$((port + 1))
    case $1 in
    redis)
        redis-server --port $port --bind 127.0.0.1 --save '' --appendonly yes --appendfsync always --dir "$d" >"$d/log" &
        server=$!
        url=redis://127.0.0.1:$port/
        server_wait redis-cli -p $port ping
        ;;
    postgres)
        chown postgres "$d"
        local bin
        bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -n 1)
        local as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
        (cd "$d" && "${as[@]}" "$bin/initdb" -D data -U limen -A trust -E UTF8 --locale=C >log)
        (cd "$d" && exec "${as[@]}" "$bin/postgres" -D data -p $port -c listen_addresses=127.0.0.1 \
            -c unix_socket_directories= >>log 2>&1) &
        server=$!
        url="postgres://limen@127.0.0.1:$port/postgres?sslmode=disable"
        psql=(psql -q -h 127.0.0.1 -p $port -U limen -d postgres)
        server_wait "${psql[@]}" -c 'SELECT 1'
        ;;
    mariadb)
        mkdir "$d/tmp"
        mariadb-install-db --no-defaults --user=root --datadir="$d/data" --tmpdir="$d/tmp" --skip-test-db \
            --auth-root-authentication-method=normal >"$d/log" 2>&1
        mariadbd --no-defaults --user=root --datadir="$d/data" --tmpdir="$d/tmp" --socket="$d/socket" --port=$port \
            --bind-address=127.0.0.1 --skip-name-resolve >>"$d/log" 2>&1 &
        server=$!
        # shellcheck disable=SC2034  # read by the scripts that source this one
        url=mysql://root@127.0.0.1:$port/limen
        mariadb=(mariadb --no-defaults -h 127.0.0.1 -P $port -u root)
        server_wait "${mariadb[@]}" -e 'CREATE DATABASE IF NOT EXISTS limen'
        ;;
    etcd)
        etcd --data-dir "$d/data" --listen-peer-urls http://127.0.0.1:0 --listen-client-urls http://127.0.0.1:$port \
            --advertise-client-urls http://127.0.0.1:$port --initial-advertise-peer-urls http://127.0.0.1:1 \
            --initial-cluster default=http://127.0.0.1:1 >"$d/log" 2>&1 &
        server=$!
        url=etcd://127.0.0.1:$port/
        server_wait curl -fs "http://127.0.0.1:$port/health"
        ;;
    tikv)
        # No TiKV itself, but a server with its protocol; `limen` must be built with `--features tikv`.
        local unistore
        unistore=$("$top/tests/tikv/build.sh")
        "$unistore" --listen 127.0.0.1:$port --dir "$d/data" >"$d/log" 2>&1 &
        server=$!
        url=tikv://127.0.0.1:$port/
        server_wait "$limen" format tikv://127.0.0.1:$port/?table_prefix=probe_ probe --bucket "$d/probe"
        ;;
    *) die "unknown engine '$1'" ;;
    esac
}

# Runs a command; prints its time in seconds and the largest memory of its process in MiB. The output of the
# command goes to the log.
cost() { # COMMAND...
    python3 - "$work/log" "$@" <<'PY'
import resource, subprocess, sys, time
log = open(sys.argv[1], "a")
began = time.monotonic()
subprocess.run(sys.argv[2:], check=True, stdout=log, stderr=log)
memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"{time.monotonic() - began:.2f} ({memory:.0f})")
PY
}
