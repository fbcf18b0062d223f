-- The functions that requests call. @ is the table prefix. A colon and a name in capitals is a number of
-- code.rs or of the crate tables. # is a suffix computed from this text, so that clients of different
-- versions each call their own functions. The row of a reply is its kind, its numbers and its byte strings:
-- see read.rs.

CREATE OR REPLACE FUNCTION @blocks#(kind bigint, size bigint, xattr_blocks bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $f$
    SELECT xattr_blocks + CASE WHEN kind = 8 THEN size / 4096 + (size % 4096 > 0)::int ELSE 0 END
$f$;

-- Returns the records of record keys. An absent record has no row. The function is STABLE, so all its
-- queries use the caller's snapshot.
CREATE OR REPLACE FUNCTION @read#(p_what bigint[], p_a bigint[], p_b bigint[], p_x bytea[])
RETURNS TABLE (row_kind smallint, numbers bigint[], bytes bytea[]) LANGUAGE plpgsql STABLE AS $f$
DECLARE
    v_inos bigint[] := '{}';
BEGIN
    IF p_what && '{:DIRENT}' THEN
        RETURN QUERY SELECT :DIRENT::smallint, ARRAY[e.parent, e.ino, e.kind], ARRAY[e.name]
        FROM unnest(p_what, p_a, p_x) w (what, a, x) JOIN @edge e ON e.parent = w.a AND e.name = w.x
        WHERE w.what = :DIRENT;
        v_inos := ARRAY(
            SELECT e.ino FROM unnest(p_what, p_a, p_x) w (what, a, x) JOIN @edge e ON e.parent = w.a AND e.name = w.x
            WHERE w.what = :DIRENT);
    END IF;
    IF p_what && '{:INODE}' THEN
        v_inos := v_inos || ARRAY(SELECT w.a FROM unnest(p_what, p_a) w (what, a) WHERE w.what = :INODE);
    END IF;
    IF v_inos <> '{}' THEN
        RETURN QUERY SELECT :INODE::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime, n.mtime,
                                  n.ctime, n.parent, n.access_rev, n.xattr_blocks, n.quota],
               ARRAY[n.access_acl, n.default_acl]
        FROM @node n WHERE n.ino = ANY (v_inos);
        RETURN QUERY SELECT :ACL::smallint, NULL::bigint[], ARRAY[l.id, convert_to(l.text, 'UTF8')]
        FROM @acl l WHERE l.id = ANY (ARRAY(
            SELECT unnest(ARRAY[n.access_acl, n.default_acl]) FROM @node n WHERE n.ino = ANY (v_inos)));
    END IF;
    IF :DIRENT >= ALL (p_what) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT :NOT_EMPTY::smallint, ARRAY[w.a], NULL::bytea[] FROM unnest(p_what, p_a) w (what, a)
    WHERE w.what = :NOT_EMPTY AND EXISTS (SELECT FROM @edge e WHERE e.parent = w.a);
    IF p_what && '{:XATTR}' THEN
        RETURN QUERY SELECT :XATTR::smallint, ARRAY[r.ino], ARRAY[r.name, r.value]
        FROM unnest(p_what, p_a) w (what, a) JOIN @xattr r ON r.ino = w.a WHERE w.what = :XATTR;
    END IF;
    IF p_what && '{:SYMLINK}' THEN
        RETURN QUERY SELECT :SYMLINK::smallint, ARRAY[r.ino], ARRAY[r.target]
        FROM unnest(p_what, p_a) w (what, a) JOIN @symlink r ON r.ino = w.a WHERE w.what = :SYMLINK;
    END IF;
    IF p_what && '{:SLICE}' THEN
        RETURN QUERY SELECT :SLICE::smallint, ARRAY[r.ino, r.chunk, r.pos, r.len, r.slice, r.slice_off, r.slice_size], ARRAY[r.data]
        FROM (SELECT DISTINCT w.a, w.b FROM unnest(p_what, p_a, p_b) w (what, a, b) WHERE w.what = :SLICE) w
             JOIN @slice r ON r.ino = w.a AND r.chunk = w.b ORDER BY r.ino, r.chunk, r.seq;
    END IF;
    IF p_what && '{:ACL}' THEN
        RETURN QUERY SELECT :ACL::smallint, NULL::bigint[], ARRAY[r.id, convert_to(r.text, 'UTF8')]
        FROM unnest(p_what, p_x) w (what, x) JOIN @acl r ON r.id = w.x WHERE w.what = :ACL;
    END IF;
    IF p_what && '{:SETTING}' THEN
        RETURN QUERY SELECT :SETTING::smallint, NULL::bigint[], ARRAY[convert_to(r.name, 'UTF8'), convert_to(r.value, 'UTF8')]
        FROM @setting r;
    END IF;
    IF p_what && '{:COUNTER}' THEN
        RETURN QUERY SELECT :COUNTER::smallint, ARRAY[r.value], ARRAY[convert_to(r.name, 'UTF8')] FROM @counter r;
    END IF;
    IF p_what && '{:USAGE}' THEN
        RETURN QUERY SELECT :USAGE::smallint, ARRAY[sum(r.inodes)::bigint, sum(r.blocks)::bigint], NULL::bytea[] FROM @usage r;
    END IF;
    IF p_what && '{:LOCK}' THEN
        RETURN QUERY SELECT :LOCK::smallint, ARRAY[r.ino, r.first, r.last, r.session, r.owner, r.kind, r.exclusive, r.pid], NULL::bytea[]
        FROM (SELECT DISTINCT w.a FROM unnest(p_what, p_a) w (what, a) WHERE w.what = :LOCK) w
             JOIN @lock r ON r.ino = w.a;
    END IF;
    IF p_what && '{:LOCK_WAIT}' THEN
        RETURN QUERY SELECT :LOCK_WAIT::smallint, ARRAY[r.ino, r.first, r.last, r.session, r.owner, r.kind, r.exclusive, r.pid], NULL::bytea[]
        FROM @lock_wait r;
    END IF;
    IF p_what && '{:SESSION}' THEN
        RETURN QUERY SELECT :SESSION::smallint, ARRAY[r.id, r.pid, r.since, r.heartbeat, r.pid_namespace, r.start_time, r.first_slice],
               ARRAY[convert_to(r.host, 'UTF8'), convert_to(r.mountpoint, 'UTF8'), convert_to(r.boot_id, 'UTF8'),
                     convert_to(r.version, 'UTF8')]
        FROM @session r WHERE r.id = ANY (ARRAY(SELECT w.a FROM unnest(p_what, p_a) w (what, a) WHERE w.what = :SESSION));
    END IF;
    IF p_what && '{:QUOTA}' THEN
        RETURN QUERY SELECT :QUOTA::smallint, ARRAY[r.kind, r.number, r.next, r.max_inodes, r.max_blocks, r.soft_inodes, r.soft_blocks, r.root,
                                  r.state, r.inodes, r.blocks], NULL::bytea[]
        FROM unnest(p_what, p_a, p_b) w (what, a, b) JOIN @quota r ON r.kind = w.a AND r.number = w.b WHERE w.what = :QUOTA;
    END IF;
END $f$;

-- Returns the transactions that have a guard that does not hold. A guard's kind divided by
-- :GUARDS_PER_RECORD is the kind of the record key that decides it: guards on inodes come first, then those
-- on dirents. A guard of transaction 0 applies to every transaction.
CREATE OR REPLACE FUNCTION @failed#(g_t bigint[], g_what bigint[], g_a bigint[], g_b bigint[], g_c bigint[],
                                    g_x bytea[], g_y bytea[])
RETURNS bigint[] LANGUAGE plpgsql STABLE AS $f$
DECLARE
    v_failed bigint[];
BEGIN
    v_failed := ARRAY(
        SELECT g.t FROM unnest(g_t, g_what, g_a, g_b, g_c) g (t, what, a, b, c) LEFT JOIN @node n ON n.ino = g.a
        WHERE g.what < :GUARD_DIRENT_IS AND (CASE g.what
            WHEN :GUARD_ACCESS THEN n.access_rev = g.b WHEN :GUARD_INODE_ABSENT THEN n.ino IS NULL
            WHEN :GUARD_LINKS THEN n.nlink = g.b WHEN :GUARD_PARENT_IS THEN n.parent = g.b
            WHEN :GUARD_SIZE THEN n.size = g.b WHEN :GUARD_XATTR_BLOCKS THEN n.xattr_blocks BETWEEN g.c AND g.b END) IS NOT TRUE
        UNION ALL
        SELECT g.t FROM unnest(g_t, g_what, g_a, g_b, g_x) g (t, what, a, b, x)
             LEFT JOIN @edge e ON e.parent = g.a AND e.name = g.x
        WHERE g.what IN (:GUARD_DIRENT_IS, :GUARD_DIRENT_ABSENT)
            AND (CASE g.what WHEN :GUARD_DIRENT_IS THEN e.ino = g.b ELSE e.ino IS NULL END) IS NOT TRUE);
    IF :GUARD_DIRENT_ABSENT >= ALL (g_what) THEN
        RETURN v_failed;
    END IF;
    RETURN v_failed || ARRAY(
        SELECT g.t FROM unnest(g_t, g_what, g_a, g_b, g_c, g_x, g_y) g (t, what, a, b, c, x, y)
        WHERE g.what > :GUARD_DIRENT_ABSENT AND NOT CASE g.what
            WHEN :GUARD_EMPTY THEN NOT EXISTS (SELECT FROM @edge e WHERE e.parent = g.a)
            WHEN :GUARD_XATTR THEN coalesce((SELECT greatest(1, (octet_length(r.value) + 4095) / 4096)
                                   FROM @xattr r WHERE r.ino = g.a AND r.name = g.x), 0) = g.b
            WHEN :GUARD_ROWS THEN coalesce((
                SELECT string_agg(concat_ws(',', o.pos, o.len, coalesce(o.slice::text, ''), coalesce(o.slice_off::text, ''),
                                            coalesce(o.slice_size::text, ''), coalesce(encode(o.data, 'hex'), '-')), ';'
                                  ORDER BY o.seq)
                FROM (SELECT r.* FROM @slice r WHERE r.ino = g.a AND r.chunk = g.b ORDER BY r.seq LIMIT g.c) o), '')
                = convert_from(g.x, 'UTF8')
            WHEN :GUARD_ACL THEN EXISTS (SELECT FROM @acl r WHERE r.id = g.x AND r.text NOT LIKE '!%')
            WHEN :GUARD_SETTING THEN (SELECT r.value FROM @setting r WHERE r.name = convert_from(g.x, 'UTF8'))
                IS NOT DISTINCT FROM convert_from(g.y, 'UTF8')
            WHEN :GUARD_COUNTER THEN coalesce((SELECT r.value FROM @counter r WHERE r.name = convert_from(g.x, 'UTF8')), 0) = g.a
            WHEN :GUARD_ROOM THEN (SELECT sum(r.inodes) < g.a AND sum(r.blocks) < g.b FROM @usage r)
            WHEN :GUARD_LOCKS THEN EXISTS (SELECT FROM @node n WHERE n.ino = g.a) AND coalesce((
                SELECT string_agg(concat_ws(',', r.first, r.last, r.session, r.owner, r.kind, r.exclusive, r.pid), ';'
                                  ORDER BY r.first, r.last, r.session, r.owner, r.kind)
                FROM @lock r WHERE r.ino = g.a), '') = convert_from(g.x, 'UTF8')
            WHEN :GUARD_SESSION THEN EXISTS (SELECT FROM @session r WHERE r.id = g.a AND (g.b IS NULL OR r.heartbeat = g.b))
            WHEN :GUARD_TERM THEN EXISTS (SELECT FROM @session r WHERE r.id = g.a AND g.b = ANY (r.terms))
            ELSE @fits#(g.what, g.a, g.b, g.c)
            END);
END $f$;

-- Evaluates a guard on a quota. An absent quota has no limits, but a guard that names an outer quota fails on
-- it. The function is in PL/pgSQL, because servers before PostgreSQL 18 plan the query of an SQL function
-- again in each statement that calls the function.
CREATE OR REPLACE FUNCTION @fits#(p_what bigint, p_kind bigint, p_number bigint, p_value bigint)
RETURNS boolean LANGUAGE plpgsql STABLE AS $f$
BEGIN RETURN (SELECT coalesce(bool_and(CASE p_what
        WHEN :GUARD_QUOTA THEN p_value IS NULL OR r.next = p_value
        WHEN :GUARD_QUOTA_INODES THEN r.inodes <= r.max_inodes - p_value
        WHEN :GUARD_QUOTA_BLOCKS THEN r.blocks <= r.max_blocks - p_value END), p_value IS NULL OR p_what > :GUARD_QUOTA)
    FROM @quota r WHERE r.kind = p_kind AND r.number = p_number); END $f$;

-- Limits a count to the range of a bigint.
CREATE OR REPLACE FUNCTION @clamped#(n numeric) RETURNS bigint LANGUAGE sql IMMUTABLE AS $f$
    SELECT least(greatest(n, -9223372036854775808), 9223372036854775807)::bigint $f$;

-- Checks transactions that have only guards, with one snapshot and no lock.
CREATE OR REPLACE FUNCTION @claim#(g_t bigint[], g_what bigint[], g_a bigint[], g_b bigint[], g_c bigint[],
                                   g_x bytea[], g_y bytea[])
RETURNS TABLE (row_kind smallint, numbers bigint[], bytes bytea[]) LANGUAGE plpgsql STABLE AS $f$
DECLARE
    v_failed bigint[] := @failed#(g_t, g_what, g_a, g_b, g_c, g_x, g_y);
BEGIN
    IF v_failed <> '{}' THEN
        RETURN QUERY SELECT :FAILED::smallint, v_failed, NULL::bytea[];
        RETURN QUERY SELECT r.* FROM @conflict#(v_failed, g_t, g_what, g_a, g_b, g_x) r;
        RETURN QUERY SELECT :CONFLICT_END::smallint, NULL::bigint[], NULL::bytea[];
    END IF;
END $f$;

-- Returns the records that the guards of these transactions read.
CREATE OR REPLACE FUNCTION @conflict#(p_failed bigint[], g_t bigint[], g_what bigint[], g_a bigint[], g_b bigint[], g_x bytea[])
RETURNS TABLE (row_kind smallint, numbers bigint[], bytes bytea[]) LANGUAGE sql STABLE AS $f$
    SELECT r.* FROM (
        SELECT array_agg(g.what / :GUARDS_PER_RECORD), array_agg(g.a), array_agg(g.b), array_agg(g.x)
        FROM unnest(g_t, g_what, g_a, g_b, g_x) g (t, what, a, b, x)
        WHERE g.t = ANY (p_failed) OR g.t = 0 OR 0 = ANY (p_failed)) w (what, a, b, x),
        LATERAL @read#(w.what, w.a, w.b, w.x) r
$f$;

-- Called after rows that referred to slices were deleted: slices without any reference become garbage.
CREATE OR REPLACE FUNCTION @release#(p_slices bigint[], p_sizes bigint[]) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    PERFORM FROM @shared r WHERE r.slice = ANY (p_slices) ORDER BY r.slice FOR UPDATE;
    WITH removed AS (
        SELECT g.slice, max(g.size) AS size, count(*) AS n FROM unnest(p_slices, p_sizes) g (slice, size) GROUP BY g.slice),
    known AS (
        SELECT g.*, coalesce(r.extra, 0) AS extra FROM removed g LEFT JOIN @shared r ON r.slice = g.slice),
    fewer AS (
        UPDATE @shared r SET extra = r.extra - k.n FROM known k WHERE r.slice = k.slice AND k.extra >= k.n),
    last AS (
        DELETE FROM @shared r USING known k WHERE r.slice = k.slice AND k.extra < k.n)
    INSERT INTO @garbage (slice, size) SELECT k.slice, k.size FROM known k WHERE k.extra < k.n ORDER BY k.slice
    ON CONFLICT (slice) DO UPDATE SET size = excluded.size;
END $f$;

-- Deletes inodes with everything that belongs to them. Returns what they contributed to the volume's usage.
CREATE OR REPLACE FUNCTION @forget#(p_inos bigint[], OUT v_inodes bigint, OUT v_blocks bigint) LANGUAGE plpgsql AS $f$
DECLARE
    v_slices bigint[];
    v_sizes bigint[];
BEGIN
    WITH removed AS (DELETE FROM @node n WHERE n.ino = ANY (p_inos) RETURNING n.kind, n.size, n.xattr_blocks)
    SELECT count(*), coalesce(sum(@blocks#(g.kind, g.size, g.xattr_blocks)), 0) INTO v_inodes, v_blocks FROM removed g;
    DELETE FROM @xattr r WHERE r.ino = ANY (p_inos);
    DELETE FROM @symlink r WHERE r.ino = ANY (p_inos);
    DELETE FROM @lock r WHERE r.ino = ANY (p_inos);
    WITH removed AS (DELETE FROM @slice r WHERE r.ino = ANY (p_inos) RETURNING r.slice, r.slice_size)
    SELECT array_agg(g.slice), array_agg(g.slice_size) INTO v_slices, v_sizes FROM removed g WHERE g.slice IS NOT NULL;
    IF v_slices IS NOT NULL THEN
        PERFORM @release#(v_slices, v_sizes);
    END IF;
END $f$;

-- All arguments of a commit in one composite argument, because PL/pgSQL expands each array that is an
-- argument of its own.
DO $d$ BEGIN
    CREATE TYPE @args# AS (
        changing bigint[], -- the transactions that have effects
        stages int, acls int, -- the largest number of stages of a transaction (see the crate tables); how to lock the ACLs
        numbers boolean, -- whether to lock the counters
        in_full boolean, -- whether to check all guards in full, because the faster checks do not cover one of them
        recheck boolean, -- whether to check guards on inodes and dirents after the locks are taken
        fresh boolean, -- whether each dirent that is put has a guard that requires that it does not exist, and there is one stage
        sized boolean, -- whether a change may change the blocks that an existing inode uses
        combined boolean, -- whether c also has the combined changes of all transactions
        room boolean, -- whether there is a guard on the room: a limit of the volume's inodes and blocks
        careful boolean, -- whether to take the lock on the room exclusively
        trim boolean, -- whether to remove old transactions from the log
        new_quotas boolean, -- whether a charge may create a quota
        ahead_inodes bigint, ahead_blocks bigint, -- subtracted from the bounds of guards on the room: see meta::max_added_before_room_guard
        session bigint[], op bigint[], invalidations bytea[], -- of each transaction; the last is NULL if it has no effects
        -- sessions that are checked or changed, the terms that must be open, and the sessions whose lock is
        -- taken exclusively
        s bigint[], s_term bigint[], s_exclusive bigint[],
        -- quotas to lock. The rows of q: kind; number; the inodes, and the blocks, that the values of the
        -- guards include because other transactions of the group may add them first. Both are -1 if a
        -- transaction of the group releases inodes or blocks
        q bigint[],
        lock bigint[], rev bigint[], -- inodes, and the access_rev that each must have, or NULL
        -- guards
        g_t bigint[], g_what bigint[], g_a bigint[], g_b bigint[], g_c bigint[], g_x bytea[], g_y bytea[],
        -- inodes that are created: the rows of n are their transactions and their columns up to quota
        n_t bigint[], n bigint[], n_acl bytea[], n_default bytea[],
        -- changes of other inodes. The rows of c: 1 transaction, 2 ino, 3 links to add, 4 the minimum of the
        -- link count after that, 5 the minimum of the size, 6 the length that the size is cut to before that,
        -- 7 a bit mask of the columns that are set (:SETS_ATIME and others): 8 atime, 9 mtime, 10 ctime, 11
        -- parent, 12 mode, 13 uid, 14 gid; 15 the increment of access_rev; 16 xattr blocks to add, 17 the
        -- minimum of the xattr blocks after that, 18 quota tag. The array has no NULLs, because PostgreSQL
        -- would then scan it from its start for each access. Rows of one transaction and stage are adjacent,
        -- ordered by inode. If there are several transactions, the combined changes of all of them to an
        -- inode have the number 0.
        c_t bigint[], c_ino bigint[], c bigint[], c_acl bytea[], c_default bytea[],
        -- dirents that are put (e) or deleted (x); inodes that are deleted (d)
        e_t bigint[], e_parent bigint[], e_ino bigint[], e_kind bigint[], e_name bytea[],
        x_t bigint[], x_parent bigint[], x_name bytea[], d_t bigint[], d_ino bigint[],
        -- the rarer effects: see function rest
        r_t bigint[], r_what bigint[], r_a bigint[], r_b bigint[], r_c bigint[], r_d bigint[], r_e bigint[],
        r_f bigint[], r_g bigint[], r_h bigint[], r_i bigint[], r_x bytea[], r_y bytea[]);
EXCEPTION WHEN duplicate_object THEN NULL;
END $d$;

-- Applies the rarer effects of one stage, each kind with one statement.
CREATE OR REPLACE FUNCTION @rest#(p @args#, p_live bigint[])
RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
    v_kinds bigint[];
    v_slices bigint[];
    v_sizes bigint[];
    v_more_slices bigint[];
    v_more_sizes bigint[];
    v_row record;
BEGIN
    v_kinds := ARRAY(SELECT DISTINCT e.what FROM unnest(p.r_t, p.r_what) e (t, what) WHERE e.t = ANY (p_live));
    IF v_kinds && '{:EFFECT_DROP_SLICES}' THEN -- drop slices of chunks
        WITH removed AS (
            DELETE FROM @slice r USING unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c) e (t, what, a, b, c)
            WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_SLICES AND r.ino = e.a AND r.chunk >= e.b AND r.chunk < e.c
            RETURNING r.slice, r.slice_size)
        SELECT array_agg(g.slice), array_agg(g.slice_size) INTO v_slices, v_sizes FROM removed g WHERE g.slice IS NOT NULL;
    END IF;
    IF v_kinds && '{:EFFECT_REPLACE_ROWS}' THEN -- replace a chunk's oldest rows by those of kind :EFFECT_REPLACING_ROW
        FOR v_row IN
            SELECT e.a, e.b, e.c FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c) e (t, what, a, b, c)
            WHERE e.t = ANY (p_live) AND e.what = :EFFECT_REPLACE_ROWS
        LOOP
            WITH removed AS (
                DELETE FROM @slice r WHERE r.ino = v_row.a AND r.chunk = v_row.b AND r.seq IN (
                    SELECT o.seq FROM @slice o WHERE o.ino = v_row.a AND o.chunk = v_row.b ORDER BY o.seq LIMIT v_row.c)
                RETURNING r.seq, r.slice, r.slice_size),
            put AS (
                INSERT INTO @slice (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size)
                SELECT e.a, e.b, place.seq, e.c, e.d, e.x, e.e, e.f, e.g
                FROM (SELECT g.seq, row_number() OVER (ORDER BY g.seq) AS i FROM removed g) place JOIN (
                    SELECT e.*, row_number() OVER (ORDER BY e.i) AS k
                    FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_x) WITH ORDINALITY
                         e (t, what, a, b, c, d, e, f, g, x, i)
                    WHERE e.t = ANY (p_live) AND e.what = :EFFECT_REPLACING_ROW AND e.a = v_row.a AND e.b = v_row.b) e ON e.k = place.i)
            SELECT array_agg(g.slice), array_agg(g.slice_size) INTO v_more_slices, v_more_sizes
            FROM removed g WHERE g.slice IS NOT NULL;
            v_slices := v_slices || v_more_slices;
            v_sizes := v_sizes || v_more_sizes;
        END LOOP;
    END IF;
    IF v_kinds && '{:EFFECT_APPEND_SLICE}' THEN -- append rows
        INSERT INTO @slice (ino, chunk, seq, pos, len, data, slice, slice_off, slice_size)
        SELECT e.a, e.b, row_number() OVER (PARTITION BY e.a, e.b ORDER BY e.i)
                         + coalesce((SELECT max(r.seq) FROM @slice r WHERE r.ino = e.a AND r.chunk = e.b), 0),
               e.c, e.d, e.x, e.e, e.f, e.g
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_x) WITH ORDINALITY
             e (t, what, a, b, c, d, e, f, g, x, i)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_APPEND_SLICE AND EXISTS (SELECT FROM @node n WHERE n.ino = e.a);
    END IF;
    IF v_slices IS NOT NULL THEN
        PERFORM @release#(v_slices, v_sizes);
    END IF;
    IF v_kinds && '{:EFFECT_SHARE}' THEN -- add references to slices
        INSERT INTO @shared AS r (slice, extra) SELECT e.a, sum(e.b) FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_SHARE GROUP BY e.a ORDER BY e.a ON CONFLICT (slice) DO UPDATE SET extra = r.extra + excluded.extra;
    END IF;
    IF v_kinds && '{:EFFECT_DROP_GARBAGE}' THEN -- remove garbage
        DELETE FROM @garbage r USING unnest(p.r_t, p.r_what, p.r_a) e (t, what, a)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_GARBAGE AND r.slice = e.a;
    END IF;
    IF v_kinds && '{:EFFECT_PUT_XATTR}' THEN -- set extended attributes
        INSERT INTO @xattr (ino, name, value)
        SELECT e.a, e.x, e.y FROM unnest(p.r_t, p.r_what, p.r_a, p.r_x, p.r_y) e (t, what, a, x, y)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_XATTR AND EXISTS (SELECT FROM @node n WHERE n.ino = e.a)
        ON CONFLICT (ino, name) DO UPDATE SET value = excluded.value;
    END IF;
    IF v_kinds && '{:EFFECT_DROP_XATTR}' THEN -- remove extended attributes
        DELETE FROM @xattr r USING unnest(p.r_t, p.r_what, p.r_a, p.r_x) e (t, what, a, x)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_XATTR AND r.ino = e.a AND r.name = e.x;
    END IF;
    IF v_kinds && '{:EFFECT_PUT_SYMLINK}' THEN -- set targets of symlinks
        INSERT INTO @symlink (ino, target)
        SELECT e.a, e.x FROM unnest(p.r_t, p.r_what, p.r_a, p.r_x) e (t, what, a, x)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_SYMLINK AND EXISTS (SELECT FROM @node n WHERE n.ino = e.a)
        ON CONFLICT (ino) DO UPDATE SET target = excluded.target;
    END IF;
    IF v_kinds && '{:EFFECT_DROP_LOCKS}' THEN -- replace the locks of an inode by those of kind :EFFECT_PUT_LOCK
        DELETE FROM @lock r USING unnest(p.r_t, p.r_what, p.r_a) e (t, what, a)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_LOCKS AND r.ino = e.a;
        INSERT INTO @lock (ino, first, last, session, owner, kind, exclusive, pid)
        SELECT e.a, e.b, e.c, e.d, e.e, e.f, e.g, e.h
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_h) e (t, what, a, b, c, d, e, f, g, h)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_LOCK AND EXISTS (SELECT FROM @node n WHERE n.ino = e.a)
        ON CONFLICT DO NOTHING;
    END IF;
    IF v_kinds && '{:EFFECT_PUT_WAIT}' THEN -- add waiting lock requests
        INSERT INTO @lock_wait (ino, first, last, session, owner, kind, exclusive, pid)
        SELECT e.a, e.b, e.c, e.d, e.e, e.f, e.g, e.h
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_h) e (t, what, a, b, c, d, e, f, g, h)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_WAIT ORDER BY e.d, e.e, e.f
        ON CONFLICT (session, owner, kind) DO UPDATE
        SET (ino, first, last, exclusive, pid) = (excluded.ino, excluded.first, excluded.last, excluded.exclusive, excluded.pid);
    END IF;
    IF v_kinds && '{:EFFECT_DROP_WAIT}' THEN -- remove waiting lock requests
        DELETE FROM @lock_wait r USING unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c) e (t, what, a, b, c)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_WAIT AND r.session = e.a AND r.owner = e.b AND r.kind = e.c;
    END IF;
    IF v_kinds && '{:EFFECT_PUT_ACL,:EFFECT_CONDEMN_ACL,:EFFECT_DROP_ACL}' THEN -- ACLs; ! precedes the text of a condemned one
        INSERT INTO @acl (id, text)
        SELECT DISTINCT ON (e.x) e.x, convert_from(e.y, 'UTF8')
        FROM unnest(p.r_t, p.r_what, p.r_x, p.r_y) WITH ORDINALITY e (t, what, x, y, i)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_ACL ORDER BY e.x, e.i
        ON CONFLICT DO NOTHING;
        UPDATE @acl r SET text = CASE e.what WHEN :EFFECT_PUT_ACL THEN substr(r.text, 2) ELSE '!' || r.text END
        FROM unnest(p.r_t, p.r_what, p.r_x) e (t, what, x) WHERE e.t = ANY (p_live) AND r.id = e.x
            AND CASE e.what WHEN :EFFECT_PUT_ACL THEN r.text LIKE '!%' WHEN :EFFECT_CONDEMN_ACL THEN r.text NOT LIKE '!%' END;
        DELETE FROM @acl r USING unnest(p.r_t, p.r_what, p.r_x) e (t, what, x)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_ACL AND r.id = e.x AND r.text LIKE '!%';
    END IF;
    IF v_kinds && '{:EFFECT_PUT_ORPHAN,:EFFECT_DROP_ORPHAN}' THEN -- orphans
        INSERT INTO @orphan (session, ino)
        SELECT e.a, e.b FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_ORPHAN ORDER BY e.a, e.b
        ON CONFLICT DO NOTHING;
        DELETE FROM @orphan r USING unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_ORPHAN AND r.session = e.a AND r.ino = e.b;
    END IF;
    IF v_kinds && '{:EFFECT_PUT_SESSION,:EFFECT_DROP_SESSION}' THEN -- sessions
        -- A row of kind :EFFECT_SESSION_TEXTS has the other two strings.
        INSERT INTO @session (id, pid, since, heartbeat, pid_namespace, start_time, first_slice,
                              host, mountpoint, boot_id, version)
        SELECT e.a, e.b, e.c, e.d, e.e, e.f, e.g,
               convert_from(e.x, 'UTF8'), convert_from(e.y, 'UTF8'), convert_from(m.x, 'UTF8'), convert_from(m.y, 'UTF8')
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_x, p.r_y)
                 e (t, what, a, b, c, d, e, f, g, x, y)
             JOIN unnest(p.r_t, p.r_what, p.r_a, p.r_x, p.r_y) m (t, what, a, x, y)
                 ON m.what = :EFFECT_SESSION_TEXTS AND m.t = e.t AND m.a = e.a
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_SESSION ORDER BY e.a
        ON CONFLICT (id) DO UPDATE
        SET (pid, since, heartbeat, pid_namespace, start_time, first_slice, host, mountpoint, boot_id, version)
            = (excluded.pid, excluded.since, excluded.heartbeat, excluded.pid_namespace, excluded.start_time,
               excluded.first_slice, excluded.host, excluded.mountpoint, excluded.boot_id, excluded.version);
        DELETE FROM @session r USING unnest(p.r_t, p.r_what, p.r_a) e (t, what, a)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_SESSION AND r.id = e.a;
    END IF;
    IF v_kinds && '{:EFFECT_BEGIN_TERM}' THEN -- begin terms, and end those of kind :EFFECT_END_TERM
        UPDATE @session r SET terms = ARRAY(
            SELECT o.term FROM (
                SELECT unnest(r.terms) UNION
                SELECT e.b FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
                WHERE e.t = ANY (p_live) AND e.what = :EFFECT_BEGIN_TERM AND e.a = r.id) o (term)
            WHERE NOT EXISTS (
                SELECT FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
                WHERE e.t = ANY (p_live) AND e.what = :EFFECT_END_TERM AND e.a = r.id AND e.b = o.term))
        WHERE r.id = ANY (ARRAY(
            SELECT e.a FROM unnest(p.r_t, p.r_what, p.r_a) e (t, what, a) WHERE e.t = ANY (p_live) AND e.what = :EFFECT_BEGIN_TERM));
    END IF;
    IF v_kinds && '{:EFFECT_PUT_QUOTA}' THEN -- rules of quotas
        INSERT INTO @quota (kind, number, next, max_inodes, max_blocks, soft_inodes, soft_blocks, root, state)
        SELECT e.a, e.b, e.c, e.d, e.e, e.f, e.g, e.h, e.i
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d, p.r_e, p.r_f, p.r_g, p.r_h, p.r_i) e (t, what, a, b, c, d, e, f, g, h, i)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_QUOTA
        ON CONFLICT (kind, number) DO UPDATE SET (next, max_inodes, max_blocks, soft_inodes, soft_blocks, root, state)
            = (excluded.next, excluded.max_inodes, excluded.max_blocks, excluded.soft_inodes, excluded.soft_blocks, excluded.root,
               excluded.state);
    END IF;
    IF v_kinds && '{:EFFECT_DROP_QUOTA}' THEN
        DELETE FROM @quota r USING unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_DROP_QUOTA AND r.kind = e.a AND r.number = e.b;
    END IF;
    IF v_kinds && '{:EFFECT_CHARGE}' THEN -- what quotas count
        INSERT INTO @quota AS r (kind, number, inodes, blocks)
        SELECT e.a, e.b, @clamped#(sum(e.c)), @clamped#(sum(e.d))
        FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b, p.r_c, p.r_d) e (t, what, a, b, c, d)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_CHARGE GROUP BY e.a, e.b ORDER BY e.a, e.b
        ON CONFLICT (kind, number) DO UPDATE SET (inodes, blocks)
            = (@clamped#(r.inodes::numeric + excluded.inodes), @clamped#(r.blocks::numeric + excluded.blocks));
    END IF;
    IF v_kinds && '{:EFFECT_PUT_SETTING}' THEN -- settings
        INSERT INTO @setting (name, value)
        SELECT convert_from(e.x, 'UTF8'), convert_from(e.y, 'UTF8')
        FROM unnest(p.r_t, p.r_what, p.r_x, p.r_y) e (t, what, x, y) WHERE e.t = ANY (p_live) AND e.what = :EFFECT_PUT_SETTING
        ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
    IF v_kinds && '{:EFFECT_SET_COUNTER}' THEN -- counters
        UPDATE @counter r SET value = e.a FROM unnest(p.r_t, p.r_what, p.r_a, p.r_x) e (t, what, a, x)
        WHERE e.t = ANY (p_live) AND e.what = :EFFECT_SET_COUNTER AND r.name = convert_from(e.x, 'UTF8');
    END IF;
END $f$;

-- Commits a group of transactions (see commit.rs): takes the locks, checks the guards, applies the effects.
-- If v_full is true, checks all guards and finds repeated operations, and applies only the transactions whose
-- guards hold. Otherwise all guards are known to hold, and the whole call fails with unique_violation if an
-- inode to be created exists, if one of several names to be put exists, or if an operation was applied
-- before. There is no block with EXCEPTION, because it would cost each commit a subtransaction. The server
-- spends most of its time on preparing expressions, so a branch to a statement with fewer expressions pays.
-- The plans of this function are generic and made once per connection: a plan for the given arrays looks
-- cheaper, but making it costs as much as running it.
CREATE OR REPLACE FUNCTION @commit#(p @args#)
RETURNS TABLE (row_kind smallint, numbers bigint[], bytes bytea[]) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan AS $f$
DECLARE
    v_full boolean := p.in_full;
    v_room_exclusive boolean := p.careful;
    v_room record; v_session bigint; v_locked boolean;
    v_ok bigint[] := p.changing;
    v_failed bigint[] := '{}'; v_repeated bigint[] := '{}';
    v_live bigint[]; v_inos bigint[]; v_part bigint[];
    v_from bigint := 0; v_stop bigint;
    v_inodes bigint; v_blocks bigint; -- added to the volume's usage by this part
    v_more_inodes bigint := 0; v_more_blocks bigint := 0; -- added by the whole group
    v_count bigint; v_group bigint; v_first int; v_all record;
    v_named boolean := false; -- whether all names were put
    v_times boolean; -- whether only times and link counts change
BEGIN
    -- Every call takes its locks in the same order: sessions by number, ACLs, room, new quotas, inodes by
    -- number, counters by name, quotas by key, shared slices, a shard of the usage.
    --
    -- A commit that is guarded by a session or by one of its terms holds the session's lock shared until it
    -- ends. A commit that removes the session or ends terms holds the lock exclusively. The lock is taken
    -- before the statement that checks the session, because a statement sees what was committed when it
    -- began. A renewal also shares the lock, so that it and the commits of its client do not wait for each
    -- other. An assignment costs less than PERFORM.
    IF p.s <> '{}' THEN
        FOREACH v_session IN ARRAY p.s LOOP
            v_locked := CASE WHEN v_session = ANY (p.s_exclusive)
                THEN pg_advisory_xact_lock('@session'::regclass::oid::int, (v_session & 2147483647)::int)
                ELSE pg_advisory_xact_lock_shared('@session'::regclass::oid::int, (v_session & 2147483647)::int) END IS NULL;
        END LOOP;
    END IF;
    -- A commit that makes an inode refer to an ACL holds this lock shared. A commit that condemns or removes
    -- ACLs holds it exclusively.
    IF p.acls > 0 THEN
        v_locked := CASE WHEN p.acls > 1 THEN pg_advisory_xact_lock('@acl'::regclass::oid::int, 0)
            ELSE pg_advisory_xact_lock_shared('@acl'::regclass::oid::int, 0) END IS NULL;
        v_full := v_full OR EXISTS (SELECT FROM unnest(p.g_what) WITH ORDINALITY g (what, i)
            WHERE g.what = :GUARD_ACL AND NOT EXISTS (SELECT FROM @acl r WHERE r.id = p.g_x[g.i] AND r.text NOT LIKE '!%'));
    END IF;
    -- Whether there is room depends on what other commits add at the same time, at most 64 inodes and 65,536
    -- blocks each (checked below). Far from the limit that does not matter. Near the limit, only one call at
    -- a time adds anything, and it waits for its turn before it locks any inode.
    IF p.room THEN
        v_room_exclusive := v_room_exclusive OR (SELECT r.tight FROM @room#(p) r);
        v_locked := CASE WHEN v_room_exclusive THEN pg_advisory_xact_lock(1818848622, '@usage'::regclass::oid::int)
            ELSE pg_advisory_xact_lock_shared(1818848622, '@usage'::regclass::oid::int) END IS NULL;
        SELECT r.* INTO v_room FROM @room#(p) r;
        IF v_room.tight AND NOT v_room_exclusive THEN
            RAISE EXCEPTION 'the volume is nearly full' USING ERRCODE = 'LM001';
        END IF;
        -- Ask for smaller parts, because one of several transactions may get the room that another one frees
        -- or does not use.
        IF NOT v_room.fits AND NOT v_room.shut AND cardinality(p.session) > 1 THEN
            RAISE EXCEPTION 'there may be no room for all' USING ERRCODE = 'LM001';
        END IF;
        v_full := v_full OR NOT v_room.fits;
    END IF;
    -- Only one call at a time inserts quotas, because a call cannot lock a row before it exists.
    IF p.q <> '{}' THEN -- a condition of its own, because one with a query costs more even if it is not evaluated
        IF p.numbers OR p.new_quotas AND (
            SELECT count(*) FROM generate_subscripts(p.q, 2) i JOIN @quota r ON r.kind = p.q[1][i] AND r.number = p.q[2][i]
        ) < array_length(p.q, 2) THEN
            PERFORM pg_advisory_xact_lock('@quota'::regclass::oid::int, 0);
        END IF;
    END IF;
    SELECT ARRAY(SELECT n.access_rev FROM @node n WHERE n.ino = ANY (p.lock) ORDER BY n.ino FOR NO KEY UPDATE),
           cardinality(ARRAY(
               SELECT r.id FROM @session r WHERE r.id = ANY (p.s) AND p.s_term[array_position(p.s, r.id)] = ANY (r.terms)))
    INTO v_inos, v_count;
    v_full := v_full OR coalesce(cardinality(v_inos) < cardinality(p.lock), false) OR coalesce(v_count < cardinality(p.s), false);
    FOR v_i IN 1 .. CASE WHEN v_full THEN 0 ELSE cardinality(v_inos) END LOOP
        v_full := v_full OR coalesce(p.rev[v_i] <> v_inos[v_i], false);
    END LOOP;
    IF p.numbers THEN
        PERFORM FROM @counter r ORDER BY r.name FOR NO KEY UPDATE;
    END IF;
    IF p.q <> '{}' THEN
        PERFORM FROM generate_subscripts(p.q, 2) i JOIN @quota r ON r.kind = p.q[1][i] AND r.number = p.q[2][i]
            ORDER BY r.kind, r.number FOR NO KEY UPDATE OF r;
        IF EXISTS (SELECT FROM unnest(p.g_what, p.g_a, p.g_b, p.g_c) g (what, a, b, c)
                   WHERE g.what >= :GUARD_QUOTA AND NOT @fits#(g.what, g.a, g.b, g.c)) THEN
            -- Ask for smaller parts, because one transaction may get what another frees; but not if each
            -- failing transaction would fail even without the others.
            IF cardinality(p.session) > 1 AND EXISTS (SELECT FROM unnest(p.g_what, p.g_a, p.g_b, p.g_c) g (what, a, b, c), generate_subscripts(p.q, 2) i
                WHERE g.what >= :GUARD_QUOTA AND g.a = p.q[1][i] AND g.b = p.q[2][i] AND NOT @fits#(g.what, g.a, g.b, g.c) AND
                    (g.what = :GUARD_QUOTA OR @fits#(g.what, g.a, g.b, g.c - nullif(p.q[g.what - :GUARD_QUOTA + 2][i], -1)))) THEN
                RAISE EXCEPTION 'a quota may have no room for all' USING ERRCODE = 'LM001';
            END IF;
            v_full := true;
        END IF;
    END IF;
    -- Usually all guards hold, no operation is a repetition, and no inode to be created exists. An existing
    -- name or inode, or a repeated operation, violates a unique key when its row is inserted. Other guards on
    -- inodes and names are checked here.
    IF p.recheck AND NOT v_full THEN
        -- The locking statement has already compared access_rev.
        IF p.g_what && '{:GUARD_INODE_ABSENT,:GUARD_LINKS,:GUARD_PARENT_IS,:GUARD_SIZE,:GUARD_XATTR_BLOCKS}'
            OR cardinality(p.changing) < cardinality(p.session) THEN
            v_full := EXISTS (SELECT FROM unnest(p.g_what) WITH ORDINALITY g (what, i) LEFT JOIN @node n ON n.ino = p.g_a[g.i]
                         WHERE g.what < :GUARD_DIRENT_IS AND (g.what > :GUARD_ACCESS OR p.invalidations[p.g_t[g.i]] IS NULL)
                             AND (CASE g.what WHEN :GUARD_ACCESS THEN n.access_rev = p.g_b[g.i]
                             WHEN :GUARD_INODE_ABSENT THEN n.ino IS NULL WHEN :GUARD_LINKS THEN n.nlink = p.g_b[g.i]
                             WHEN :GUARD_PARENT_IS THEN n.parent = p.g_b[g.i] WHEN :GUARD_SIZE THEN n.size = p.g_b[g.i]
                             WHEN :GUARD_XATTR_BLOCKS THEN n.xattr_blocks BETWEEN p.g_c[g.i] AND p.g_b[g.i] END) IS NOT TRUE);
        END IF;
        IF NOT v_full AND p.g_what && '{:GUARD_DIRENT_IS,:GUARD_DIRENT_ABSENT}' THEN
            v_full := EXISTS (SELECT FROM unnest(p.g_what) WITH ORDINALITY g (what, i)
                            LEFT JOIN @edge e ON e.parent = p.g_a[g.i] AND e.name = p.g_x[g.i]
                       WHERE g.what IN (:GUARD_DIRENT_IS, :GUARD_DIRENT_ABSENT)
                           AND (CASE g.what WHEN :GUARD_DIRENT_IS THEN e.ino = p.g_b[g.i] ELSE e.ino IS NULL END) IS NOT TRUE);
        END IF;
    END IF;
    IF :GUARD_XATTR = ANY (p.g_what) AND NOT v_full THEN
        v_full := EXISTS (SELECT FROM unnest(p.g_what) WITH ORDINALITY g (what, i) WHERE g.what = :GUARD_XATTR AND p.g_b[g.i] <> coalesce((
            SELECT greatest(1, (octet_length(r.value) + 4095) / 4096) FROM @xattr r WHERE r.ino = p.g_a[g.i] AND r.name = p.g_x[g.i]), 0));
    END IF;
    -- Put these names first: if there is only one and it exists, nothing has been changed yet.
    IF p.e_t <> '{}' AND p.fresh AND NOT v_full THEN
        INSERT INTO @edge (parent, name, ino, kind)
        SELECT p.e_parent[i], p.e_name[i], p.e_ino[i], p.e_kind[i] FROM generate_subscripts(p.e_t, 1) i
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_named := v_count = cardinality(p.e_t);
        v_full := NOT v_named;
        IF v_full AND cardinality(p.e_t) > 1 THEN
            RAISE unique_violation USING MESSAGE = 'a name exists';
        END IF;
    END IF;
    IF v_full THEN
        v_repeated := ARRAY(
            SELECT t FROM unnest(p.changing) t JOIN @log l ON l.session = p.session[t] AND l.op = p.op[t]);
        RETURN QUERY SELECT :REPEATED::smallint, ARRAY[l.session, l.op, l.seq], NULL::bytea[]
        FROM unnest(v_repeated) t JOIN @log l ON l.session = p.session[t] AND l.op = p.op[t];
        v_failed := @failed#(p.g_t, p.g_what, p.g_a, p.g_b, p.g_c, p.g_x, p.g_y);
        IF 0 = ANY (v_failed) THEN
            v_failed := ARRAY(SELECT generate_subscripts(p.session, 1));
        END IF;
        v_failed := ARRAY(SELECT DISTINCT t FROM unnest(v_failed) t WHERE t <> ALL (v_repeated) ORDER BY t);
        v_ok := ARRAY(SELECT t FROM unnest(p.changing) t WHERE t <> ALL (v_repeated) AND t <> ALL (v_failed));
    END IF;

    -- The records that a failed guard read are returned as they are after the preceding transactions and
    -- before the following ones.
    FOREACH v_stop IN ARRAY v_failed || 9223372036854775807 LOOP
        v_part := v_ok;
        IF v_failed <> '{}' THEN
            v_part := ARRAY(SELECT t FROM unnest(v_ok) t WHERE t > v_from AND t < v_stop ORDER BY t);
            v_from := v_stop;
        END IF;
        v_inodes := 0;
        v_blocks := 0;
        FOR v_stage IN 0 .. CASE WHEN v_part = '{}' THEN -1 ELSE p.stages - 1 END LOOP
            v_live := v_part;
            IF v_stage > 0 THEN
                v_live := ARRAY(SELECT v_stage::bigint << 16 | t FROM unnest(v_part) t);
            END IF;
            IF p.d_t <> '{}' THEN
                SELECT r.* INTO v_all FROM @forget#(ARRAY(
                    SELECT d.ino FROM unnest(p.d_t, p.d_ino) d (t, ino) WHERE d.t = ANY (v_live))) r;
                v_inodes := v_inodes - v_all.v_inodes;
                v_blocks := v_blocks - v_all.v_blocks;
            END IF;
            IF p.n_t <> '{}' THEN
                IF v_full OR v_stage > 0 THEN -- replace inodes that exist
                    v_inos := ARRAY(
                        SELECT n.ino FROM unnest(p.n_t) WITH ORDINALITY c (t, i) JOIN @node n ON n.ino = p.n[2][c.i]
                        WHERE c.t = ANY (v_live));
                    SELECT r.* INTO v_all FROM @forget#(v_inos) r;
                    v_inodes := v_inodes - v_all.v_inodes;
                    v_blocks := v_blocks - v_all.v_blocks;
                END IF;
                INSERT INTO @node (ino, kind, mode, uid, gid, rdev, nlink, size, atime, mtime, ctime, parent, access_rev,
                                   xattr_blocks, quota, access_acl, default_acl)
                SELECT p.n[2][i], p.n[3][i], p.n[4][i], p.n[5][i], p.n[6][i], p.n[7][i], p.n[8][i], p.n[9][i],
                       p.n[10][i], p.n[11][i], p.n[12][i], p.n[13][i], p.n[14][i], p.n[15][i], p.n[16][i],
                       p.n_acl[i], p.n_default[i]
                FROM generate_subscripts(p.n_t, 1) i WHERE p.n_t[i] = ANY (v_live);
                GET DIAGNOSTICS v_count = ROW_COUNT;
                v_inodes := v_inodes + v_count;
                IF 0 < ANY (p.n[9:9]) OR 0 < ANY (p.n[15:15]) THEN
                    v_blocks := v_blocks + coalesce((
                        SELECT sum(@blocks#(p.n[3][i], p.n[9][i], p.n[15][i])) FROM generate_subscripts(p.n_t, 1) i
                        WHERE p.n_t[i] = ANY (v_live)), 0);
                END IF;
            END IF;
            IF p.c_t <> '{}' THEN
                IF p.sized THEN
                    v_blocks := v_blocks - (
                        SELECT coalesce(sum(@blocks#(n.kind, n.size, n.xattr_blocks)), 0)
                        FROM @node n WHERE n.ino = ANY (p.c_ino));
                END IF;
                -- An UPDATE changes a row only once, so apply either the combined changes of all
                -- transactions, or the changes of one transaction after another. A join with the array would
                -- search the array once for each inode. width_bucket finds an inode in it by binary search.
                v_times := NOT p.sized AND :SETS_PARENT > ALL (p.c[7:7]);
                FOREACH v_group IN ARRAY CASE WHEN p.combined AND NOT v_full THEN '{0}' ELSE v_live END LOOP
                    v_first := array_position(p.c_t, v_group);
                    CONTINUE WHEN v_first IS NULL;
                    v_inos := p.c_ino[v_first : v_first - 1 + cardinality(array_positions(p.c_t, v_group))];
                    v_first := v_first - 1;
                    IF v_times THEN
                        RETURN QUERY
                        UPDATE @node n
                        SET (nlink, atime, mtime, ctime) = (
                            SELECT least(greatest(n.nlink + p.c[3][i], p.c[4][i]), 4294967295),
                                   CASE WHEN p.c[7][i] & :SETS_ATIME > 0 THEN p.c[8][i] ELSE n.atime END,
                                   CASE WHEN p.c[7][i] & :SETS_MTIME > 0 THEN p.c[9][i] ELSE n.mtime END,
                                   CASE WHEN p.c[7][i] & :SETS_CTIME > 0 THEN greatest(p.c[10][i], n.ctime) ELSE n.ctime END
                            FROM (SELECT v_first + width_bucket(n.ino, v_inos) OFFSET 0) c (i))
                        WHERE n.ino = ANY (v_inos)
                        RETURNING :INODE::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime,
                                                     n.mtime, n.ctime, n.parent, n.access_rev, n.xattr_blocks, n.quota],
                                  ARRAY[n.access_acl, n.default_acl];
                        CONTINUE;
                    END IF;
                    RETURN QUERY
                    UPDATE @node n
                    SET (nlink, size, atime, mtime, ctime, parent, access_rev, xattr_blocks, quota, mode, uid, gid, access_acl,
                         default_acl) = (
                        SELECT least(greatest(n.nlink + p.c[3][i], p.c[4][i]), 4294967295),
                               greatest(least(n.size, p.c[6][i]), p.c[5][i]),
                               CASE WHEN p.c[7][i] & :SETS_ATIME > 0 THEN p.c[8][i] ELSE n.atime END,
                               CASE WHEN p.c[7][i] & :SETS_MTIME > 0 THEN p.c[9][i] ELSE n.mtime END,
                               CASE WHEN p.c[7][i] & :SETS_CTIME > 0 THEN greatest(p.c[10][i], n.ctime) ELSE n.ctime END,
                               CASE WHEN p.c[7][i] & :SETS_PARENT > 0 THEN p.c[11][i] ELSE n.parent END,
                               n.access_rev + p.c[15][i],
                               least(greatest(n.xattr_blocks + p.c[16][i], p.c[17][i]), 65535),
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c[18][i] ELSE n.quota END,
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c[12][i] ELSE n.mode END,
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c[13][i] ELSE n.uid END,
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c[14][i] ELSE n.gid END,
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c_acl[i] ELSE n.access_acl END,
                               CASE WHEN p.c[7][i] & :SETS_ACCESS > 0 THEN p.c_default[i] ELSE n.default_acl END
                        FROM (SELECT v_first + width_bucket(n.ino, v_inos) OFFSET 0) c (i))
                    WHERE n.ino = ANY (v_inos)
                    RETURNING :INODE::smallint, ARRAY[n.ino, n.kind, n.mode, n.uid, n.gid, n.rdev, n.nlink, n.size, n.atime,
                                                 n.mtime, n.ctime, n.parent, n.access_rev, n.xattr_blocks, n.quota],
                              ARRAY[n.access_acl, n.default_acl];
                END LOOP;
                IF p.sized THEN
                    v_blocks := v_blocks + (
                        SELECT coalesce(sum(@blocks#(n.kind, n.size, n.xattr_blocks)), 0)
                        FROM @node n WHERE n.ino = ANY (p.c_ino));
                END IF;
            END IF;
            IF p.r_t <> '{}' THEN
                PERFORM @rest#(p, v_live);
                IF p.r_what && '{:EFFECT_ADD_USAGE}' AND EXISTS (
                    SELECT FROM unnest(p.r_t, p.r_what) e (t, what) WHERE e.what = :EFFECT_ADD_USAGE AND e.t = ANY (v_live))
                THEN -- correct the usage, but not below zero
                    PERFORM FROM @usage r ORDER BY r.part FOR NO KEY UPDATE;
                    SELECT greatest(e.a, - (sum(r.inodes) + v_inodes)) + v_inodes AS inodes,
                           greatest(e.b, - (sum(r.blocks) + v_blocks)) + v_blocks AS blocks INTO v_all
                    FROM unnest(p.r_t, p.r_what, p.r_a, p.r_b) e (t, what, a, b), @usage r
                    WHERE e.what = :EFFECT_ADD_USAGE AND e.t = ANY (v_live) GROUP BY e.a, e.b;
                    v_inodes := v_all.inodes;
                    v_blocks := v_all.blocks;
                END IF;
            END IF;
            IF p.x_t <> '{}' THEN
                DELETE FROM @edge e USING unnest(p.x_t) WITH ORDINALITY c (t, i)
                WHERE c.t = ANY (v_live) AND e.parent = p.x_parent[c.i] AND e.name = p.x_name[c.i];
            END IF;
            IF p.e_t <> '{}' AND NOT v_named THEN
                INSERT INTO @edge (parent, name, ino, kind)
                SELECT p.e_parent[i], p.e_name[i], p.e_ino[i], p.e_kind[i]
                FROM generate_subscripts(p.e_t, 1) i WHERE p.e_t[i] = ANY (v_live)
                ON CONFLICT (parent, name) DO UPDATE SET (ino, kind) = (excluded.ino, excluded.kind);
            END IF;
        END LOOP;
        v_more_inodes := v_more_inodes + v_inodes;
        v_more_blocks := v_more_blocks + v_blocks;
        IF v_inodes <> 0 OR v_blocks <> 0 THEN
            -- Update a row that no other transaction is updating, if there is one. It is the last row that is
            -- locked.
            v_count := pg_backend_pid() % 64;
            IF NOT pg_try_advisory_xact_lock('@usage'::regclass::oid::int, v_count::int) THEN
                v_count := coalesce((SELECT f.part FROM @usage f LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED), v_count);
            END IF;
            UPDATE @usage r SET inodes = r.inodes + v_inodes, blocks = r.blocks + v_blocks WHERE r.part = v_count;
        END IF;
        IF v_stop = ANY (v_failed) THEN
            RETURN QUERY SELECT :FAILED::smallint, ARRAY[v_stop], NULL::bytea[];
            RETURN QUERY SELECT r.* FROM @conflict#(ARRAY[v_stop], p.g_t, p.g_what, p.g_a, p.g_b, p.g_x) r;
            RETURN QUERY SELECT :CONFLICT_END::smallint, NULL::bigint[], NULL::bytea[];
        END IF;
    END LOOP;

    IF p.room AND NOT v_room_exclusive AND (v_more_inodes > 64 OR v_more_blocks > 65536) THEN
        RAISE EXCEPTION 'much is added to the volume' USING ERRCODE = 'LM001';
    END IF;
    IF v_ok <> '{}' THEN
        -- Sequence numbers are taken under the locks, so that transactions that access the same record are
        -- numbered in the order of their commits.
        RETURN QUERY
        INSERT INTO @log AS l (session, op, seq, xid, at, invalidations)
        SELECT p.session[t], p.op[t], nextval('@seq'), pg_current_xact_id(), clock_timestamp(), p.invalidations[t] FROM unnest(v_ok) t
        RETURNING :COMMITTED::smallint, ARRAY[l.session, l.op, l.seq], NULL::bytea[];
        IF p.trim THEN
            PERFORM @trim#();
        END IF;
    END IF;
END $f$;

-- Evaluates the guards on the room. tight: additions by other calls could make a guard fail. fits: all guards
-- hold, with their bounds tightened. shut: no transaction of the group gets room, because no guard holds even
-- with its original bounds, and every transaction that changes something has a guard.
CREATE OR REPLACE FUNCTION @room#(p @args#, OUT tight boolean, OUT fits boolean, OUT shut boolean)
LANGUAGE plpgsql AS $f$
DECLARE
    v_others bigint := current_setting('max_connections');
BEGIN
    SELECT bool_or(u.inodes + 64 * v_others >= g.a OR u.blocks + 65536 * v_others >= g.b),
           bool_and(u.inodes < g.a AND u.blocks < g.b),
           bool_and(u.inodes - p.ahead_inodes >= g.a OR u.blocks - p.ahead_blocks >= g.b)
               AND count(DISTINCT g.t) FILTER (WHERE g.t = ANY (p.changing)) = cardinality(p.changing)
    INTO tight, fits, shut
    FROM (SELECT sum(r.inodes)::bigint AS inodes, sum(r.blocks)::bigint AS blocks FROM @usage r) u,
         unnest(p.g_t, p.g_what, p.g_a, p.g_b) g (t, what, a, b)
    WHERE g.what = :GUARD_ROOM;
END $f$;

-- Removes transactions from the log that are older than five minutes and older than 16,384 others.
-- Transactions of open terms are kept. They are few, because a client ends its terms within a minute or two
-- unless an operation has no answer. If the oldest row is not old enough, no row is locked, because a row
-- lock is written to disk. Only one transaction at a time does this; the others do not wait. In PL/pgSQL the
-- statement is planned once per connection, not at each call.
--
-- The mark, the row with seq 0, stores the greatest xid that was ever removed, so that a stream of changes
-- can detect that it missed a row. If the tables come from a dump of another server, the stored xid may be in
-- the future of this server. Then it is meaningless and is replaced.
CREATE OR REPLACE FUNCTION @trim#() RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
    IF NOT pg_try_advisory_xact_lock('@log'::regclass::oid::int, 0) THEN
        RETURN;
    END IF;
    WITH removed AS (
        DELETE FROM @log WHERE ctid = ANY (ARRAY(
            SELECT o.ctid FROM (
                SELECT l.ctid, l.seq, l.at FROM @log l
                WHERE l.seq > 0 AND (SELECT f.at FROM @log f WHERE f.seq > 0 ORDER BY f.xid LIMIT 1)
                    < now() - interval '5 minutes'
                    AND NOT EXISTS (SELECT FROM @session r WHERE r.id = l.session AND l.op >> 32 > 0
                                    AND l.op >> 32 = ANY (r.terms))
                ORDER BY l.xid LIMIT 256 FOR UPDATE SKIP LOCKED) o
            WHERE o.seq < (SELECT last_value FROM @seq) - 16384 AND o.at < now() - interval '5 minutes'))
        RETURNING xid)
    INSERT INTO @log AS m (session, op, seq, xid, at) SELECT -2, -2, 0, r.xid, now() FROM removed r ORDER BY r.xid DESC LIMIT 1
    ON CONFLICT (session, op) DO UPDATE SET at = excluded.at, xid = CASE
        WHEN m.xid >= pg_snapshot_xmax(pg_current_snapshot()) THEN excluded.xid
        ELSE greatest(m.xid, excluded.xid) END;
END $f$;
