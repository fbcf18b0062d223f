-- What inodes (?1) are to the usage: how many (@i), and the blocks (@b) that the bytes of files fill.

SELECT COUNT(*), COALESCE(SUM(IF(kind = 8, (size + 4095) DIV 4096, 0)), 0) INTO @i, @b FROM `@node` WHERE ino IN (?1);
