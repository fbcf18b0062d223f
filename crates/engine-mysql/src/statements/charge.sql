-- Adds to the counters of quotas. Each of the rows ?1 has the key of a quota, a number of inodes and a number
-- of blocks. A quota that does not exist is created. A sum outside the range of a BIGINT becomes the nearest
-- BIGINT.

INSERT INTO `@quota` (kind, number, inodes, blocks) VALUES ?1
ON DUPLICATE KEY UPDATE
inodes = LEAST(GREATEST(CAST(inodes AS DECIMAL(20)) + VALUES(inodes), -9223372036854775808), 9223372036854775807),
blocks = LEAST(GREATEST(CAST(blocks AS DECIMAL(20)) + VALUES(blocks), -9223372036854775808), 9223372036854775807);
