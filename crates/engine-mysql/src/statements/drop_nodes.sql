-- Inodes (?1) go, and what they have but for their rows of chunks.

DELETE FROM `@xattr` WHERE ino IN (?1);
DELETE FROM `@symlink` WHERE ino IN (?1);
DELETE FROM `@lock` WHERE ino IN (?1);
DELETE FROM `@node` WHERE ino IN (?1);
