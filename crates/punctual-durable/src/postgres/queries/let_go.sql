-- Jobs have ended: their unique keys are free, unless a period still holds them; nobody has interest in them any more;
-- whoever waits for them is told.
CREATE OR REPLACE FUNCTION let_go(ended job[], t bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM unnest(ended) e WHERE e.unique_key IS NOT NULL) THEN
        UPDATE live_key k SET taken_until = later(e.enqueued_at, e.unique_period)
        FROM unnest(ended) e
        WHERE k.tenant = e.tenant AND k.key = e.unique_key AND k.job = e.id AND NOT e.forget
          AND later(e.enqueued_at, e.unique_period) > t;
        DELETE FROM live_key k USING unnest(ended) e
        WHERE k.tenant = e.tenant AND k.key = e.unique_key AND k.job = e.id
          AND (e.forget OR (later(e.enqueued_at, e.unique_period) > t) IS NOT TRUE);
    END IF;
    IF EXISTS (SELECT FROM unnest(ended) e WHERE e.while_wanted) THEN
        DELETE FROM interest i USING unnest(ended) e WHERE i.job = e.id AND e.while_wanted;
    END IF;
    PERFORM tell_ended(ARRAY(SELECT e.id FROM unnest(ended) e));
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
