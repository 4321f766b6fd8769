-- Gives a node jobs that are not due yet but will be in a moment: by the time it has them, they nearly are. It starts
-- none before its instant. They go straight from `sched` to it, several with one claim, so each is written once less
-- than one that becomes ready first.
-- Only of tenants whose starts nobody counts: a place of a limit, or a turn of a rate, would be taken before its time.
-- Nor what may expire by then, nor last chances. All these become ready, and are claimed, when they are due. What a
-- tenant gets here is one turn of its, with the costs of all.
CREATE OR REPLACE FUNCTION foresee(to_node bigint, most bigint, open_kinds text[], t bigint, until bigint, INOUT v numeric, OUT jobs job[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    names text[];
    last_due bigint;
    last_seq bigint;
    next_v numeric;
BEGIN
    -- Bounded, whatever falls due at one instant. (Not DISTINCT: for that a server of version 16 or newer would put all
    -- of them in the order of tenants, and the last would not be that which falls due last.)
    SELECT array_agg(s.tenant), (array_agg(s.due))[count(*)], (array_agg(s.seq))[count(*)] INTO names, last_due, last_seq
    FROM (SELECT s.tenant, s.due, s.seq FROM sched s WHERE s.due > t AND s.due <= until ORDER BY s.due, s.seq LIMIT 500) s;
    names := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (names) AND p.running_max IS NULL AND p.rate_gap IS NULL AND NOT p.paused
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF names = '{}' THEN
        RETURN;
    END IF;
    WITH come AS (
        SELECT s.id FROM sched s
        WHERE s.due > t AND (s.due, s.seq) <= (last_due, last_seq) AND s.kind = ANY (open_kinds) AND s.tenant = ANY (names)
          AND NOT s.alone AND (s.expires_at > until) IS NOT FALSE
        ORDER BY s.due, s.seq LIMIT most FOR UPDATE SKIP LOCKED
    ), taken AS (
        DELETE FROM sched s USING come WHERE s.id = come.id RETURNING s.*
    ), placed AS (
        -- A job that was enqueued twice at the same moment, once as due, is there already.
        INSERT INTO job
        SELECT id, seq, tenant, kind, payload, tags, priority, cost, start_within, run_timeout, max_attempts, max_crashes,
               backoff_base, backoff_cap, unique_key, on_conflict, unique_period, wanted_by, schedule, missed, trace,
               'running', NULL, due, start_by, deadline, order_at, deadline, attempt + 1, fence + 1, crashes, alone, to_node,
               enqueued_at, greatest(due, since), greatest(due, since), result, last_error, forget, while_wanted
        FROM taken
        ON CONFLICT (id) DO NOTHING
        RETURNING job
    ), change AS (
        -- By tenant: how many went, how many came, and what those cost. (In one pass: a join would compare all with all.)
        SELECT x.tenant, count(x.gone) AS gone, count(x.cost) AS jobs, least(sum(x.cost), 4294967295) AS cost
        FROM (SELECT s.tenant, 1 AS gone, NULL AS cost FROM taken s
              UNION ALL
              SELECT (c.job).tenant, NULL, greatest((c.job).cost, 1) FROM placed c) x
        GROUP BY x.tenant
    ), charged AS (
        UPDATE tenant p SET
            scheduled = p.scheduled - g.gone, running = p.running + g.jobs,
            finish = CASE WHEN g.jobs = 0 THEN p.finish ELSE greatest(p.finish, v) + div(4294967296 * g.cost, p.weight) END
        FROM change g WHERE p.name = g.tenant
        RETURNING p.finish - div(4294967296 * g.cost, p.weight) AS start
    )
    SELECT greatest(v, (SELECT max(c.start) FROM charged c)), array_agg(c.job ORDER BY (c.job).due, (c.job).seq) INTO next_v, jobs FROM placed c;
    v := next_v;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
