-- Measures the usage of the inodes ?1: their number (@i), and their blocks (@b), of file data and of extended attributes.

SELECT COUNT(*), COALESCE(SUM(xattr_blocks + IF(kind = 8, (size + 4095) DIV 4096, 0)), 0) INTO @i, @b FROM `@node` WHERE ino IN (?1);
