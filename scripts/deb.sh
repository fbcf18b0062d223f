#!/bin/bash
# `make deb`: builds a Debian package with dpkg-deb, below target/deb.
#
#   [LIMEN_BIN=PATH] [DEBEMAIL=ADDRESS [DEBFULLNAME=NAME]] scripts/deb.sh
#
# LIMEN_BIN is a program to package; without it, a release build is made. DEBEMAIL and DEBFULLNAME are the
# address and name of the maintainer, the person or team that gives the package to others, as for other tools
# of Debian. Prints the path of the package last.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top"

command -v dpkg-deb >/dev/null || die "dpkg-deb is not installed: packages can be built on Debian and its relatives only"
target=${CARGO_TARGET_DIR:-$top/target}
if [ -n "${LIMEN_BIN:-}" ]; then
    program=$(readlink -f "$LIMEN_BIN")
    [ -x "$program" ] || die "$LIMEN_BIN does not exist or is not executable: name a limen with LIMEN_BIN"
else
    cargo build --release --package cli
    program=$target/release/limen
fi

# The project itself publishes no packages, so it has no address for questions about them.
maintainer="${DEBFULLNAME:-limenfs} <${DEBEMAIL:-root@localhost}>"
[[ $maintainer != *$'\n'* ]] || die "DEBFULLNAME and DEBEMAIL must be one line"
[ -n "${DEBEMAIL:-}" ] || say "deb.sh: set DEBEMAIL and DEBFULLNAME to name a maintainer before you give the package to others" >&2

# All users must be able to read the files of the package, whatever the umask is here.
umask 022
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"$/\1/p' Cargo.toml)
[ -n "$version" ] || die "Cargo.toml has no version in [workspace.package]"
"$program" --version | grep -qx "limen $version" || die "$program is $("$program" --version), not limen $version"
arch=$(dpkg --print-architecture)
mkdir -p "$target/deb"
root=$(mktemp -d "$target/deb/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

# put MODE SOURCE DESTINATION
put() { install -D -m "$1" "$2" "$root/$3"; }
put 755 "$program" usr/bin/limen
if command -v strip >/dev/null; then strip --strip-unneeded "$root/usr/bin/limen"; fi
mkdir "$root/sbin"
ln -s /usr/bin/limen "$root/sbin/mount.limen"
ln -s /usr/bin/limen "$root/sbin/umount.fuse.limen"
put 644 "dist/limen@.service" "lib/systemd/system/limen@.service"
put 644 dist/limen.logrotate etc/logrotate.d/limen
put 644 dist/copyright usr/share/doc/limen/copyright
install -d -m 750 "$root/etc/limen"

mkdir -p "$root/usr/share/man/man1" "$root/usr/share/man/man8"
"$program" man "$root/usr/share/man/man1" >/dev/null
for page in mount.limen umount.fuse.limen; do
    sed "s/@VERSION@/$version/" "dist/$page.8" >"$root/usr/share/man/man8/$page.8"
done
cp CHANGELOG.md "$root/usr/share/doc/limen/changelog"
gzip -9n "$root"/usr/share/man/man*/* "$root/usr/share/doc/limen/changelog"
for shell in bash:bash-completion/completions/limen zsh:zsh/vendor-completions/_limen fish:fish/vendor_completions.d/limen.fish; do
    mkdir -p "$(dirname "$root/usr/share/${shell#*:}")"
    "$program" completions "${shell%%:*}" >"$root/usr/share/${shell#*:}"
done

# The packages of the libraries that the program is linked to, with the newest version of glibc that it asks
# for.
libraries() {
    ldd "$root/usr/bin/limen" 2>/dev/null | awk '{ print $1 }' | while read -r library; do
        case "${library##*/}" in
        libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*)
            echo "libc6 (>= $(grep -ao 'GLIBC_2\.[0-9]*' "$root/usr/bin/limen" | cut -d_ -f2 | sort -uV | tail -n 1))"
            ;;
        libgcc_s.so.*) echo libgcc-s1 ;;
        linux-vdso* | statically | not) ;;
        *) die "no package is known for the library $library, to which limen is linked: name it in scripts/deb.sh" ;;
        esac
    done | sort -u
}
needed=$(libraries)
depends=$(printf '%s\n' fuse3 ca-certificates "$needed" | sed '/^$/d' | paste -sd, | sed 's/,/, /g')

mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<EOF
Package: limen
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: $depends
Recommends: procps
Suggests: acl, logrotate, nfs4-acl-tools
Section: utils
Priority: optional
Description: distributed POSIX file system with ACLs
 limenfs stores the metadata of a volume in a database (SQLite, Redis,
 PostgreSQL, MariaDB, etcd) and file data in an object store (a directory or
 S3). It enforces POSIX and NFSv4 ACLs without additional requests.
EOF
echo /etc/logrotate.d/limen >"$root/DEBIAN/conffiles"
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
# systemd reads the template limen@.service.
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
EOF
cp "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"

package="$target/deb/limen_${version}_$arch.deb"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
