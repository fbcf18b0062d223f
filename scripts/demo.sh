#!/bin/bash
# `make demo`: creates a volume and shows what limen does with it.
#
#   [LIMEN=target/release/limen] [SOURCE=/usr/include] scripts/demo.sh [--keep]
#
# Requires root, because it creates three users and a group (limen-demo-*) and accesses files as them. At the
# end it removes them, the mount and the volume; --keep leaves them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/volume.sh
. "$top/scripts/volume.sh"

keep=${KEEP:-}
[ "${1:-}" != --keep ] || keep=yes
limen=${LIMEN:-${CARGO_TARGET_DIR:-$top/target}/release/limen}
[ -x "$limen" ] || die "$limen does not exist: run make demo, or set LIMEN"
limen=$(readlink -f "$limen")
source=${SOURCE:-/usr/include}
[ "$(id -u)" -eq 0 ] || exec sudo env "LIMEN=$limen" "SOURCE=$source" "KEEP=$keep" "$0"

bold='' plain='' green='' red=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[m' green=$'\e[32m' red=$'\e[31m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
note() { printf '  %s\n' "$*"; }
shown() { sed 's/^/      /'; }

# --- people -----------------------------------------------------------------------------------
ana=limen-demo-ana ben=limen-demo-ben cleo=limen-demo-cleo team=limen-demo-team

people_remove() {
    local name
    for name in $ana $ben $cleo; do userdel "$name" 2>/dev/null || true; done
    groupdel $team 2>/dev/null || true
}
people_create() {
    people_remove
    groupadd --system $team
    local name
    for name in $ana $ben $cleo; do
        useradd --system --no-create-home --home-dir / --shell /usr/sbin/nologin --user-group "$name"
    done
    usermod --append --groups $team $ben
}

cleanup() {
    local status=$?
    trap - EXIT
    if [ -n "$keep" ] && [ "$status" -eq 0 ]; then return; fi
    volume_remove
    people_remove
    if [ "$status" -ne 0 ]; then printf '\n%sThe demo failed; everything it created is removed.%s\n' "$red" "$plain"; fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- grant and refusal ------------------------------------------------------------------------
granted=0 refused=0
as() { # USER COMMAND...
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups -- "$@"
}
may() { # USER WHAT COMMAND...
    local user=$1 what=$2 answer
    shift 2
    if ! answer=$(as "$user" "$@" 2>&1); then die "$user must be able to $what, but: $answer"; fi
    note "${green}granted${plain}  $user may $what"
    granted=$((granted + 1))
}
may_not() { # USER WHAT COMMAND...
    local user=$1 what=$2 answer
    shift 2
    if answer=$(LC_ALL=C as "$user" "$@" 2>&1); then die "$user must NOT be able to $what, but was"; fi
    # The refusal must come from the file system and have the right errno.
    case $answer in
    *"Permission denied"* | *"Operation not permitted"*) ;;
    *) die "$user could not $what, but with another error: $answer" ;;
    esac
    note "${green}refused${plain}  $user may not $what"
    refused=$((refused + 1))
}
# shellcheck disable=SC2016  # $1 is for the shell that runs as that user, so that the user opens the file
write() { # may|may_not USER WHAT FILE
    "$1" "$2" "$3" sh -c 'echo line | tee -a "$1"' sh "$4"
}

# --- the state of the volume, to compare before and after ---------------------------------------
picture() (
    cd "$mnt"
    export LC_ALL=C
    find . -printf '%p %y %m %U %G %s %T@ %l\n' | sort
    find . ! -type l -print0 | sort -z | xargs -0 getfacl -n --absolute-names
)

printf '%s' "$bold"
"$limen" version | head -n 1
printf '%s' "$plain"

step "1. Format and mount"
said=$(mktemp)
volume_create demo >"$said"
# Use io_uring, the faster transport, if this kernel has it (Linux 6.14 or later).
ring=()
[ ! -e /sys/module/fuse/parameters/enable_uring ] || ring=(-o transport=ring)
volume_mount "${ring[@]}" >>"$said"
shown <"$said"
rm -f "$said"
note "limen format $meta demo --storage file --bucket $work/objects"
note "limen mount -d ${ring[*]} $meta $mnt"

step "2. Copy a real tree onto it"
begin=$(date +%s%N)
cp -a "$source" "$mnt/tree"
took=$((($(date +%s%N) - begin) / 1000000))
files=$(find "$mnt/tree" | wc -l)
note "cp -a $source: $files files and directories, $(du -sh --apparent-size "$source" | cut -f 1), in $((took / 1000)).$(printf %03d $((took % 1000))) s"
diff -r --no-dereference "$source" "$mnt/tree"
note "diff -r finds no difference"

step "3. A project directory for three people"
people_create
project=$mnt/project
mkdir -m 770 "$project"
setfacl -m "u:$ana:rwx,g:$team:rx" "$project"
setfacl -d -m "u:$ana:rwx,g:$team:rx,o::-" "$project"
note "ana may do everything, the team (ben) may read, no entry names cleo or a group of hers;"
note "a default ACL applies the same to everything created in it:"
getfacl --absolute-names --omit-header "$project" | sed '/^$/d' | shown

write may $ana "create a file" "$project/plan"
mkdir "$project/notes"
echo "made by root" >"$project/notes/first"
may $ben "list the directory" ls "$project"
may $ben "read ana's new file (inherited)" cat "$project/plan"
may $ben "read two levels down (inherited)" cat "$project/notes/first"
write may $ana "write two levels down (inherited)" "$project/notes/first"
write may_not $ben "write to it" "$project/plan"
write may_not $ben "create a file" "$project/mine"
may_not $ben "delete ana's file" rm -f "$project/plan"
may_not $ben "change the ACL of ana's file" setfacl -m "u:$ben:rwx" "$project/plan"
may_not $cleo "list the directory" ls "$project"
may_not $cleo "read a file in it" cat "$project/plan"

step "4. The mask, and revoking a permission"
chmod g-w "$project/notes/first"
write may_not $ana "write when chmod g-w lowers the mask" "$project/notes/first"
chmod g+w "$project/notes/first"
write may $ana "write when chmod g+w raises it" "$project/notes/first"
setfacl -m "u:$cleo:x" "$project"
setfacl -m "u:$cleo:r" "$project/plan"
may $cleo "read the one file that she has access to" cat "$project/plan"
may_not $cleo "list the directory" ls "$project"
setfacl -x "u:$cleo" "$project"
may_not $cleo "read it right after the access is revoked" cat "$project/plan"

step "5. How the files look"
# shellcheck disable=SC2012  # people read ls
ls -l "$project" | shown
getfacl --absolute-names "$project/plan" | sed '/^$/d' | shown
begin=$(date +%s%N)
listed=$(as $ben ls -lR "$mnt/tree" | wc -l)
took=$((($(date +%s%N) - begin) / 1000000))
note "ls -lR of the whole tree as ben: $listed lines in $took ms"

step "6. Unmount, mount again, compare"
picture >"$work/before"
volume_umount | shown
note "unmounted"
if mountpoint -q "$mnt"; then die "$mnt is still mounted"; fi
volume_mount "${ring[@]}" | shown
note "mounted again"
picture >"$work/after"
cmp "$work/before" "$work/after"
note "$(grep -c '^# file:' "$work/after") ACLs, and every name, mode, owner, size and time as before"
diff -r --no-dereference "$source" "$mnt/tree"
note "every byte as in $source"
may $ben "read ana's file after the remount" cat "$project/plan"
write may_not $ben "write to it, now as before" "$project/plan"
write may $ana "write to it" "$project/plan"
may_not $cleo "read it, now as before" cat "$project/plan"

step "$green$granted requests granted and $refused refused, all as expected.$plain"
if [ -n "$keep" ]; then
    note "Still mounted on $mnt, with the users limen-demo-*. To remove it:"
    note "  $limen umount $mnt && rm -r $work"
    note "  userdel $ana; userdel $ben; userdel $cleo; groupdel $team"
else
    note "Everything is removed; scripts/demo.sh --keep leaves it mounted."
fi
cat <<END

  Your own volume, in two commands:
    limen format sqlite:///var/lib/limen/home.db home --storage file --bucket /var/lib/limen/home
    limen mount -d sqlite:///var/lib/limen/home.db /mnt
  The program is $limen; README.md has a tour of five minutes.
END
