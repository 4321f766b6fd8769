-- What time has brought to some tenants, and to nobody else: for those who go on to wait for others, or for long, and
-- would keep the jobs of strangers from their start meanwhile. Of all that is due it looks at the first 2,000: there
-- are more only if nobody has claimed or tended for long.
CREATE OR REPLACE FUNCTION catch_up_of(names text[], t bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT bigint := 2000;
    live job;
    before job[] := '{}';
    after job[] := '{}';
    over uuid;
BEGIN
    FOR live IN
        DELETE FROM sched s WHERE s.id = ANY (ARRAY(
            SELECT c.id FROM sched c
            WHERE c.id = ANY (ARRAY(SELECT d.id FROM (SELECT o.id, o.tenant FROM sched o WHERE o.due <= t ORDER BY o.due, o.seq LIMIT most) d
                                    WHERE d.tenant = ANY (names)))
              AND c.due <= t AND (c.expires_at > t) IS NOT FALSE
            FOR UPDATE SKIP LOCKED))
        RETURNING s.*
    LOOP
        before := before || live;
        live.stage := 'ready';
        live.since := greatest(live.due, live.since);
        after := after || live;
    END LOOP;
    IF before <> '{}' THEN
        PERFORM move(before, after, t);
    END IF;
    FOR over IN
        SELECT s.id FROM sched s
        WHERE s.id = ANY (ARRAY(SELECT e.id FROM (SELECT o.id, o.tenant FROM sched o WHERE o.expires_at <= t ORDER BY o.expires_at LIMIT most) e
                                WHERE e.tenant = ANY (names)))
          AND s.expires_at <= t
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM settle(over, 'expired', NULL, t);
    END LOOP;
    FOR over IN
        SELECT j.id FROM job j
        WHERE j.id = ANY (ARRAY(SELECT e.id FROM (SELECT o.id, o.tenant FROM job o WHERE o.expires_at <= t ORDER BY o.expires_at LIMIT most) e
                                WHERE e.tenant = ANY (names)))
          AND j.expires_at <= t
        FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM settle(over, 'expired', NULL, t);
    END LOOP;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan;
