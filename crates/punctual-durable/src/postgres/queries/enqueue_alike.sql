-- Takes in jobs that differ in nothing but their ids and payloads, whose ids were made for them and never sent before,
-- and that leave nothing to decide: no unique key, interest or time limit. What one plan enqueues, or what many callers
-- of one kind enqueue at the same moment, comes so, and is written as it comes: no id is looked up. No answer at all
-- means that all are new; there is one for each, by number, if the tenant is bounded.
-- A node of the caller that has nothing to do may be named: it gets them in the same step, if they are due and nobody's
-- turn or place is taken by that: nothing of their tenant waits, and its starts are not counted; and if it has begun no
-- era since it said so. Then the only answer is `given`, with the instant. Who holds a row that this needs is not
-- waited for.
CREATE OR REPLACE FUNCTION enqueue_alike(
    ids uuid[], payloads text[], of_kind text, of_tenant text, tags text, priority smallint, cost bigint, due_at bigint, due_in bigint, run_timeout bigint,
    max_attempts bigint, max_crashes bigint, backoff_base bigint, backoff_cap bigint, trace text, at bigint DEFAULT NULL,
    to_node bigint DEFAULT NULL, of_era bigint DEFAULT NULL)
RETURNS TABLE (ord bigint, status text, other uuid, count bigint, max bigint, retry_after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    due bigint := coalesce(due_at, least(t + coalesce(due_in, 0), 4000000000000000000));
    order_at bigint := due + 30000000::bigint * priority;
    n int[] := ARRAY[cardinality(ids)];
    -- Before the first of them, which is near enough.
    first_seq bigint := nextval('arrival');
    -- Virtual time at which they start, and what they cost of it.
    start numeric;
    own numeric;
    why text := misfit(of_kind, of_tenant, NULL, NULL, tags::text[], priority, cost, max_attempts, max_crashes,
                       least(due_in, run_timeout, backoff_base, backoff_cap), due_at, greatest(due_at, due_in));
BEGIN
    IF why IS NOT NULL THEN
        RAISE check_violation USING MESSAGE = why;
    END IF;
    IF EXISTS (SELECT FROM tenant p WHERE p.name = of_tenant AND (p.closed OR p.backlog_max IS NOT NULL OR p.scheduled_max IS NOT NULL)) THEN
        RETURN QUERY
        SELECT e.* FROM enqueue_batch(
            ids, array_fill(of_kind, n), array_fill(of_tenant, n), payloads, array_fill(tags, n), array_fill(priority, n), array_fill(cost, n),
            array_fill(due_at, n), array_fill(due_in, n), array_fill(NULL::bigint, n), array_fill(run_timeout, n), array_fill(NULL::bigint, n),
            array_fill(NULL::bigint, n), array_fill(max_attempts, n), array_fill(max_crashes, n), array_fill(backoff_base, n), array_fill(backoff_cap, n),
            array_fill(NULL::text, n), array_fill(NULL::text, n), array_fill(NULL::bigint, n), array_fill(NULL::bigint, n), array_fill(NULL::text, n),
            array_fill(0::bigint, n), array_fill(trace, n), array_fill(false, n), at) e;
        RETURN;
    END IF;
    IF to_node IS NOT NULL AND NOT has_function_privilege(session_user, 'claim(bigint, bigint, text[], bigint[], bigint, bigint, bigint, bigint, bigint)'::regprocedure, 'EXECUTE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied to give jobs to a node: only who may claim can';
    ELSIF to_node IS NOT NULL AND due <= t THEN
        SELECT greatest(p.finish, (SELECT max(o.turn) FROM node o), (SELECT g.at FROM turn g)),
               div(4294967296::numeric * least(n[1] * greatest(enqueue_alike.cost, 1), 4294967295), p.weight)
        INTO start, own
        FROM tenant p, node o
        WHERE p.name = of_tenant AND o.id = to_node AND (o.era <= of_era) IS NOT FALSE AND NOT p.has_work AND NOT p.paused AND p.running_max IS NULL AND p.rate_gap IS NULL
          AND NOT EXISTS (SELECT FROM ledger l WHERE l.tenant = of_tenant AND l.kind IS NOT NULL)
        FOR NO KEY UPDATE OF p, o SKIP LOCKED;
    END IF;
    IF start IS NOT NULL THEN
        INSERT INTO job
        SELECT u.id, nextval('arrival'), of_tenant, of_kind, u.payload, tags::text[], priority, cost, NULL, run_timeout, max_attempts, max_crashes,
               backoff_base, backoff_cap, NULL, NULL, NULL, NULL, NULL, 0, trace, 'running', NULL, due, NULL, NULL, order_at, NULL, 1, 1, 0, false, to_node,
               t, t, t, NULL, NULL, false, false
        FROM unnest(ids, payloads) AS u (id, payload);
        INSERT INTO run VALUES (to_node, ids);
        UPDATE tenant p SET running = p.running + n[1], finish = start + own WHERE p.name = of_tenant;
        UPDATE node o SET turn = greatest(o.turn, start) WHERE o.id = to_node;
        RETURN QUERY SELECT 0::bigint, 'given', NULL::uuid, t, NULL::bigint, NULL::bigint;
    ELSIF due <= t THEN
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
