-- Deletes the inodes ?1 and everything that belongs to them, except their rows of chunks.

DELETE FROM `@xattr` WHERE ino IN (?1);
DELETE FROM `@symlink` WHERE ino IN (?1);
DELETE FROM `@lock` WHERE ino IN (?1);
DELETE FROM `@node` WHERE ino IN (?1);
