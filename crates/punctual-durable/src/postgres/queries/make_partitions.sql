-- Makes the tables for the jobs that succeed today and on the next three days (UTC), as far as they are missing. This
-- locks all of `history` (a table attached without that lock fails those who are about to write into
-- `history_undated`), so it waits for a moment only and comes last in its transaction: while somebody reads for long,
-- it is left for the next time. Jobs of a day that are in `history_undated` already stay there, and the day goes
-- without a table.
CREATE OR REPLACE FUNCTION make_partitions(t bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    day CONSTANT bigint := 86400000000;
    first bigint := t - t % day;
    begins bigint;
    part text;
BEGIN
    -- Dates of four digits, and one maker at a time.
    IF t NOT BETWEEN 0 AND 250000000000000000 OR NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/history', 0)) THEN
        RETURN;
    END IF;
    FOR begins IN SELECT generate_series(first, first + 3 * day, day) LOOP
        part := 'history_' || to_char(to_timestamp(begins / 1000000) AT TIME ZONE 'UTC', 'YYYYMMDD');
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %I PARTITION OF history_succeeded FOR VALUES FROM (%s) TO (%s)', part, begins, begins + day);
        EXCEPTION
            WHEN lock_not_available THEN
                RETURN;
            WHEN check_violation THEN
                CONTINUE;
        END;
    END LOOP;
END $$ SET search_path FROM CURRENT SET lock_timeout = '50ms';
