-- ?1 inodes and ?2 blocks are added to one of the rows of the usage, the connection's own as a rule, so that nobody waits for
-- another there.

UPDATE `@usage` SET inodes = inodes + ?1, blocks = blocks + ?2 WHERE slot = CONNECTION_ID() % 64;
