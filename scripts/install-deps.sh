#!/bin/bash
# Installs what `make demo` or `make test` needs on Debian 12, except what is already installed.
#
#   scripts/install-deps.sh {demo|test}
#
# Rust must be installed: see https://rustup.rs.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# package, and its purpose
for_demo="
build-essential  C compiler and linker: SQLite is compiled in
acl              setfacl and getfacl
fuse3            fusermount3, which mounts for users other than root
"
for_test="$for_demo
attr             setfattr and getfattr, for the archive round trips
rsync            archive round trips
dpkg-dev         unpacks the source package acl, whose tests run on the mount
perl             runs the tests of the acl source package
libacl1-dev      pjdfstest links to it
e2fsprogs        mkfs.ext4, for the file system that the mount is compared with
fio              writes and verifies with O_DIRECT and through mappings
git              runs on the mount
python3          runs on the mount, with its own tests of files
etcd-server      tests of the engine on etcd, on servers that they start
postgresql       tests of the engine on PostgreSQL, on servers that they start; pgbench on the mount
mariadb-server   tests of the engine on MariaDB, on servers that they start
prometheus       checks and scrapes the metrics of a mount
redis-server     tests of the engine on Redis, on servers that they start
nfs4-acl-tools   set and show NFSv4 ACLs on the mount
samba            a share on the mount, with Windows ACLs
samba-vfs-modules  the Samba module for NFSv4 ACLs
smbclient        a client for the share
samba-testsuite  smbtorture, tests of the share
iproute2         a private network for Samba
procps           stops helper processes that Samba leaves
openssl          certificates for tests of TLS
apache2          a WebDAV server, for the tests of that store
openssh-server   an SFTP server, for the tests of that store
maven            installs an HDFS server, for the tests of that store, and brings the Java that runs it
chromium         looks at the pages of limen console
chromium-driver  drives it
"

case "${1:-}" in
demo) wanted=$for_demo ;;
test) wanted=$for_test ;;
*) die "usage: install-deps.sh {demo|test}" ;;
esac

command -v cargo >/dev/null || die "cargo is not installed; install Rust first: https://rustup.rs"
if [ "$1" = test ]; then
    for component in rustfmt clippy; do
        if ! "cargo-${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            command -v rustup >/dev/null || die "cargo has no $component; install that component"
            say "installing $component, which the checks need"
            rustup component add "$component"
        fi
    done
fi

# A Python that is not Debian's may include its test package.
if [ "$1" = test ] && ! python3 -c 'import test.test_os, test.libregrtest' 2>/dev/null; then
    wanted+="
libpython3.11-testsuite  Python's own tests, run on the mount"
fi

if [ "$1" = test ] && ! command -v go >/dev/null; then
    say "Go is not installed, and Debian's is too old for the server of TiKV's tests (tests/tikv): see https://go.dev/dl"
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
        die "cannot install: ${missing[*]}"
    }
fi

if [ ! -e /dev/fuse ]; then
    as_root modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || die "/dev/fuse does not exist: this kernel or container does not support FUSE, so nothing can be mounted"
fi
