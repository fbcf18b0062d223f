#!/bin/bash
# Measures what it costs to walk through directories, on a volume with NFSv4 ACLs. The same tree exists three
# times, with different permissions to search its directories (see the table below). Two programs take turns
# on all of them: `stat` of a file below 20 directories, and a build like that of a kernel, with many small
# sources that include many headers. Prints a table for docs/benchmarks.md. Requires root, gcc, make, curl,
# nfs4_setfacl, and two CPUs that do nothing else.
#
#   scripts/traverse.sh [LIMEN [ROUNDS]]
#
# | tree | who may search its directories |
# |---|---|
# | everybody | everybody: limenfs skips the check |
# | group | the owner and one group: the kernel decides by the POSIX ACL that limenfs shows it |
# | denied | as group, but another group is denied, which no POSIX ACL can say: the kernel asks limenfs for each caller |
#
# Then the same on a mount with --all-squash, where limenfs checks every caller itself.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-5}
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
need_root
for tool in gcc make curl nfs4_setfacl setpriv; do command -v "$tool" >/dev/null || die "cannot run without $tool"; done

work=$(mktemp -d)
chmod 755 "$work"
clean() {
    "$limen" umount --lazy "$work/mnt" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT
mkdir "$work/mnt"
mkdir -m 777 "$work/out"
group=4712
# The user, and its groups.
ids=(4711 10 11 12 13 14 15 16 17 18 19 "$group")
as_user=(setpriv --reuid 4711 --regid 4711 --groups "$(IFS=,; echo "${ids[*]:1}")")
trees=(everybody group denied)
port=$((20000 + $$ % 10000))

mount_volume() { # OPTION...
    "$limen" mount -d -o transport=dev --metrics $port "$@" --log "$work/log" "sqlite://$work/v.db" "$work/mnt" >/dev/null
}

# 20 directories with a file below, and 240 sources that each include 40 of 800 headers, which include one
# another.
make_tree() { # DIRECTORY
    python3 - "$1" <<'PY'
import os, sys
top = sys.argv[1]
deep = os.path.join(top, "deep", *(f"level{n}" for n in range(20)))
os.makedirs(deep)
open(os.path.join(deep, "file"), "w").close()
for n in range(800):
    folder = f"{top}/src/include/part{n // 40}/sub{n % 8}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/h{n}.h", "w") as header:
        header.write(f"#ifndef H{n}\n#define H{n}\n")
        if n % 40:
            header.write(f'#include "part{n // 40}/sub{(n - 1) % 8}/h{n - 1}.h"\n')
        header.write(f"struct s{n} {{ int a; long b; }};\nstatic inline int f{n}(struct s{n} *s) {{ return s->a + {n}; }}\n#endif\n")
for n in range(240):
    folder = f"{top}/src/drivers/group{n // 24}/driver{n // 6}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/c{n}.c", "w") as source:
        for part in range(20):
            for last in (n % 40, 39 - n % 40):
                h = part * 40 + last
                source.write(f'#include "part{part}/sub{h % 8}/h{h}.h"\n')
        source.write(f"int use{n}(struct s{n % 40} *s) {{ return f{n % 40}(s); }}\n")
PY
    cat >"$1/src/Makefile" <<'MAKE'
sources := $(shell find drivers -name '*.c')
objects := $(patsubst %.c,$(OUT)/%.o,$(notdir $(sources)))
vpath %.c $(sort $(dir $(sources)))
all: $(objects)
$(OUT)/%.o: %.c
	@gcc -O0 -Iinclude -c -o $@ $<
MAKE
}

"$limen" format "sqlite://$work/v.db" v --acl nfsv4 --bucket "$work/objects" >/dev/null
mount_volume
for tree in "${trees[@]}"; do make_tree "$work/mnt/$tree"; done
find "$work/mnt/group" -type d -exec nfs4_setfacl -s "A::OWNER@:rwaxD,A:g:$group:rx" {} +
find "$work/mnt/denied" -type d -exec nfs4_setfacl -s "A::OWNER@:rwaxD,D:g:20:x,A:g:$group:rx" {} +
"$limen" umount "$work/mnt" >/dev/null

stat_loop() { # TREE: microseconds of one stat
    python3 - "$work/mnt/$1/deep" "${ids[@]}" <<'PY'
import os, sys, time
os.setgroups([int(gid) for gid in sys.argv[3:]])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
path = os.path.join(sys.argv[1], *(f"level{n}" for n in range(20)), "file")
os.stat(path)
count, began = 0, time.monotonic()
while time.monotonic() - began < 2:
    for _ in range(100):
        os.stat(path)
    count += 100
print(f"{(time.monotonic() - began) / count * 1e6:.2f}")
PY
}
build() { # TREE: seconds of the build
    rm -f "$work/out"/*
    local began
    began=$(date +%s%N)
    "${as_user[@]}" make -s -j2 -C "$work/mnt/$1/src" OUT="$work/out" >>"$work/log" 2>&1
    echo $((($(date +%s%N) - began) / 1000000)) | awk '{ printf "%.2f\n", $1 / 1000 }'
}
# The kernel's requests so far, and the lookups whose check limenfs skipped and made.
counters() {
    curl -fs "http://127.0.0.1:$port/metrics" | python3 -c '
import re, sys
text = sys.stdin.read()
total = lambda name: sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))
result = lambda what: total(f"limen_search_checks_total{{result=\"{what}\"}}")
print(int(total("limen_fuse_requests_total")), int(result("skipped")), int(result("checked")))'
}
# By how much a command (1,000 calls of stat, or a build) increases the counters.
counted() { # COMMAND...
    local before
    before=$(counters)
    "$@" >/dev/null
    echo "$before $(counters)" | awk '{ printf "%d (%d, %d)", $4 - $1, $5 - $2, $6 - $3 }'
}
stat_1000() { # TREE
    python3 - "$work/mnt/$1/deep" "${ids[@]}" <<'PY'
import os, sys
os.setgroups([int(gid) for gid in sys.argv[3:]])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
path = os.path.join(sys.argv[1], *(f"level{n}" for n in range(20)), "file")
for _ in range(1000):
    os.stat(path)
PY
}

median() { sort -n | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'; }

echo '| mount, tree | stat, us | build, s | requests (skipped, checked): 1,000 stat | build |'
echo '|---|---|---|---|---|'
for kind in 'no squashing' --all-squash; do
    options=()
    [ "$kind" = --all-squash ] && options=(--all-squash --anon-uid 4711 --anon-gid "$group")
    mount_volume "${options[@]}"
    for tree in "${trees[@]}"; do build "$tree" >/dev/null; done
    for _ in $(seq "$rounds"); do
        for tree in "${trees[@]}"; do
            stat_loop "$tree" >>"$work/stat-$tree"
            build "$tree" >>"$work/build-$tree"
        done
    done
    for tree in "${trees[@]}"; do
        echo "| $kind, $tree | $(median <"$work/stat-$tree") | $(median <"$work/build-$tree") | $(counted stat_1000 "$tree") | $(counted build "$tree") |"
        rm "$work/stat-$tree" "$work/build-$tree"
    done
    "$limen" umount "$work/mnt" >/dev/null
done
