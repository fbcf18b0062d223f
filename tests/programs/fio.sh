#!/bin/bash
# fio writes blocks that contain a checksum and their position, and reads them back, with O_DIRECT and through
# mappings. With --long, ten times as much.
#
#   tests/programs/fio.sh DIRECTORY SCRATCH
set -euo pipefail
command -v fio >/dev/null || { echo "fio" && exit 77; }
cd "$1"
factor=1
[ -z "${LONG:-}" ] || factor=10
verify() { # NAME MEBIBYTES OPTION...
    local name=$1 size=$(($2 * factor))m
    shift 2
    fio --name="$name" --filename="$name" --size="$size" --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
        --randrepeat=1 --group_reporting --output-format=terse "$@" >/dev/null
    echo "$name: $size ok"
    rm -f "$name"
}
verify direct-random 12 --ioengine=psync --direct=1 --rw=randwrite --bs=4k
verify direct-mixed 12 --ioengine=psync --direct=1 --rw=randrw --bsrange=4k-256k --blockalign=4k
verify direct-sequential 50 --ioengine=psync --direct=1 --rw=write --bs=1m
verify mmap-random 6 --ioengine=mmap --rw=randwrite --bs=4k
verify mmap-sequential 12 --ioengine=mmap --rw=write --bs=64k
verify buffered-random 6 --ioengine=psync --rw=randwrite --bsrange=512-64k --bs_unaligned=1 --fsync=500
