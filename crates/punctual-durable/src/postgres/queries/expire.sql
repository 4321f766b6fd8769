-- Jobs past their time: those that wait end, those that run are settled and their nodes told to stop them. Some of
-- them, and only those that nobody else has in hand.
CREATE OR REPLACE FUNCTION expire(t bigint, max_jobs bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    over uuid;
    expired bigint := 0;
BEGIN
    FOR over IN SELECT id FROM sched WHERE expires_at <= t ORDER BY expires_at LIMIT max_jobs FOR UPDATE SKIP LOCKED LOOP
        expired := expired + (settle(over, 'expired', NULL, t) IS NOT NULL)::int;
    END LOOP;
    FOR over IN SELECT id FROM job WHERE expires_at <= t ORDER BY expires_at LIMIT max_jobs FOR UPDATE SKIP LOCKED LOOP
        expired := expired + (settle(over, 'expired', NULL, t) IS NOT NULL)::int;
    END LOOP;
    RETURN expired;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan;
