#!/bin/bash
# Samba over a mount of a volume of NFSv4 ACLs: a real smbd, and real smbclient, smbcacls and smbtorture.
#
#   LIMEN=PROGRAM tests/samba/run.sh MOUNTPOINT
#
# What one side sets the other has to enforce: ACLs set through SMB hold for programs on the mount, and the other way round.
# Then smbtorture: what comes out of each test stands in torture.txt, with the reason for each failure, which counts as
# skipped. Tests that ask for the right to pass any directory run on a second volume, of this script's own. As root; the
# server has a network of its own, and is stopped at the end with all that was made for it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=scripts/volume.sh
. "$top/scripts/volume.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: run.sh MOUNTPOINT"; fi
need_root
limen=${LIMEN:-}
[ -x "$limen" ] || die "LIMEN says which limen mounts the second volume"
# shellcheck source=tests/samba/server.sh
. "$(dirname "$0")/server.sh"
ana=limen-smb-ana ben=limen-smb-ben
share="$(cd "$1" && pwd)/share"

for program in smbd smbclient smbcacls smbtorture smbpasswd nfs4_setfacl; do
    command -v $program >/dev/null || die "no $program here: run scripts/install-deps.sh test"
done
for user in $ana $ben; do add_user $user; done
trap 'cleanup; volume_remove' EXIT
volume_create samba nfsv4 >/dev/null
volume_mount --bypass-traverse "$(id -u $ana)" >/dev/null
traverse="$mnt/share"
for directory in "$share" "$traverse"; do
    mkdir "$directory"
    nfs4_setfacl -s A:fd:OWNER@:rwaDdxtTnNcCoy,A:fdg:GROUP@:rxtncy,A:fd:EVERYONE@:rwaDxtTnNcCy "$directory"
done

start_server -e "s|@SHARE@|$share|" -e "s|@TRAVERSE@|$traverse|" "$here/smb.conf"

smb() { # USER COMMANDS
    ask share "$1" "$2"
}
acl() { # USER PATH OPTION...
    local user=$1 path=$2
    shift 2
    smbcacls --configfile="$state/smb.conf" "//$address/share" "$path" --user="$user%pw" "$@" 2>&1
}
as() { # USER COMMAND...
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups -- "$@"
}
passed=0 failed=0 skipped=0
check() { # WHAT COMMAND...
    local what=$1
    shift
    if answer=$("$@" 2>&1); then
        passed=$((passed + 1))
    else
        say "FAILED: $what"
        printf '%s\n' "$answer" | tail -n 5
        failed=$((failed + 1))
    fi
}
refused() { # COMMAND...: it has to fail for want of a right, and by nothing else
    local answer
    if answer=$(LC_ALL=C "$@" 2>&1) && [[ $answer != *NT_STATUS_* ]]; then
        echo "it was not refused: $answer"
        return 1
    fi
    [[ $answer == *NT_STATUS_ACCESS_DENIED* || $answer == *"Permission denied"* || $answer == *"not permitted"* ]] || {
        echo "refused otherwise: $answer"
        return 1
    }
}
granted() { # COMMAND...
    local answer
    answer=$("$@" 2>&1) && [[ $answer != *NT_STATUS_* ]] || {
        echo "$answer"
        return 1
    }
}

echo words >"$state/file"
check "a directory and files, made through SMB" granted smb $ana "mkdir d; put $state/file d/f; put $state/file d/g; put $state/file d/h"
check "and there for the mount, with their owner" test "$(stat -c '%U %s' "$share/d/f")" = "$ana 6"
check "a file of another user is read" granted smb $ben "get d/f /dev/null"

check "an ACL set through SMB" granted acl $ana d/f --add "ACL:$ben:DENIED/0x0/R"
check "is an entry on the mount" grep -q "^D::$(id -u $ben):r" <(nfs4_getfacl "$share/d/f")
check "which holds there" refused as $ben cat "$share/d/f"
check "and through SMB" refused smb $ben "get d/f /dev/null"
check "taken back through SMB" granted acl $ana d/f --delete "ACL:$ben:DENIED/0x0/R"
check "the file is read on the mount" granted as $ben cat "$share/d/f"

check "an ACL set on the mount" nfs4_setfacl -a "D::$(id -u $ben):w" "$share/d/g"
check "is shown through SMB" grep -q "ACL:.*$ben:DENIED" <(acl $ana d/g)
check "and holds there" refused smb $ben "put $state/file d/g"
check "for that right only" granted smb $ben "get d/g /dev/null"

check "who may neither write to the directory nor own the file" nfs4_setfacl -s A:fd:OWNER@:rwaDdxtTnNcCoy,A:fd:EVERYONE@:rxtncy "$share/d"
check "does not delete it" refused smb $ben "del d/h"
check "until the file's own ACL lets him, through SMB" granted acl $ana d/h --add "ACL:$ben:ALLOWED/0x0/D"
check "and then does" granted smb $ben "del d/h"
check "so that it is gone" test ! -e "$share/d/h"

check "an ACL to be inherited, set through SMB" granted acl $ana d --add "ACL:$ben:ALLOWED/OI|CI/FULL"
check "a file made on the mount" as $ana touch "$share/d/new"
check "has it" grep -q "^A:.*:$(id -u $ben):rwa" <(nfs4_getfacl "$share/d/new")
check "and a file made through SMB too" granted smb $ana "put $state/file d/newer"
check "so that the other writes to it on the mount" granted as $ben sh -c "echo more >>'$share/d/newer'"
check "and through SMB" granted smb $ben "put $state/file d/new"

# smbtorture, a test at a time and in an empty share: what one leaves behind is another's failure.
while read -r test expected reason; do
    case $test in smb2.*) ;; *) continue ;; esac
    expected=${expected%:} name=share
    if [ "$test" != "${test%@*}" ]; then name=${test#*@}; fi
    rm -rf {"$share","$traverse"}/{smb2-*,torture*}
    found=$({ timeout 300 smbtorture --configfile="$state/smb.conf" "//$address/$name" --user="$ana%pw" "${test%@*}" 2>&1 || true; } |
        sed -n 's/^\(success\|failure\|error\|skip\): .*/\1/p' | tail -n 1)
    if [ "$found" != "$expected" ]; then
        say "FAILED: $test: ${found:-no result}, expected $expected"
        failed=$((failed + 1))
    elif [ "$expected" = success ]; then
        passed=$((passed + 1))
    else
        skip "samba $test" "$expected: $reason"
        skipped=$((skipped + 1))
    fi
done <"$here/torture.txt"
print_counts $passed $failed $skipped
[ "$failed" -eq 0 ]
