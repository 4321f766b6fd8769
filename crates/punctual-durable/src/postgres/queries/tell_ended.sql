-- Tells the processes that wait for these jobs that their outcome is settled. Inside the transaction, so that nobody is
-- told of what did not happen; and only if somebody waits, because a notification makes commits wait for each other.
CREATE OR REPLACE FUNCTION tell_ended(ids uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    awaited uuid[];
BEGIN
    IF NOT EXISTS (SELECT FROM waiter) THEN
        RETURN;
    END IF;
    WITH told AS (DELETE FROM waiter WHERE job = ANY (ids) RETURNING job)
    SELECT array_agg(DISTINCT job) INTO awaited FROM told;
    IF cardinality(awaited) > 200 THEN
        PERFORM pg_notify(current_schema(), 'E');
    ELSIF awaited IS NOT NULL THEN
        PERFORM pg_notify(current_schema(), 'e' || array_to_string(awaited, ','));
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
