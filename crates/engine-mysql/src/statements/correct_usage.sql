-- Like add_usage.sql, but the sum of all rows does not fall below 0.

UPDATE `@usage` JOIN (SELECT SUM(inodes) AS i, SUM(blocks) AS b FROM `@usage`) AS now
SET inodes = inodes + GREATEST(?1, -now.i), blocks = blocks + GREATEST(?2, -now.b) WHERE slot = CONNECTION_ID() % 64;
