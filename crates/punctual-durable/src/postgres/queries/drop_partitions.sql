-- Drops the days of jobs that succeeded before an instant; answers how many jobs were in them: all of the day, unless
-- jobs are kept for less than a day, which `prune` takes one by one. A day stays while the period of a job in it holds
-- a unique key, and while somebody is at work in it. A drop locks all of `history`, so it waits for a moment only and
-- comes last: the jobs of all these days are counted before the first of them goes, under locks that let others read,
-- and end jobs of today.
CREATE OR REPLACE FUNCTION drop_partitions(before bigint, t bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    part text;
    is_held boolean;
    counted bigint;
    dropped bigint := 0;
    parts text[] := '{}';
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/history', 0)) THEN
        RETURN 0;
    END IF;
    FOR part IN
        SELECT quote_ident(c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'history_succeeded'::regclass
          AND CASE WHEN c.relname ~ '^history_\d{8}$' THEN extract(epoch FROM right(c.relname, 8)::date + 1) * 1000000 <= before END
        ORDER BY c.relname
    LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE later(enqueued_at, unique_period) > $1)', part) INTO is_held USING t;
        CONTINUE WHEN is_held;
        parts := parts || part;
    END LOOP;
    BEGIN
        FOREACH part IN ARRAY parts LOOP
            EXECUTE format('WITH told AS (INSERT INTO ledger (tenant, kept) SELECT tenant, -count(*) FROM %s GROUP BY tenant RETURNING kept)
                            SELECT coalesce(-sum(kept), 0) FROM told', part) INTO counted;
            dropped := dropped + counted;
        END LOOP;
        IF parts <> '{}' THEN
            EXECUTE 'DROP TABLE ' || array_to_string(parts, ', ');
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        dropped := 0;
    END;
    RETURN dropped;
END $$ SET search_path FROM CURRENT SET lock_timeout = '50ms';
