#!/bin/bash
# CPython's own tests that use files, with their temporary files on the mount.
#
#   tests/programs/cpython.sh DIRECTORY SCRATCH
set -euo pipefail
command -v python3 >/dev/null || { echo "python3" && exit 77; }
python3 -c 'import test.test_os, test.libregrtest' 2>/dev/null || { echo "the test package of python3 (Debian: libpython3.11-testsuite)" && exit 77; }
tests=(test_os test_posix test_shutil test_tempfile test_fileio test_mmap test_zipfile test_file test_glob test_stat
    test_filecmp test_genericpath test_posixpath)
[ -z "${LONG:-}" ] || tests+=(test_fcntl test_pathlib test_largefile test_bufio test_fileinput test_mailbox test_tarfile
    test_io test_dbm test_dbm_dumb test_shelve test_sqlite3 test_zipapp test_import test_netrc
    test_compileall test_py_compile test_logging)
cd "$1"
export TMPDIR=$1
# -w runs failed tests again, alone, so that time limits that were exceeded under load do not count.
python3 -m test --tempdir "$1" -j2 -w --timeout 600 "${tests[@]}" 2>&1
