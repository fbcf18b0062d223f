#!/bin/bash
# Runs every test file of the Debian source package `acl` in DIRECTORY, with the installed setfacl, getfacl
# and chacl.
#
#   tests/acl-package/run.sh DIRECTORY
#
# The tests expect the users and groups in the package's test/test.passwd and test/test.group (where daemon
# belongs to group bin, unlike on Debian). They are bind-mounted over /etc/passwd and /etc/group in a private
# mount namespace, so the system's files are not changed, and permission checks see real credentials.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: run.sh DIRECTORY"; fi
need_root
directory=$(cd "$1" && pwd)

if [ -z "${ACL_TEST_SOURCE:-}" ]; then
    ACL_TEST_SOURCE=$("$top/scripts/fetch-acl-source.sh")
    export ACL_TEST_SOURCE
    exec unshare --mount --propagation private "$0" "$directory"
fi
mount --bind "$ACL_TEST_SOURCE/test/test.passwd" /etc/passwd
mount --bind "$ACL_TEST_SOURCE/test/test.group" /etc/group
# The tests use shopt, so their /bin/sh must be bash; this bind mount is private too.
mount --bind /bin/bash "$(readlink -f /bin/sh)"

work="$directory/acl-package"
log=$(mktemp)
trap 'rm -rf "$work" "$log"' EXIT
rm -rf "$work"
mkdir "$work"
chmod 755 "$work"
# The runner works in "<test file>.dir", so copy the test files onto the file system under test.
cp -R "$ACL_TEST_SOURCE/test/." "$work/"

# The two files below nfs/ expect the exported directory in EXPORT_PATH: it is this one. They also expect the
# columns of `ls -l` of 2002, which this time style restores.
export EXPORT_PATH="$work/nfs/nfs-dir.test.dir"

passed=0 failed=0 skipped=0
cd "$work"
while read -r file; do
    style="locale"
    [ "${file%%/*}" != nfs ] || style="long-iso"
    status=0
    TIME_STYLE=$style LC_ALL=C.UTF-8 perl -w -U "$ACL_TEST_SOURCE/test/run" "$file" >"$log" 2>&1 || status=$?
    summary=$(tail -n 1 "$log")
    case $status in
    0) verdict=ok passed=$((passed + 1)) ;;
    77)
        verdict=skipped skipped=$((skipped + 1))
        skip "acl-package $file" "$summary"
        ;;
    *) verdict=FAILED failed=$((failed + 1)) ;;
    esac
    printf '%-28s %-8s %s\n' "$file" "$verdict" "$summary"
    [ "$verdict" = ok ] || grep -v -- '-- ok$' "$log" | sed 's/^/    /'
done < <(find . -name '*.test' -printf '%P\n' | LC_ALL=C sort)
[ $((passed + failed + skipped)) -gt 0 ] || die "no test files in $ACL_TEST_SOURCE/test"
print_counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
