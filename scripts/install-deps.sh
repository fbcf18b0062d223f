#!/bin/bash
# Installs what `make demo` or `make test` needs on Debian 12, and nothing that is there already.
#
#   scripts/install-deps.sh {demo|test}
#
# Rust is expected: see https://rustup.rs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# package, and what it is for
for_demo="
build-essential  C compiler and linker: SQLite is compiled in
acl              setfacl and getfacl
fuse3            fusermount3, with which people who are not root mount
"
for_test="$for_demo
attr             setfattr and getfattr, for the archive round trips
rsync            archive round trips
dpkg-dev         unpacks the acl source package, whose tests are run
perl             runs the tests of the acl source package
libacl1-dev      pjdfstest links it
e2fsprogs        mkfs.ext4, for what the mount is compared with
fio              writes and verifies past the page cache and through mappings
git              works on the mount, as does Python
python3          runs its own tests of files on the mount
etcd-server      a metadata engine, in servers of the tests' own
postgresql       the server that the engine for it is tested on; pgbench on the mount; each in a cluster of its own
mariadb-server   the engine on MariaDB is tested on servers of its own, which the tests start and stop
redis-server     the engine on Redis is tested on servers of its own, which the tests start and stop
nfs4-acl-tools   set and show NFSv4 ACLs on the mount
samba            a share on the mount, with Windows ACLs
samba-vfs-modules  its module for NFSv4 ACLs
smbclient        asks it for files and ACLs, as Windows would
samba-testsuite  smbtorture, which judges it
iproute2         gives it a network of its own
procps           ends the helpers that it leaves
openssl          makes the certificates of those that speak TLS
"

case "${1:-}" in
demo) wanted=$for_demo ;;
test) wanted=$for_test ;;
*) die "usage: install-deps.sh {demo|test}" ;;
esac

command -v cargo >/dev/null || die "no cargo here; install Rust first: https://rustup.rs"
if [ "$1" = test ]; then
    for component in rustfmt clippy; do
        if ! "cargo-${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            command -v rustup >/dev/null || die "cargo has no $component; install that component of your Rust"
            say "installing $component: part of the checks"
            rustup component add "$component"
        fi
    done
fi

# Another Python than Debian's may bring it along.
if [ "$1" = test ] && ! python3 -c 'import test.test_os, test.libregrtest' 2>/dev/null; then
    wanted+="
libpython3.11-testsuite  Python's own tests, run on the mount"
fi

missing=()
while read -r package reason; do
    [ -n "$package" ] || continue
    state=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
    if [ "$state" != installed ]; then
        [ ${#missing[@]} -gt 0 ] || say "Installing from Debian:"
        printf '  %-16s %s\n' "$package" "$reason"
        missing+=("$package")
    fi
done <<<"$wanted"
if [ ${#missing[@]} -gt 0 ]; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    {
        as_root apt-get update &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
    } >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        die "could not install: ${missing[*]}"
    }
fi

if [ ! -e /dev/fuse ]; then
    as_root modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || die "no /dev/fuse: this kernel or container does not offer FUSE, so nothing can be mounted"
fi
