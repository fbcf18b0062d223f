-- Drops all tables of a volume, and its functions of all versions. Drops nothing if the volume has a setting,
-- because then it was formatted again.
DO $d$
DECLARE
    v_name text;
BEGIN
    LOCK TABLE @setting IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM @setting) THEN
        RETURN;
    END IF;
    FOR v_name IN SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = '@setting'::regclass)
            AND p.proname ~ '^@(apply|blocks|claim|clamped|commit|conflict|failed|fits|forget|read|release|rest|room|trim)_[0-9a-f]{8}$'
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_name;
    END LOOP;
    FOR v_name IN SELECT t.oid::regtype::text FROM pg_type t
        WHERE t.typnamespace = (SELECT c.relnamespace FROM pg_class c WHERE c.oid = '@setting'::regclass)
            AND t.typname ~ '^@args_[0-9a-f]{8}$'
    LOOP
        EXECUTE 'DROP TYPE ' || v_name;
    END LOOP;
    DROP VIEW @files;
    DROP TABLE @layout, @node, @edge, @slice, @xattr, @symlink, @acl, @setting, @counter, @usage, @session, @orphan, @lock,
        @lock_wait, @garbage, @shared, @quota, @log;
    DROP SEQUENCE @seq;
END $d$
