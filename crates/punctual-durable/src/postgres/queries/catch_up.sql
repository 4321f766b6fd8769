-- What time has brought, so that every answer is as of now whether or not somebody tends the store. Two looks into an
-- index when nothing is due.
CREATE OR REPLACE FUNCTION catch_up(t bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM sched WHERE due <= t) THEN
        PERFORM promote(t, 500);
    END IF;
    IF EXISTS (SELECT FROM sched WHERE expires_at <= t) OR EXISTS (SELECT FROM job WHERE expires_at <= t) THEN
        PERFORM expire(t, 200);
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
