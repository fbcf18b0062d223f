#!/bin/bash
# Measures `limen mdtest` on database servers (servers.sh), in turns with each server's own load tool. The
# load tool calls a function that inserts two rows and updates a third, sixteen times per request. Requires
# root.
#
#   scripts/mdtest-servers.sh [LIMEN [ROUNDS [ENGINE ...]]]
#
# ENGINE is redis, postgres, mariadb or etcd (etcd has no load tool). Next to other work, run this script with
# `nice -n -10`.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

limen=$(readlink -f "${1:-$top/target/release/limen}")
rounds=${2:-3}
engines=("${@:3}")
[ ${#engines[@]} -gt 0 ] || engines=(redis postgres mariadb etcd)
[ -x "$limen" ] || die "$limen does not exist; build it: cargo build --release --package cli"
[ "$(id -u)" = 0 ] || die "must run as root, because PostgreSQL runs as its own user"

# shellcheck source=scripts/servers.sh
. "$top/scripts/servers.sh"

# Creates the tables and functions that the server's load tool calls.
prepare() {
    case $1 in
    redis)
        script=$(redis-cli -p $port script load "redis.call('set', KEYS[1], ARGV[1]) redis.call('set', KEYS[2], ARGV[1])
            redis.call('hincrby', KEYS[3], 'n', 1) return 1")
        ;;
    postgres)
        "${psql[@]}" <<'SQL'
CREATE TABLE pa (ino bigint PRIMARY KEY, mode bigint, size bigint, mtime bigint);
CREATE TABLE pb (parent bigint, name bytea, ino bigint, PRIMARY KEY (parent, name));
CREATE TABLE pc (ino bigint PRIMARY KEY, n bigint);
INSERT INTO pc VALUES (1, 0);
CREATE FUNCTION probe(i bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO pa VALUES (i, 420, 0, 1);
    INSERT INTO pb VALUES (1, convert_to('file.' || i, 'UTF8'), i);
    UPDATE pc SET n = n + 1 WHERE ino = 1;
END $$;
CREATE FUNCTION probe_16(first bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO pa SELECT first + i, 420, 0, 1 FROM generate_series(0, 15) i;
    INSERT INTO pb SELECT 1, convert_to('file.' || first + i, 'UTF8'), first + i FROM generate_series(0, 15) i;
    UPDATE pc SET n = n + 16 WHERE ino = 1;
END $$;
SQL
        local first='\set first random(1, 200000000000000)'
        printf '%s\nSELECT probe(:first::bigint * 16 + i) FROM generate_series(0, 15) i;\n' "$first" >"$work/each.sql"
        printf '%s\nSELECT probe_16(:first::bigint * 16);\n' "$first" >"$work/sets.sql"
        ;;
    mariadb)
        "${mariadb[@]}" limen <<'SQL'
CREATE TABLE pa (ino bigint PRIMARY KEY, mode bigint, size bigint, mtime bigint);
CREATE TABLE pb (parent bigint, name varbinary(255), ino bigint, PRIMARY KEY (parent, name));
CREATE TABLE pc (ino bigint PRIMARY KEY, n bigint);
INSERT INTO pc VALUES (1, 0);
DELIMITER //
CREATE PROCEDURE probe(i bigint) BEGIN
    INSERT INTO pa VALUES (i, 420, 0, 1);
    INSERT INTO pb VALUES (1, CONCAT('file.', i), i);
    UPDATE pc SET n = n + 1 WHERE ino = 1;
END //
CREATE PROCEDURE each_16() BEGIN
    DECLARE first bigint DEFAULT FLOOR(RAND() * 200000000000000) * 16;
    DECLARE i int DEFAULT 0;
    START TRANSACTION;
    WHILE i < 16 DO CALL probe(first + i); SET i = i + 1; END WHILE;
    COMMIT;
END //
CREATE PROCEDURE sets_16() BEGIN
    DECLARE first bigint DEFAULT FLOOR(RAND() * 200000000000000) * 16;
    START TRANSACTION;
    INSERT INTO pa SELECT first + seq, 420, 0, 1 FROM seq_0_to_15;
    INSERT INTO pb SELECT 1, CONCAT('file.', first + seq), first + seq FROM seq_0_to_15;
    UPDATE pc SET n = n + 16 WHERE ino = 1;
    COMMIT;
END //
SQL
        ;;
    esac
}

# Runs the server's load tool with two connections, like the commits of one client.
probe() {
    case $1 in
    redis)
        redis-benchmark -p $port -c 2 -P 16 -n 60000 -r 100000000 -q evalsha "$script" 3 b:a:__rand_int__ b:b:__rand_int__ \
            b:c:1 0123456789012345678901234567890123456789012345678901234567890123 | tr '\r' '\n' |
            awk '/requests per second/ { sub(/.*: /, ""); printf "function, 16 per request: %d per second\n", $1 }'
        ;;
    postgres)
        for how in each sets; do
            pgbench -n -M prepared -h 127.0.0.1 -p $port -U limen -c 2 -T 4 -f "$work/$how.sql" postgres 2>/dev/null |
                awk -v how="$how" '/^tps/ { printf "function (%s), 16 per request: %d per second\n", how, $3 * 16 }'
        done
        ;;
    mariadb)
        for how in each sets; do
            mysqlslap --no-defaults -h 127.0.0.1 -P $port -u root --create-schema=limen --concurrency=2 \
                --number-of-queries=2400 --query="CALL ${how}_16()" |
                awk -v how="$how" '/Average number of seconds/ {
                    printf "function (%s), 16 per request: %d per second\n", how, 2400 * 16 / $(NF - 1) }'
        done
        ;;
    esac
}

mdtest() {
    local what=$1
    shift
    echo "-- $what: limen mdtest URL /mdtest $*"
    "$limen" mdtest "$url" /mdtest "$@" 2>/dev/null | grep -E '^(operation|mkdir|create|stat|readdirplus|rename|unlink)'
}

for engine in "${engines[@]}"; do
    echo "== $engine"
    server_start "$engine"
    prepare "$engine"
    "$limen" format "$url" mdtest --bucket "$work/$engine/objects" >/dev/null
    for _ in $(seq "$rounds"); do
        mdtest "91 directories, 50 threads" --depth 2 --dirs 9 --files 66 --threads 50
        probe "$engine"
        mdtest "91 directories, one thread" --depth 2 --dirs 9 --files 10 --threads 1
        mdtest "one directory, 100 threads" --depth 0 --files 6000 --threads 100
        mdtest "100 directories, 100 threads" --depth 1 --dirs 99 --files 60 --threads 100 --spread
    done
    server_stop
done
