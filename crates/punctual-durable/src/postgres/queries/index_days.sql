-- Lets jobs that succeeded be found by their age, in every day there is: for those who keep them for less than a day,
-- so that they are deleted one by one. Nobody else pays for it. A day is not written to meanwhile, which is long only
-- for one that has many jobs already; while somebody is at work in it, it is left for the next time.
CREATE OR REPLACE FUNCTION index_days() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/history', 0)) THEN
        RETURN;
    END IF;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'history_succeeded'::regclass AND c.relname ~ '^history_\d{8}$' AND to_regclass(c.relname || '_since') IS NULL
    LOOP
        BEGIN
            EXECUTE format('CREATE INDEX %I ON %I (since)', part || '_since', part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
END $$ SET search_path FROM CURRENT SET lock_timeout = '50ms';
