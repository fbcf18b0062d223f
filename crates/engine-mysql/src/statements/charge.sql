-- Adds the rows ?1, of which each is the key of a quota, inodes and blocks, to what these quotas count. A quota that
-- does not exist is created.

INSERT INTO `@quota` (kind, number, inodes, blocks) VALUES ?1
ON DUPLICATE KEY UPDATE inodes = inodes + VALUES(inodes), blocks = blocks + VALUES(blocks);
