-- Adds to the counters of quotas. Each of the rows ?1 has the key of a quota, inodes and blocks. A quota that does not exist
-- is created. A sum that a BIGINT cannot hold becomes the nearest number that it can.

INSERT INTO `@quota` (kind, number, inodes, blocks) VALUES ?1
ON DUPLICATE KEY UPDATE
inodes = LEAST(GREATEST(CAST(inodes AS DECIMAL(20)) + VALUES(inodes), -9223372036854775808), 9223372036854775807),
blocks = LEAST(GREATEST(CAST(blocks AS DECIMAL(20)) + VALUES(blocks), -9223372036854775808), 9223372036854775807);
