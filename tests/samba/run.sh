#!/bin/bash
# Samba on a mount of a volume with NFSv4 ACLs: a real smbd, and real smbclient, smbcacls and smbtorture.
#
#   LIMEN=PROGRAM tests/samba/run.sh MOUNTPOINT
#
# ACLs set through SMB must hold for programs on the mount, and ACLs set on the mount must hold through SMB.
# Then smbtorture runs: torture.txt has the expected result of each test, with the reason for each expected
# failure, which counts as skipped. Tests whose user must be able to pass any directory run on a second volume
# that this script creates. Requires root. The server has a private network; at the end it is stopped and
# everything is removed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
# shellcheck source=scripts/volume.sh
. "$top/scripts/volume.sh"

if [ $# -ne 1 ] || [ ! -d "$1" ]; then die "usage: run.sh MOUNTPOINT"; fi
need_root
limen=${LIMEN:-}
[ -x "$limen" ] || die "set LIMEN to the limen that mounts the second volume"
# shellcheck source=tests/samba/server.sh
. "$(dirname "$0")/server.sh"
ana=limen-smb-ana ben=limen-smb-ben
share="$(cd "$1" && pwd)/share"

for program in smbd smbclient smbcacls smbtorture smbpasswd nfs4_setfacl; do
    command -v $program >/dev/null || die "$program is not installed: run scripts/install-deps.sh test"
done
for user in $ana $ben; do add_user $user; done
staff=$next_id
echo "limen-smb-staff:x:$staff:$ben" >>"$state/etc/group"
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
refused() { # COMMAND...: must fail with a permission error
    local answer
    if answer=$(LC_ALL=C "$@" 2>&1) && [[ $answer != *NT_STATUS_* ]]; then
        echo "not refused: $answer"
        return 1
    fi
    [[ $answer == *NT_STATUS_ACCESS_DENIED* || $answer == *"Permission denied"* || $answer == *"not permitted"* ]] || {
        echo "failed with another error: $answer"
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
check "create a directory and files through SMB" granted smb $ana "mkdir d; put $state/file d/f; put $state/file d/g; put $state/file d/h"
check "the mount shows them with their owner" test "$(stat -c '%U %s' "$share/d/f")" = "$ana 6"
check "another user reads a file" granted smb $ben "get d/f /dev/null"

check "set an ACL through SMB" granted acl $ana d/f --add "ACL:$ben:DENIED/0x0/R"
check "the mount shows the entry" grep -q "^D::$(id -u $ben):r" <(nfs4_getfacl "$share/d/f")
check "the mount enforces the entry" refused as $ben cat "$share/d/f"
check "SMB enforces the entry" refused smb $ben "get d/f /dev/null"
check "remove the entry through SMB" granted acl $ana d/f --delete "ACL:$ben:DENIED/0x0/R"
check "the file is readable on the mount" granted as $ben cat "$share/d/f"

check "set an ACL on the mount" nfs4_setfacl -a "D::$(id -u $ben):w" "$share/d/g"
check "SMB shows the entry" grep -q "ACL:.*$ben:DENIED" <(acl $ana d/g)
check "SMB enforces the entry" refused smb $ben "put $state/file d/g"
check "other access stays granted" granted smb $ben "get d/g /dev/null"

check "remove permission to delete from the directory" nfs4_setfacl -s A:fd:OWNER@:rwaDdxtTnNcCoy,A:fd:EVERYONE@:rxtncy "$share/d"
check "deletion is refused" refused smb $ben "del d/h"
check "grant DELETE on the file through SMB" granted acl $ana d/h --add "ACL:$ben:ALLOWED/0x0/D"
check "deletion succeeds" granted smb $ben "del d/h"
check "the file is gone" test ! -e "$share/d/h"

check "set an inheritable ACL through SMB" granted acl $ana d --add "ACL:$ben:ALLOWED/OI|CI/FULL"
check "create a file on the mount" as $ana touch "$share/d/new"
check "the file has inherited the entry" grep -q "^A:.*:$(id -u $ben):rwa" <(nfs4_getfacl "$share/d/new")
check "create a file through SMB" granted smb $ana "put $state/file d/newer"
check "the other user writes to it on the mount" granted as $ben sh -c "echo more >>'$share/d/newer'"
check "the other user writes through SMB" granted smb $ben "put $state/file d/new"

# An entry for a SID of a domain applies to the user that a rule maps it to, on the mount and through SMB. The
# mount reads the rules every five seconds.
sid=S-1-5-21-7-8-9
check "map a SID to the other user" granted "$limen" sid set "$share" $sid --range "$(id -u $ben)-$(id -u $ben)" --first-rid 1105
check "set an entry for the SID" nfs4_setfacl -a "D::$sid-1105:r" "$share/d/f"
for _ in $(seq 60); do
    as $ben cat "$share/d/f" >/dev/null 2>&1 || break
    sleep 0.5
done
check "the mount enforces the entry for the SID" refused as $ben cat "$share/d/f"
check "SMB enforces the entry for the SID" refused smb $ben "get d/f /dev/null"
check "explain names the SID" grep -q "D::$sid-1105:r" <("$limen" access explain "$share/d/f" --user "$(id -u $ben)" --groups "$(id -g $ben)" || true)
check "remove the entry for the SID" nfs4_setfacl -x "D::$sid-1105:r" "$share/d/f"
check "the other user reads the file again" granted smb $ben "get d/f /dev/null"

# An entry that allows a group of the domain grants access to the members of the group that a rule maps it to.
check "map a SID to a group of the other user" granted "$limen" sid set "$share" $sid --range "$staff-$staff" --first-rid 2105
check "only the owner may read" nfs4_setfacl -s A::OWNER@:rwatTnNcCoy "$share/d/f"
check "the mount refuses others" refused as $ben cat "$share/d/f"
check "SMB refuses others" refused smb $ben "get d/f /dev/null"
check "allow the group of the domain" nfs4_setfacl -a "A:g:$sid-2105:rtncy" "$share/d/f"
for _ in $(seq 60); do
    if as $ben cat "$share/d/f" >/dev/null 2>&1; then break; fi
    sleep 0.5
done
check "the mount grants it to a member of the group" granted as $ben cat "$share/d/f"
check "SMB grants it to a member of the group" granted smb $ben "get d/f /dev/null"
check "the group grants no more than its entry" refused smb $ben "put $state/file d/f"
check "change another entry through SMB" granted acl $ana d/f --add "ACL:$ben:ALLOWED/0x0/D"
check "the entry still names the SID" grep -q "^A:.*$sid-2105:r" <(nfs4_getfacl "$share/d/f")
check "explain names the group's SID" grep -q "A:g:$sid-2105:r" <("$limen" access explain "$share/d/f" --user "$(id -u $ben)" --groups "$(id -g $ben),$staff")

# Run each test of smbtorture alone and in an empty share, because files left by one test make another fail.
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
