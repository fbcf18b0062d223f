-- Adds ?1 inodes and ?2 blocks to one row of the usage. Usually no other connection uses that row, so that
-- none waits for another.

UPDATE `@usage` SET inodes = inodes + ?1, blocks = blocks + ?2 WHERE slot = CONNECTION_ID() % 64;
