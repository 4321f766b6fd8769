-- Waits for the tenant whose turn it is, which another claim has at this moment: that one is done in a few
-- milliseconds, and with a single tenant there is nobody else to serve. Not for long, so that a claim is there again
-- for whoever comes meanwhile. Only for a claim that has nobody's row: so those who wait have nothing that others wait
-- for. Says whether it was worth it.
CREATE OR REPLACE FUNCTION wait_for_turn(open_kinds text[], v numeric, t_ns bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    first text;
BEGIN
    SELECT o.name INTO first FROM tenant o
    WHERE o.has_work AND NOT o.paused AND o.kinds && open_kinds
      AND (o.running_max IS NULL OR o.running < o.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = o.name AND l.running < 0))
      AND (o.rate_next - o.rate_tolerance <= t_ns) IS NOT FALSE
    ORDER BY greatest(o.finish, v), o.number LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM tenant p WHERE p.name = first FOR NO KEY UPDATE;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$ SET search_path FROM CURRENT SET lock_timeout = '20ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
