"""A process that executes commands, for tests of several mounts.

Each line of standard input is an expression; the reply is a line `ok VALUE` or `err ERRNO`.
"""

import errno
import fcntl
import os
import signal
import sqlite3
import struct
import sys
import time

SETLK, SETLKW, GETLK = fcntl.F_SETLK, fcntl.F_SETLKW, fcntl.F_GETLK
OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
SH, EX, UN, NB = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_NB
FLOCK = "hhqqi"
# errno 35 has two names in Python (EDEADLOCK too).
errno.errorcode[errno.EDEADLK] = "EDEADLK"
files = {}


def opened(name, path, flags=os.O_RDWR | os.O_CREAT):
    files[name] = os.open(path, flags, 0o666)


def closed(name):
    os.close(files.pop(name))


def lk(name, command, kind, start, length):
    """fcntl(2); GETLK returns the conflicting lock."""
    found = fcntl.fcntl(files[name], command, struct.pack(FLOCK, kind, 0, start, length, 0))
    if command in (GETLK, OFD_GETLK):
        kind, _, start, length, pid = struct.unpack(FLOCK, found[: struct.calcsize(FLOCK)])
        return "free" if kind == U else f"{'rw'[kind == W]} {start} {length} {pid}"


def fl(name, how):
    fcntl.flock(files[name], how)


def put(name, at, text):
    return os.pwrite(files[name], text.encode(), at)


def get(name, at, length):
    return os.pread(files[name], length, at).decode()


def append(path, tag, count, width):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for i in range(count):
        record = f"{tag} {i} ".ljust(width - 1, "x") + "\n"
        assert os.write(fd, record.encode()) == width
    os.close(fd)


def create(paths, flags):
    """Returns the result of each create: 1, or the errno."""
    said = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o666))
            said.append("1")
        except OSError as error:
            said.append(errno.errorcode[error.errno])
    return " ".join(said)


def count_under_lock(path, turns, kind):
    """Increments a number in a file that stays open, under a lock, without fsync."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    for _ in range(turns):
        fcntl.lockf(fd, EX, 20, 0) if kind == "posix" else fcntl.flock(fd, EX)
        number = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, b"%020d" % (number + 1), 0)
        fcntl.lockf(fd, UN, 20, 0) if kind == "posix" else fcntl.flock(fd, UN)
    os.close(fd)


def bank(path, turns, make=False):
    """Increments rows of an SQLite database with a rollback journal."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    if make:
        db.execute("PRAGMA journal_mode = delete")
        db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, value INTEGER, filler BLOB)")
        db.executemany("INSERT INTO account VALUES (?, 0, randomblob(600))", [(i,) for i in range(20)])
    for turn in range(turns):
        db.execute("BEGIN IMMEDIATE")
        (value,) = db.execute("SELECT value FROM account WHERE id = ?", (turn % 20,)).fetchone()
        db.execute("UPDATE account SET value = ? WHERE id = ?", (value + 1, turn % 20))
        db.execute("COMMIT")
    db.close()


def query(path, sql):
    db = sqlite3.connect(path, timeout=60)
    rows = db.execute(sql).fetchall()
    db.close()
    return " ".join(str(value) for row in rows for value in row)


def storm(root, seed, steps):
    """Creates, renames and removes names that other agents change too; returns the errnos that occurred."""
    import random

    random.seed(seed)
    met = set()
    path = lambda: f"{root}/d{random.randrange(3)}/" + random.choice("abcdef")
    for _ in range(steps):
        what = random.randrange(8)
        try:
            if what < 2:
                with open(path(), "w") as file:
                    file.write("x" * random.randrange(9000))
            elif what == 2:
                os.mkdir(path())
            elif what == 3:
                os.unlink(path())
            elif what == 4:
                os.rmdir(path())
            elif what == 5:
                os.link(path(), path())
            else:
                os.rename(path(), path())
        except OSError as error:
            met.add(errno.errorcode[error.errno])
    return " ".join(sorted(met))


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


signal.signal(signal.SIGUSR1, interrupt)
for line in sys.stdin:
    try:
        value = eval(line)
        said = f"ok {'' if value is None else value}"
    except OSError as error:
        said = f"err {errno.errorcode[error.errno]}"
    except Interrupted:
        said = "err EINTR"
    except Exception as error:
        said = f"err {error!r}"
    print(said, flush=True)
