-- Adds to what quotas count. Each of the rows ?1 has the key of a quota, inodes and blocks. A quota that does not exist
-- is created.

INSERT INTO `@quota` (kind, number, inodes, blocks) VALUES ?1
ON DUPLICATE KEY UPDATE inodes = inodes + VALUES(inodes), blocks = blocks + VALUES(blocks);
