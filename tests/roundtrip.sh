#!/bin/bash
# Copies a tree with all kinds of metadata onto DIRECTORY and back, with tar, rsync and cp, and compares the
# results with the original: names, content, stat, ACLs, xattrs, holes, hard links.
#
#   tests/roundtrip.sh DIRECTORY
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: roundtrip.sh DIRECTORY"; fi
need_root
work="$(cd "$1" && pwd)/roundtrip"
# The original tree and the copies back are on another file system.
here=$(mktemp -d "${ROUNDTRIP_TMP:-/tmp}/limen-roundtrip.XXXXXX")
trap 'rm -rf "$work" "$here"' EXIT
rm -rf "$work"
mkdir "$work"

# --- the tree ---------------------------------------------------------------------------------
make_tree() {
    mkdir -p "$1"
    cd "$1"
    mkdir -p plain/deep/er empty acls defaults odd
    cp -R /etc/apt /etc/default plain/ 2>/dev/null
    # 0 and 1 byte, around the inline limit, around a block of 4 MiB.
    for size in 0 1 4095 4096 4097 4194303 4194305; do
        head -c "$size" /dev/urandom >"plain/size-$size"
    done
    truncate -s 64M odd/sparse
    printf 'in the middle' | dd of=odd/sparse bs=1 seek=40000000 conv=notrunc status=none
    printf 'target\n' >odd/target
    ln odd/target odd/hard
    ln odd/target plain/deep/hard-elsewhere
    ln -s target odd/link
    ln -s /nowhere/at/all odd/dangling
    mkfifo odd/fifo
    mknod odd/null c 1 3
    mknod odd/block b 91 64
    printf 'x' >'odd/ leading, newline
and trailing '
    printf 'x' >"odd/$(printf 'n%.0s' {1..255})"
    printf 'x' >$'odd/\xff not utf-8'
    # Owner and group first, because changing them clears set-ID bits.
    chown daemon:bin odd/target plain/size-1
    chmod 4755 plain/size-1
    chmod 2775 plain/deep
    chmod 1777 empty
    chmod 0000 plain/size-4095
    : >acls/many
    : >acls/masked
    : >acls/group-zero
    setfacl -m u:daemon:rwx,u:bin:r,g:daemon:rx,g:adm:-,m::rw acls/many
    setfacl -m u:daemon:rwx,m::r acls/masked
    setfacl -m u:nobody:rw,g::-,o::- acls/group-zero
    for uid in $(seq 100000 100099); do echo "user:$uid:r-x"; done >"$here/long.acl"
    : >acls/long
    setfacl -M "$here/long.acl" acls/long
    setfacl -m u:daemon:rwx,d:u:daemon:rwx,d:g:bin:rx,d:m::rx defaults
    # The child inherits from its parent, the grandchild from the child.
    mkdir -p defaults/child/grandchild
    : >defaults/child/file
    setfacl -d -m u::rwx,g::rx,o::- plain/deep
    setfattr -n user.text -v 'a value' plain/size-4096
    setfattr -n user.binary -v 0x00ff0a0d00 plain/size-4096
    setfattr -n user.empty plain/size-0
    setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' v)" plain/size-1
    setfattr -n user.on-directory -v yes empty
    setfattr -n trusted.limen-test -v yes empty
    find . -depth -exec touch --no-dereference --no-create --date='2001-02-03 04:05:06.789012345 UTC' {} +
    cd /
}

# Prints everything that is compared. Sizes of directories and block counts are left out, because they depend
# on the file system.
describe() (
    cd "$1"
    export LC_ALL=C
    echo "== stat"
    find . -type d -printf '%p %y %m %U %G %T@\n' -o -printf '%p %y %m %U %G %n %s %T@ %l\n' | sort
    echo "== devices"
    find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' {} + | sort
    echo "== hard links"
    # Groups of names that share an inode, without the inode number.
    find . -type f -links +1 -printf '%i %p\n' | sort -k 2 |
        awk '{ set[$1] = set[$1] " " $2 } END { for (i in set) print set[i] }' | sort
    echo "== content"
    find . -type f -print0 | sort -z | xargs -0 sha256sum
    echo "== acls"
    find . ! -type l -print0 | sort -z | xargs -0 getfacl -n --absolute-names
    echo "== xattrs"
    # The ACL xattrs are covered above, decoded.
    find . -print0 | sort -z | xargs -0 getfattr --no-dereference --absolute-names -d -e hex -m '^(user|trusted|security)\.'
)

passed=0 failed=0
check() { # NAME ORIGINAL COPY
    describe "$2" >"$here/want"
    describe "$3" >"$here/have"
    if diff "$here/want" "$here/have" >"$here/difference"; then
        printf '%-40s ok\n' "$1"
        passed=$((passed + 1))
    else
        printf '%-40s FAILED\n' "$1"
        head -n 30 "$here/difference" | cut -c 1-200 | sed 's/^/    /'
        failed=$((failed + 1))
    fi
}
copy_tar() {
    mkdir "$2"
    tar --create --file - --acls --xattrs --xattrs-include='*' --sparse --numeric-owner --format=posix -C "$1" . |
        tar --extract --file - --acls --xattrs --xattrs-include='*' --preserve-permissions --numeric-owner -C "$2"
}
copy_rsync() { rsync -aAXHS --numeric-ids "$1/" "$2/"; }
copy_cp() { cp -a "$1" "$2"; }

make_tree "$here/tree"
for how in tar rsync cp; do
    "copy_$how" "$here/tree" "$work/$how"
    check "$how, onto the directory" "$here/tree" "$work/$how"
    "copy_$how" "$work/$how" "$here/back-$how"
    check "$how, and back" "$here/tree" "$here/back-$how"
    rm -rf "$here/back-$how"
done

# A second run finds no changes, so rsync reads back what it wrote.
changes=$(rsync -aAXHS --numeric-ids --checksum --itemize-changes --dry-run "$here/tree/" "$work/rsync/")
if [ -z "$changes" ]; then
    printf '%-40s ok\n' "a second rsync finds no changes"
    passed=$((passed + 1))
else
    printf '%-40s FAILED\n%s\n' "a second rsync finds no changes" "$changes"
    failed=$((failed + 1))
fi

# The same tree, created in place, so that the file system applies inheritance, not the archiver.
make_tree "$work/made"
describe "$here/tree" | grep -a -v "/size-" >"$here/want"
describe "$work/made" | grep -a -v "/size-" >"$here/have"
if diff "$here/want" "$here/have" >"$here/difference"; then
    printf '%-40s ok\n' "the same tree, created in place"
    passed=$((passed + 1))
else
    printf '%-40s FAILED\n' "the same tree, created in place"
    head -n 30 "$here/difference" | cut -c 1-200 | sed 's/^/    /'
    failed=$((failed + 1))
fi

print_counts "$passed" "$failed" 0
[ "$failed" -eq 0 ]
