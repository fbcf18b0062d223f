#!/bin/bash
# Measures programs that make and remove many small files on a mount: by default tar and cp -a of a tree of C
# headers, and rm -rf of both, on the embedded engine and on database servers, with and without `-o
# sync_metadata` in turns. Prints the medians in seconds, for docs/benchmarks.md. Requires root, and two CPUs
# that do nothing else.
#
#   scripts/untar.sh [LIMEN [ROUNDS [ENGINE ...]]]
#
# DELAY adds this many microseconds to each round trip to a server, TRANSPORT sets the transport of the
# mounts (default dev), FORMAT has more options of `limen format`, and TREE names another directory than
# /usr/include. PROGRAMS are some of tar, cp, git (clones REPOSITORY, by default this one), pip (installs
# all packages of the directory WHEELS), npm (runs `npm ci` for the directory PROJECT, which has a lock
# file, from the cache of packages NPM_CACHE) and rm. ENGINE is sqlite, redis, postgres, mariadb or etcd
# (default: all), or `none`: the file system of the temporary directory itself, without limen.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-5}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(sqlite redis postgres mariadb etcd)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user, and volumes are mounted"
# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

tree=${TREE:-/usr/include}
delay=${CARGO_TARGET_DIR:-$top/target}/debug/examples/delay
[ -z "${DELAY:-}" ] || (cd "$top" && cargo build --quiet --package servers --example delay)
tar cf "$work/tree.tar" -C "$(dirname "$tree")" "$(basename "$tree")"
say "$tree: $(tar tf "$work/tree.tar" | wc -l) entries, $(du -sm "$work/tree.tar" | cut -f 1) MB"
programs=(${PROGRAMS:-tar cp rm})
say "engine, options: ${programs[*]} (medians of $rounds, seconds)"
mkdir "$work/mnt"
# At the end, unmounts first, because a server does not stop while the mount is connected to it.
relay=
trap '"$limen" umount --force "$work/mnt" >/dev/null 2>&1 || true; kill $relay 2>/dev/null || true; servers_clean' EXIT

# One round: prints the times of the programs. Each program begins after everything before it is committed.
round() { # URL|none OPTION
    [ "$1" = none ] ||
        "$limen" mount -d -o "$2,transport=${TRANSPORT:-dev}" --log "$work/log" "$1" "$work/mnt" >/dev/null
    mkdir "$work/mnt/t"
    python3 - "$work" "$(basename "$tree")" "${REPOSITORY:-$top}" "${WHEELS:-}" "${PROJECT:-}" "${NPM_CACHE:-}" \
        "${programs[@]}" <<'PY'
import glob, os, shutil, subprocess, sys, time
work, tree, repository, wheels, project, npm_cache, *programs = sys.argv[1:]
mnt = work + "/mnt/t"
commands = {
    "tar": ["tar", "xf", work + "/tree.tar", "-C", mnt],
    "cp": ["cp", "-a", mnt + "/" + tree, mnt + "/copy"],
    "git": ["git", "clone", "--quiet", repository, mnt + "/clone"],
    "pip": ["pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", mnt + "/packages",
            *glob.glob(wheels + "/*.whl")],
    "npm": ["npm", "ci", "--silent", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--cache", npm_cache,
            "--prefix", mnt + "/project"],
}
if "npm" in programs:
    os.mkdir(mnt + "/project")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(project + "/" + name, mnt + "/project")
times = []
for program in programs:
    command = commands.get(program) or ["rm", "-rf", *glob.glob(mnt + "/*")]
    began = time.monotonic()
    subprocess.run(command, check=True)
    times.append(time.monotonic() - began)
    fd = os.open(mnt, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
print(*times)
PY
    rmdir "$work/mnt/t"
    [ "$1" = none ] || "$limen" umount "$work/mnt" >/dev/null
}

for engine in "${engines[@]}"; do
    options=(sync_metadata noatime)
    case $engine in
    none)
        url=none
        options=(noatime)
        ;;
    sqlite)
        url=sqlite://$work/v.db
        options=(noatime)
        ;;
    *) server_start "$engine" ;;
    esac
    if [ -n "${DELAY:-}" ] && [ -n "$server" ]; then
        # A port below those that the kernel gives to clients.
        "$delay" $((port - 10000)) "$port" "$DELAY" &
        relay=$!
        url=${url/:$port/:$((port - 10000))}
        sleep 0.2
    fi
    [ "$url" = none ] || "$limen" format "$url" v --bucket "$work/objects-$engine" ${FORMAT:-} >/dev/null
    for option in "${options[@]}"; do : >"$work/$option"; done
    for _ in $(seq "$rounds"); do
        for option in "${options[@]}"; do round "$url" "$option" >>"$work/$option"; done
    done
    for option in "${options[@]}"; do
        say "$engine, -o $option: $(python3 -c '
import statistics, sys
print(", ".join("%.2f" % statistics.median(column) for column in zip(*(map(float, line.split()) for line in open(sys.argv[1])))))' "$work/$option")"
    done
    if [ -n "$relay" ]; then
        kill "$relay"
        wait "$relay" 2>/dev/null || true
        relay=
    fi
    server_stop
    rm -rf "$work/objects-$engine"
done
