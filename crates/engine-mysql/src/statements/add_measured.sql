-- Like add_usage.sql. Also adds the difference between the current usage of the inodes ?3 and that found by
-- measure.sql.

UPDATE `@usage` JOIN (SELECT COUNT(*) AS i, COALESCE(SUM(xattr_blocks + IF(kind = 8, (size + 4095) DIV 4096, 0)), 0) AS b FROM `@node` WHERE ino IN (?3)) AS now
SET inodes = inodes + now.i - @inodes_before + ?1, blocks = blocks + now.b - @blocks_before + ?2 WHERE slot = CONNECTION_ID() % 64;
