"""Four processes move amounts between accounts, in transactions; the total must not change.

python3 sqlite.py DATABASE DELETE|TRUNCATE|WAL ROUNDS
"""

import multiprocessing
import random
import sqlite3
import sys

WRITERS = 4
ACCOUNTS = 100


def connect(path):
    return sqlite3.connect(path, timeout=120, isolation_level=None)


def write(path, writer, rounds):
    draw = random.Random(writer)
    database = connect(path)
    for number in range(rounds):
        database.execute("BEGIN IMMEDIATE")
        source, target = draw.sample(range(ACCOUNTS), 2)
        database.execute("UPDATE account SET amount = amount - 1 WHERE id = ?", (source,))
        database.execute("UPDATE account SET amount = amount + 1 WHERE id = ?", (target,))
        note = "x" * draw.randrange(3000)
        database.execute("INSERT INTO done VALUES (?, ?, ?)", (writer, number, note))
        database.execute("ROLLBACK" if draw.random() < 0.1 and number + 1 < rounds else "COMMIT")
        if draw.random() < 0.2:
            total, = database.execute("SELECT sum(amount) FROM account").fetchone()
            assert total == ACCOUNTS * 100, total
    database.close()


def main(path, mode, rounds):
    database = connect(path)
    answer, = database.execute(f"PRAGMA journal_mode = {mode}").fetchone()
    assert answer.upper() == mode, answer
    database.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, amount INTEGER)")
    database.execute("CREATE TABLE done (writer INTEGER, number INTEGER, note TEXT, PRIMARY KEY (writer, number))")
    database.executemany("INSERT INTO account VALUES (?, 100)", [(id,) for id in range(ACCOUNTS)])
    database.close()

    writers = [multiprocessing.Process(target=write, args=(path, writer, rounds)) for writer in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(writer.exitcode == 0 for writer in writers), [writer.exitcode for writer in writers]

    database = connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    total, = database.execute("SELECT sum(amount) FROM account").fetchone()
    assert total == ACCOUNTS * 100, total
    last = database.execute("SELECT max(number) FROM done GROUP BY writer").fetchall()
    assert last == [(rounds - 1,)] * WRITERS, last
    database.execute("VACUUM")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
