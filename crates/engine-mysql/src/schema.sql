-- The tables of one volume; @ is the table prefix. A semicolon at the end of a line ends a statement.
--
-- Numbers are unsigned, except times and usage. There are no foreign keys: `limen fsck` finds references to
-- missing rows, and foreign keys would lock the referenced rows in no defined order. Names and contents are
-- bytes, not characters with a collation. Comments are part of the tables, so that `SHOW CREATE TABLE` shows
-- them.

CREATE TABLE IF NOT EXISTS `@node` (
    ino BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    kind TINYINT UNSIGNED NOT NULL COMMENT 'as d_type: 1 fifo, 2 char device, 4 directory, 6 block device, 8 file, 10 symlink, 12 socket',
    mode SMALLINT UNSIGNED NOT NULL COMMENT 'the 12 permission bits',
    uid INT UNSIGNED NOT NULL,
    gid INT UNSIGNED NOT NULL,
    rdev INT UNSIGNED NOT NULL COMMENT 'device number as makedev(3) packs it; 0 unless a device',
    nlink INT UNSIGNED NOT NULL COMMENT 'hard links; for a directory 2 plus its subdirectories',
    size BIGINT UNSIGNED NOT NULL COMMENT 'in bytes',
    atime BIGINT NOT NULL COMMENT 'times are nanoseconds since 1970-01-01 UTC',
    mtime BIGINT NOT NULL,
    ctime BIGINT NOT NULL,
    parent BIGINT UNSIGNED NOT NULL COMMENT 'of a directory, its parent; of the root, itself; else 0',
    access_rev BIGINT UNSIGNED NOT NULL COMMENT 'incremented by each change of mode, owner, group and ACLs',
    xattr_blocks SMALLINT UNSIGNED NOT NULL COMMENT 'sum of GREATEST(1, (LENGTH(value) + 4095) DIV 4096) over its rows in table xattr',
    access_acl BINARY(16) COMMENT 'acl.id, or NULL if mode says everything',
    default_acl BINARY(16) COMMENT 'acl.id that new entries of this directory inherit, or NULL',
    quota BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '2 * quota.number of its directory quota, + 1 if it counts in the quotas of its owner and group'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'an inode';

CREATE TABLE IF NOT EXISTS `@edge` (
    parent BIGINT UNSIGNED NOT NULL COMMENT 'node.ino of the directory',
    name VARBINARY(255) NOT NULL,
    ino BIGINT UNSIGNED NOT NULL COMMENT 'node.ino that the name refers to',
    kind TINYINT UNSIGNED NOT NULL COMMENT 'node.kind of that inode',
    PRIMARY KEY (parent, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a directory entry';

CREATE TABLE IF NOT EXISTS `@slice` (
    ino BIGINT UNSIGNED NOT NULL,
    chunk BIGINT UNSIGNED NOT NULL COMMENT 'position of the chunk in the file',
    seq BIGINT UNSIGNED NOT NULL COMMENT 'order of writing within the chunk',
    pos INT UNSIGNED NOT NULL COMMENT 'first byte, counted from the start of the chunk',
    len INT UNSIGNED NOT NULL COMMENT 'bytes',
    data LONGBLOB COMMENT 'the bytes, if they are few',
    slice BIGINT UNSIGNED COMMENT 'the slice in the object store that contains the bytes; the bytes are zeros if this and data are NULL',
    slice_off INT UNSIGNED COMMENT 'first byte within that slice',
    slice_size INT UNSIGNED COMMENT 'bytes of the whole slice',
    PRIMARY KEY (ino, chunk, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'one write to one chunk of 64 MiB; if slices overlap, the one with the highest seq is valid';

CREATE TABLE IF NOT EXISTS `@xattr` (
    ino BIGINT UNSIGNED NOT NULL,
    name VARBINARY(255) NOT NULL COMMENT 'with its namespace: user.mime_type',
    value MEDIUMBLOB NOT NULL,
    PRIMARY KEY (ino, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'extended attributes other than ACLs';

CREATE TABLE IF NOT EXISTS `@symlink` (
    ino BIGINT UNSIGNED NOT NULL PRIMARY KEY, target BLOB NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'the target of a symbolic link';

CREATE TABLE IF NOT EXISTS `@acl` (
    id BINARY(16) NOT NULL PRIMARY KEY COMMENT 'the hash of its contents', text LONGTEXT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'each distinct ACL once; text begins with ! if the ACL is condemned';

CREATE TABLE IF NOT EXISTS `@setting` (
    name VARBINARY(255) NOT NULL PRIMARY KEY, value LONGBLOB NOT NULL COMMENT 'UTF-8'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a setting of the volume';

CREATE TABLE IF NOT EXISTS `@counter` (
    name VARBINARY(255) NOT NULL PRIMARY KEY, value BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a sequence of numbers; value is the next one to allocate';

CREATE TABLE IF NOT EXISTS `@usage` (
    slot INT UNSIGNED NOT NULL PRIMARY KEY,
    inodes BIGINT NOT NULL COMMENT 'sum over all rows: the number of rows of table node',
    blocks BIGINT NOT NULL COMMENT 'sum over all rows: xattr_blocks of table node, and (size + 4095) DIV 4096 of the regular files in it'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'the usage of the volume is the sum of these rows; each connection changes one of them, to avoid conflicts';

CREATE TABLE IF NOT EXISTS `@session` (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    pid INT UNSIGNED NOT NULL,
    mountpoint TEXT NOT NULL,
    since BIGINT NOT NULL COMMENT 'nanoseconds since 1970-01-01 UTC',
    heartbeat BIGINT NOT NULL,
    pid_namespace BIGINT UNSIGNED NOT NULL COMMENT 'inode of /proc/self/ns/pid; 0 if unknown',
    start_time BIGINT UNSIGNED NOT NULL COMMENT 'of the process, in clock ticks since boot; 0 if unknown',
    first_slice BIGINT UNSIGNED NOT NULL COMMENT 'from this slice on, objects may be stored before their rows',
    boot_id TEXT NOT NULL COMMENT '/proc/sys/kernel/random/boot_id; empty if unknown',
    version TEXT NOT NULL COMMENT 'of limen'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a mounted client';

CREATE TABLE IF NOT EXISTS `@fence` (
    ops BINARY(12) NOT NULL PRIMARY KEY COMMENT 'session and term: the first 12 bytes of the ids of its operations; term 0 is open as long as the session exists'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'an open term; commits lock this row, which a renewal of the session does not change';

CREATE TABLE IF NOT EXISTS `@pinned` (
    ops BINARY(12) NOT NULL PRIMARY KEY COMMENT 'as in table fence'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a term whose rows of table log were not trimmed, because it was open';

CREATE TABLE IF NOT EXISTS `@trimmed` (
    id INT UNSIGNED NOT NULL PRIMARY KEY, upto BIGINT UNSIGNED NOT NULL COMMENT 'log.id'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'up to which row table log was trimmed';

CREATE TABLE IF NOT EXISTS `@orphan` (
    session BIGINT UNSIGNED NOT NULL, ino BIGINT UNSIGNED NOT NULL, PRIMARY KEY (session, ino)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'an inode without a name that a session still has open';

CREATE TABLE IF NOT EXISTS `@lock` (
    ino BIGINT UNSIGNED NOT NULL,
    first BIGINT UNSIGNED NOT NULL COMMENT 'bytes, both included',
    last BIGINT UNSIGNED NOT NULL,
    session BIGINT UNSIGNED NOT NULL COMMENT 'session.id of the mount that holds the lock',
    owner BIGINT UNSIGNED NOT NULL COMMENT 'the number of the owner in the kernel of that mount',
    kind TINYINT UNSIGNED NOT NULL COMMENT '0 fcntl(2), 1 flock(2)',
    exclusive TINYINT UNSIGNED NOT NULL,
    pid INT UNSIGNED NOT NULL,
    PRIMARY KEY (ino, first, last, session, owner, kind)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a lock on a file; rows of one inode never overlap for one owner';

CREATE TABLE IF NOT EXISTS `@lock_wait` (
    session BIGINT UNSIGNED NOT NULL,
    owner BIGINT UNSIGNED NOT NULL,
    kind TINYINT UNSIGNED NOT NULL,
    ino BIGINT UNSIGNED NOT NULL,
    first BIGINT UNSIGNED NOT NULL,
    last BIGINT UNSIGNED NOT NULL,
    exclusive TINYINT UNSIGNED NOT NULL,
    pid INT UNSIGNED NOT NULL,
    PRIMARY KEY (session, owner, kind)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a waiting lock request; columns as in table lock';

CREATE TABLE IF NOT EXISTS `@garbage` (
    slice BIGINT UNSIGNED NOT NULL PRIMARY KEY, size INT UNSIGNED NOT NULL COMMENT 'bytes'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a slice that no file refers to; its objects are to be deleted';

CREATE TABLE IF NOT EXISTS `@shared` (
    slice BIGINT UNSIGNED NOT NULL PRIMARY KEY, extra BIGINT UNSIGNED NOT NULL COMMENT 'the number of rows beyond the first; 0 if one is left'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a slice that more than one row of table slice has referred to';

CREATE TABLE IF NOT EXISTS `@quota` (
    kind TINYINT UNSIGNED NOT NULL COMMENT '0 directory, 1 user, 2 group',
    number BIGINT UNSIGNED NOT NULL COMMENT 'of the directory quota; uid; gid',
    next BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'quota.number of the directory quota around it; 0 if there is none',
    max_inodes BIGINT NOT NULL DEFAULT 9223372036854775807 COMMENT 'hard limits; this number if there is none',
    max_blocks BIGINT NOT NULL DEFAULT 9223372036854775807,
    soft_inodes BIGINT NOT NULL DEFAULT 9223372036854775807 COMMENT 'soft limits',
    soft_blocks BIGINT NOT NULL DEFAULT 9223372036854775807,
    root BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'node.ino of the directory; 0 for a user or group',
    state TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '0 all inodes have it, 1 being given to them, 2 being taken from them',
    inodes BIGINT NOT NULL DEFAULT 0 COMMENT 'used',
    blocks BIGINT NOT NULL DEFAULT 0 COMMENT 'used, of 4096 bytes',
    PRIMARY KEY (kind, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'a limit, and the usage that it limits';

CREATE TABLE IF NOT EXISTS `@log` (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    op_id BINARY(16) NOT NULL COMMENT 'session (8), term (4) and number of the operation',
    at INT UNSIGNED NOT NULL COMMENT 'seconds since 1970-01-01 UTC',
    invalidations LONGBLOB NOT NULL COMMENT 'what it invalidates: n inode, e directory entry, d data, x extended attributes, l locks; each with the inode number in 8 bytes, e also with the length of the name in 1 byte and the name',
    UNIQUE KEY op_id (op_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'the operations of the last minutes and of open terms: for retries, which must not be applied twice, and for other clients';

CREATE TABLE IF NOT EXISTS `@layout` (
    id INT UNSIGNED NOT NULL PRIMARY KEY,
    version INT UNSIGNED NOT NULL,
    epoch BIGINT UNSIGNED NOT NULL COMMENT 'changes when all records are removed; it starts from the time, so that it differs from that of an earlier volume'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'the version of these tables; its row is locked by changes of records that belong to no inode';

INSERT IGNORE INTO `@trimmed` (id, upto) VALUES (0, 0);

-- With so many rows, each connection that writes at the same time usually has a row of its own.
INSERT IGNORE INTO `@usage` (slot, inodes, blocks) VALUES
    (0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (6, 0, 0), (7, 0, 0), (8, 0, 0), (9, 0, 0), (10, 0, 0),
    (11, 0, 0), (12, 0, 0), (13, 0, 0), (14, 0, 0), (15, 0, 0), (16, 0, 0), (17, 0, 0), (18, 0, 0), (19, 0, 0), (20, 0, 0), (21, 0, 0),
    (22, 0, 0), (23, 0, 0), (24, 0, 0), (25, 0, 0), (26, 0, 0), (27, 0, 0), (28, 0, 0), (29, 0, 0), (30, 0, 0), (31, 0, 0), (32, 0, 0),
    (33, 0, 0), (34, 0, 0), (35, 0, 0), (36, 0, 0), (37, 0, 0), (38, 0, 0), (39, 0, 0), (40, 0, 0), (41, 0, 0), (42, 0, 0), (43, 0, 0),
    (44, 0, 0), (45, 0, 0), (46, 0, 0), (47, 0, 0), (48, 0, 0), (49, 0, 0), (50, 0, 0), (51, 0, 0), (52, 0, 0), (53, 0, 0), (54, 0, 0),
    (55, 0, 0), (56, 0, 0), (57, 0, 0), (58, 0, 0), (59, 0, 0), (60, 0, 0), (61, 0, 0), (62, 0, 0), (63, 0, 0);
