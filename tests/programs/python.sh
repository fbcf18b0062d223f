#!/bin/bash
# Python's library is copied onto the mount, compiled and zipped there; a mapped file is shared by two
# processes.
#
#   tests/programs/python.sh DIRECTORY SCRATCH
set -euo pipefail
cd "$1"
command -v python3 >/dev/null || { echo "python3" && exit 77; }
library=$(python3 -c 'import os, json; print(os.path.dirname(os.path.dirname(json.__file__)))')
mkdir library
for part in json email http asyncio unittest xml logging importlib concurrent; do
    cp -r "$library/$part" library/
done
find library -name __pycache__ -prune -exec rm -r {} +
python3 -m compileall -q -j 2 library
PYTHONPATH=library python3 -c 'import json, sys; assert json.__file__.startswith("'"$1"'") or "library" in json.__file__'
python3 -m zipfile -c library.zip library
python3 -m zipfile -t library.zip
python3 -m zipfile -e library.zip unpacked
diff -r library unpacked/library
python3 - <<'END'
import mmap
import os

size = 3_000_000
with open("mapped", "wb+") as file:
    file.truncate(size)
    shared = mmap.mmap(file.fileno(), size)
    # The parent and read(2) see what a child stores through the mapping.
    child = os.fork()
    if child == 0:
        for at in range(0, size, 4099):
            shared[at] = at % 251
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    expected = bytearray(size)
    expected[::4099] = bytes(at % 251 for at in range(0, size, 4099))
    assert shared[:] == bytes(expected)
    assert os.pread(file.fileno(), size, 0) == bytes(expected)
    # The mapping shows what write(2) wrote.
    os.pwrite(file.fileno(), b"written", 1_234_567)
    expected[1_234_567:1_234_574] = b"written"
    assert shared[:] == bytes(expected)
    # A private mapping does not change the file.
    private = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    private[:5] = b"mine!"
    shared.flush()
    shared.close()
    private.close()
with open("mapped", "rb") as file:
    assert file.read() == bytes(expected)
os.rename("mapped", "renamed")
with open("renamed", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
    os.unlink("renamed")
    assert seen[:] == bytes(expected)
END
