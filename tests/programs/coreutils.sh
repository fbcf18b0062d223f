#!/bin/bash
# cp, dd, truncate, sort, find and xargs; results are compared with the same operations on another file
# system.
#
#   tests/programs/coreutils.sh DIRECTORY SCRATCH
set -euo pipefail
cd "$1"
scratch=$2

# Incompressible bytes, the same in every run.
bytes() { # COUNT
    openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 -nosalt </dev/zero 2>/dev/null | head -c "$1" || true
}
command -v openssl >/dev/null || { echo "openssl" && exit 77; }
bytes 20000000 >"$scratch/data"

cp "$scratch/data" data
cmp "$scratch/data" data
cp --reflink=auto data copy
cp --sparse=always data sparse
cp --preserve=all --link data linked
for file in copy sparse linked; do cmp "$scratch/data" "$file"; done
test "$(stat -c %h data)" = 2
truncate -s 30000000 copy && cp --sparse=always copy holes && cmp copy holes
head -c 20000000 holes | cmp - "$scratch/data"

dd if="$scratch/data" of=synced bs=64k conv=fsync status=none
dd if=synced of=direct bs=4096 count=500 iflag=direct oflag=direct status=none
head -c $((4096 * 500)) "$scratch/data" | cmp - direct
dd if="$scratch/data" of=synced bs=1000 seek=5 skip=7 count=11 conv=notrunc,fdatasync status=none
cp "$scratch/data" "$scratch/synced"
dd if="$scratch/data" of="$scratch/synced" bs=1000 seek=5 skip=7 count=11 conv=notrunc status=none
cmp synced "$scratch/synced"

for size in 10 4096 19999999 0 5000000; do
    truncate -s $size data
    truncate -s $size "$scratch/data.cut"
done
test "$(stat -c %s data)" = 5000000
cmp data "$scratch/data.cut"
test "$(stat -c %s linked)" = 5000000

# Runs of 1 MiB, so that sort writes about 20 temporary files to the mount and merges them.
mkdir temporary
seq 2000000 | awk '{ print ($1 * 7919) % 2000003 }' >numbers
sort --numeric-sort --buffer-size=1M --temporary-directory=temporary --output=sorted numbers
sort --numeric-sort --check sorted
test "$(wc -l <sorted)" = 2000000
sort --numeric-sort --output=numbers numbers
cmp sorted numbers
rmdir temporary

mkdir tree
(cd tree && seq -f 'd%g' 20 | xargs mkdir && for d in d*; do seq -f "$d/file %g" 50 | tr '\n' '\0' | xargs -0 touch; done)
test "$(find tree -type f -print0 | xargs -0 -n 7 -P 4 stat -c %n | wc -l)" = 1000
find tree -type f -name '*7' -print0 | xargs -0 rm
test "$(find tree -type f | wc -l)" = 900
find tree -type f -newer sorted -exec sh -c 'for f; do echo "$f" >"$f"; done' sh {} +
test "$(find tree -type f -size +0 | wc -l)" = 900
tail -f numbers >/dev/null &
tail=$!
echo 1 >>numbers
kill $tail
