-- Values ?2 in columns ?1 become the newest row of chunk ?4 of inode ?3, if that is there.

INSERT INTO `@slice` (?1, seq) SELECT ?2, COALESCE((SELECT MAX(seq) FROM `@slice` WHERE ino = ?3 AND chunk = ?4), 0) + 1
FROM `@node` WHERE ino = ?3;
