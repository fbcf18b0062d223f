-- Measures the usage of the inodes ?1: their number (@inodes_before), and their blocks (@blocks_before), of
-- file data and of extended attributes.

SELECT COUNT(*), COALESCE(SUM(xattr_blocks + IF(kind = 8, (size + 4095) DIV 4096, 0)), 0)
INTO @inodes_before, @blocks_before FROM `@node` WHERE ino IN (?1);
