-- What time brings, some of it, and when there is more: jobs that fall due, jobs past their time, the jobs of nodes whose lease has
-- ended. A node that claims or beats at this moment holds its row and is not taken for dead.
CREATE OR REPLACE FUNCTION tend(at bigint DEFAULT NULL) RETURNS TABLE (promoted bigint, expired bigint, lost bigint, next bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    dead bigint;
BEGIN
    -- What has expired did so before its node was taken for dead.
    promoted := promote(t, 2000);
    expired := expire(t, 500);
    lost := 0;
    FOR dead IN SELECT n.id FROM node n WHERE n.expires_at <= t ORDER BY n.id FOR UPDATE SKIP LOCKED LOOP
        lost := lost + lose(dead, true, t);
    END LOOP;
    -- What runs have ended, at leisure.
    IF EXISTS (SELECT FROM ledger) THEN
        PERFORM take_news(false);
    END IF;
    next := least(
        (SELECT s.due FROM sched s ORDER BY s.due, s.seq LIMIT 1),
        (SELECT s.expires_at FROM sched s WHERE s.expires_at IS NOT NULL ORDER BY s.expires_at LIMIT 1),
        (SELECT j.expires_at FROM job j WHERE j.expires_at IS NOT NULL ORDER BY j.expires_at LIMIT 1),
        (SELECT min(n.expires_at) FROM node n),
        (SELECT c.next FROM schedule c WHERE c.next > t AND NOT c.paused ORDER BY c.next LIMIT 1));
    RETURN NEXT;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan;
