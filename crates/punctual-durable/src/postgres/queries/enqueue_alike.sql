-- Takes in jobs that differ in nothing but their ids and payloads, whose ids were made for them and never sent before, and that leave nothing to decide: no
-- unique key, interest or time limit. What one plan enqueues, or what many callers of one kind enqueue at the same moment, comes so, and is
-- written as it comes: no id is looked up. No answer at all means that all are new; there is one for each, by number, if the tenant is bounded.
CREATE OR REPLACE FUNCTION enqueue_alike(
    ids uuid[], payloads text[], of_kind text, of_tenant text, tags text, priority smallint, cost bigint, due_at bigint, due_in bigint, run_timeout bigint,
    max_attempts bigint, max_crashes bigint, backoff_base bigint, backoff_cap bigint, trace text, at bigint DEFAULT NULL)
RETURNS TABLE (ord bigint, status text, other uuid, count bigint, max bigint, retry_after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    due bigint := coalesce(due_at, least(t + coalesce(due_in, 0), 4000000000000000000));
    order_at bigint := due + 30000000::bigint * priority;
    n int[] := ARRAY[cardinality(ids)];
    -- Before the first of them, which is near enough.
    first_seq bigint := nextval('arrival');
BEGIN
    IF EXISTS (SELECT FROM tenant p WHERE p.name = of_tenant AND (p.closed OR p.backlog_max IS NOT NULL OR p.scheduled_max IS NOT NULL)) THEN
        RETURN QUERY
        SELECT e.* FROM enqueue_batch(
            ids, array_fill(of_kind, n), array_fill(of_tenant, n), payloads, array_fill(tags, n), array_fill(priority, n), array_fill(cost, n),
            array_fill(due_at, n), array_fill(due_in, n), array_fill(NULL::bigint, n), array_fill(run_timeout, n), array_fill(NULL::bigint, n),
            array_fill(NULL::bigint, n), array_fill(max_attempts, n), array_fill(max_crashes, n), array_fill(backoff_base, n), array_fill(backoff_cap, n),
            array_fill(NULL::text, n), array_fill(NULL::text, n), array_fill(NULL::bigint, n), array_fill(NULL::bigint, n), array_fill(NULL::text, n),
            array_fill(0::bigint, n), array_fill(trace, n), at) e;
        RETURN;
    END IF;
    IF due <= t THEN
        INSERT INTO job
        SELECT u.id, nextval('arrival'), of_tenant, of_kind, u.payload, tags::text[], priority, cost, NULL, run_timeout, max_attempts, max_crashes,
               backoff_base, backoff_cap, NULL, NULL, NULL, NULL, NULL, 0, trace, 'ready', NULL, due, NULL, NULL, order_at, NULL, 0, 0, 0, false, NULL,
               t, NULL, t, NULL, NULL, false, false
        FROM unnest(ids, payloads) AS u (id, payload);
        INSERT INTO ledger (tenant, ready, kind, order_at, seq) VALUES (of_tenant, n[1], of_kind, order_at, first_seq);
    ELSE
        INSERT INTO sched
        SELECT u.id, nextval('arrival'), of_tenant, of_kind, u.payload, tags::text[], priority, cost, NULL, run_timeout, max_attempts, max_crashes,
               backoff_base, backoff_cap, NULL, NULL, NULL, NULL, NULL, 0, trace, 'scheduled', NULL, due, NULL, NULL, order_at, NULL, 0, 0, 0, false, NULL,
               t, NULL, t, NULL, NULL, false, false
        FROM unnest(ids, payloads) AS u (id, payload);
        INSERT INTO ledger (tenant, scheduled, seq) VALUES (of_tenant, n[1], first_seq);
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
