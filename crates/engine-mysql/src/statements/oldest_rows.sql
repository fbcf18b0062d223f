-- Finds the ?3 oldest rows of chunk ?2 of inode ?1: sets @oldest_rows to their number, and @oldest_seq to the
-- sequence number of the last one.

SELECT COUNT(*), COALESCE(MAX(seq), 0) INTO @oldest_rows, @oldest_seq
FROM (SELECT seq FROM `@slice` WHERE ino = ?1 AND chunk = ?2 ORDER BY seq LIMIT ?3) AS oldest;
