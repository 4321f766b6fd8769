-- Drops the days of jobs that succeeded before an instant; answers how many jobs were in them. All of the day, unless jobs are kept for less than
-- a day, which `prune` takes one by one. A day stays while the period of a job in it holds a unique key, and while somebody is at work in
-- it: a drop locks all of `history`, so it waits for a moment only, and comes last in its transaction. The jobs are counted under a
-- lock that lets others read.
CREATE OR REPLACE FUNCTION drop_partitions(before bigint, t bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    part text;
    counted bigint;
    dropped bigint := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/history', 0)) THEN
        RETURN 0;
    END IF;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'history_succeeded'::regclass
          AND CASE WHEN c.relname ~ '^history_\d{8}$' THEN extract(epoch FROM right(c.relname, 8)::date + 1) * 1000000 <= before END
        ORDER BY c.relname
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %I IN SHARE ROW EXCLUSIVE MODE', part);
            EXECUTE format('SELECT count(*) FROM %I WHERE later(enqueued_at, unique_period) > $1', part) INTO counted USING t;
            CONTINUE WHEN counted > 0;
            EXECUTE format('WITH told AS (INSERT INTO ledger (tenant, kept) SELECT tenant, -count(*) FROM %I GROUP BY tenant RETURNING kept)
                            SELECT coalesce(-sum(kept), 0) FROM told', part) INTO counted;
            EXECUTE format('DROP TABLE %I', part);
            dropped := dropped + counted;
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
    END LOOP;
    RETURN dropped;
END $$ SET search_path FROM CURRENT SET lock_timeout = '50ms';
