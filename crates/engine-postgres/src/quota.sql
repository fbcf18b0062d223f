-- The table that version 3 lacked.
CREATE TABLE @quota (             -- a limit, and the usage that it limits
    kind        bigint NOT NULL,   -- 0 directory, 1 user, 2 group
    number      bigint NOT NULL,   -- of the directory quota; uid; gid
    next        bigint NOT NULL DEFAULT 0, -- quota.number of the directory quota around it; 0 if there is none
    max_inodes  bigint NOT NULL DEFAULT 9223372036854775807, -- hard limits; this number if there is none
    max_blocks  bigint NOT NULL DEFAULT 9223372036854775807,
    soft_inodes bigint NOT NULL DEFAULT 9223372036854775807, -- soft limits
    soft_blocks bigint NOT NULL DEFAULT 9223372036854775807,
    root        bigint NOT NULL DEFAULT 0, -- node.ino of the directory; 0 for a user or group
    state       bigint NOT NULL DEFAULT 0, -- 0 all inodes have it, 1 being given to them, 2 being taken from them
    inodes      bigint NOT NULL DEFAULT 0, -- used
    blocks      bigint NOT NULL DEFAULT 0, -- used, of 4096 bytes
    PRIMARY KEY (kind, number)
) WITH (fillfactor = 20);
