-- As add_usage.sql, and in addition what inodes (?3) have become more than measure.sql found.

UPDATE `@usage` JOIN (SELECT COUNT(*) AS i, COALESCE(SUM(IF(kind = 8, (size + 4095) DIV 4096, 0)), 0) AS b FROM `@node` WHERE ino IN (?3)) AS now
SET inodes = inodes + now.i - @i + ?1, blocks = blocks + now.b - @b + ?2 WHERE slot = CONNECTION_ID() % 64;
