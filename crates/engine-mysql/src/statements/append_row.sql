-- Appends a row to chunk ?4 of inode ?3, if the inode exists, with the values ?2 in the columns ?1.

INSERT INTO `@slice` (?1, seq) SELECT ?2, COALESCE((SELECT MAX(seq) FROM `@slice` WHERE ino = ?3 AND chunk = ?4), 0) + 1
FROM `@node` WHERE ino = ?3;
