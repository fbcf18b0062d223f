#!/bin/bash
# fio writes blocks that say what and where they are, and reads them back: past the page cache and through mappings.
# Only with --long.
#
#   tests/programs/fio.sh DIRECTORY SCRATCH
set -euo pipefail
[ -n "${LONG:-}" ] || { echo "takes its time: only with --long" && exit 77; }
command -v fio >/dev/null || { echo "there is no fio (Debian: fio)" && exit 77; }
cd "$1"
verify() { # NAME OPTION...
    local name=$1
    shift
    fio --name="$name" --filename="$name" --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
        --randrepeat=1 --group_reporting --output-format=terse "$@" >/dev/null
    echo "$name: ok"
    rm -f "$name"
}
verify direct-random --ioengine=psync --direct=1 --rw=randwrite --bs=4k --size=128m
verify direct-mixed --ioengine=psync --direct=1 --rw=randrw --bsrange=4k-256k --blockalign=4k --size=128m
verify direct-sequential --ioengine=psync --direct=1 --rw=write --bs=1m --size=512m
verify mmap-random --ioengine=mmap --rw=randwrite --bs=4k --size=64m
verify mmap-sequential --ioengine=mmap --rw=write --bs=64k --size=128m
verify buffered-random --ioengine=psync --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --size=64m --fsync=500
