-- What time brings, some of it, and when there is more: jobs that fall due, jobs past their time, the jobs of nodes
-- whose lease has ended. A node that claims or beats at this moment holds its row and is not taken for dead.
-- `has_ticks` says whether it is worth asking for schedules to fire.
CREATE OR REPLACE FUNCTION tend(at bigint DEFAULT NULL) RETURNS TABLE (promoted bigint, expired bigint, lost bigint, next bigint, has_ticks boolean)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    dead bigint;
    lock_wait text := current_setting('lock_timeout');
BEGIN
    -- What has expired did so before its node was taken for dead.
    expired := expire(t, 500);
    lost := 0;
    FOR dead IN SELECT n.id FROM node n WHERE n.expires_at <= t ORDER BY n.id FOR UPDATE SKIP LOCKED LOOP
        BEGIN
            PERFORM set_config('lock_timeout', '50ms', true);
            lost := lost + lose(dead, true, t);
        EXCEPTION WHEN lock_not_available THEN
            -- Somebody's open transaction has one of its jobs. Another time: nothing else waits for that.
            NULL;
        END;
        PERFORM set_config('lock_timeout', lock_wait, true);
    END LOOP;
    -- After the last that may have to wait for somebody: what becomes ready here can be had when this is committed.
    promoted := promote(t, 2000);
    -- What runs have ended, at leisure.
    IF EXISTS (SELECT FROM ledger) THEN
        PERFORM take_news(false);
    END IF;
    next := least(next_tend(t), (SELECT s.due FROM sched s WHERE s.due <= 4000000000000000000 ORDER BY s.due, s.seq LIMIT 1));
    IF next <= t AND promoted + expired + lost = 0 THEN
        -- Somebody else has in hand what is left, and may have it for long: a caller's transaction that replaces a job.
        next := t + 20000;
    END IF;
    has_ticks := EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused);
    RETURN NEXT;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan;
