-- Ends runs: one answer each, in order; stage null for a run that is not the present one. A result that comes after the outcome was
-- settled is thrown away: the handler has stopped, that is all. The rows are locked in the order of their ids, as by everybody who
-- locks several. `work` says whether somebody may start now who was at its limit.
-- The hottest path beside the claim, so it does by itself what `move` does for others.
CREATE OR REPLACE FUNCTION finish(by_node bigint, ids uuid[], fences bigint[], verdicts text[], texts text[], due_at bigint[], due_in bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (ord bigint, stage text, outcome text, work boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := present(at);
    ords bigint[];
    stages text[];
    outcomes text[];
    ended uuid[];
    -- Those that hold a key or depend on interest.
    bound job[];
    has_late boolean;
    has_room boolean;
BEGIN
    PERFORM catch_up(t);
    WITH run AS MATERIALIZED (
        SELECT DISTINCT ON (f.id, f.fence) f.*
        FROM unnest(ids, fences, verdicts, texts, due_at, due_in) WITH ORDINALITY AS f (id, fence, verdict, told, due_at, due_in, ord)
        ORDER BY f.id, f.fence, f.ord
    ), gone AS (
        -- `|| ''` and `+ 0` keep the planner from an index of what runs, which is full of rows that ran a moment ago.
        DELETE FROM job j USING run r
        WHERE j.id = r.id AND j.node + 0 = by_node AND j.fence = r.fence AND j.stage || '' = 'running'
        RETURNING j.*, r.verdict, r.told, r.ord, coalesce(r.due_at, least(t + coalesce(r.due_in, 0), 4000000000000000000)) AS wished
    ), decided AS (
        SELECT g.*,
               CASE WHEN outcome IS NOT NULL THEN outcome
                    WHEN verdict IN ('succeeded', 'failed', 'cancelled') THEN verdict
                    WHEN verdict = 'retry' AND deadline <= wished THEN 'failed' END AS new_outcome
        FROM gone g
    ), dated AS (
        SELECT d.*,
               CASE WHEN verdict IN ('retry', 'snooze') AND new_outcome IS NULL THEN wished ELSE due END AS new_due,
               CASE WHEN new_outcome IS NOT NULL THEN start_by
                    WHEN verdict IN ('retry', 'snooze') THEN later(wished, start_within)
                    ELSE later(t, start_within) END AS new_start_by
        FROM decided d
    ), next AS (
        SELECT id, seq, tenant, kind, payload, tags, priority, cost, start_within, run_timeout, max_attempts,
               max_crashes, backoff_base, backoff_cap, unique_key, on_conflict, unique_period, wanted_by, schedule, missed, trace,
               CASE WHEN new_outcome IS NOT NULL THEN 'stopped' WHEN new_due <= t THEN 'ready' ELSE 'scheduled' END AS stage,
               new_outcome AS outcome, new_due AS due, new_start_by AS start_by, deadline, new_due + 30000000::bigint * priority AS order_at,
               CASE WHEN new_outcome IS NULL THEN least(new_start_by, deadline) END AS expires_at,
               attempt - CASE WHEN new_outcome IS NULL AND verdict <> 'retry' THEN 1 ELSE 0 END AS attempt,
               fence, crashes, alone, NULL::bigint AS node, enqueued_at, started_at, t AS since,
               CASE WHEN verdict = 'succeeded' AND outcome IS NULL THEN told ELSE result END AS result,
               CASE WHEN verdict IN ('failed', 'cancelled', 'retry') AND outcome IS NULL THEN told ELSE last_error END AS last_error,
               forget, while_wanted, outcome IS NOT NULL AS was_settled, ord
        FROM dated
    ), kept AS (
        INSERT INTO history SELECT n.id, n.seq, n.tenant, n.kind, n.payload, n.tags, n.priority, n.cost, n.start_within, n.run_timeout, n.max_attempts,
            n.max_crashes, n.backoff_base, n.backoff_cap, n.unique_key, n.on_conflict, n.unique_period, n.wanted_by, n.schedule, n.missed, n.trace, n.stage, n.outcome,
            n.due, n.start_by, n.deadline, n.order_at, n.expires_at, n.attempt, n.fence, n.crashes, n.alone, n.node, n.enqueued_at, n.started_at,
            n.since, n.result, n.last_error, n.forget, n.while_wanted
        FROM next n WHERE n.stage = 'stopped' AND NOT n.forget
    ), told AS (
        INSERT INTO ledger (tenant, running, stopping, scheduled, ready, succeeded, failed, cancelled, expired, kept, kind, order_at, seq)
        SELECT n.tenant, -count(*), -count(*) FILTER (WHERE n.was_settled), count(*) FILTER (WHERE n.stage = 'scheduled'), count(*) FILTER (WHERE n.stage = 'ready'),
               count(*) FILTER (WHERE n.outcome = 'succeeded' AND NOT n.forget), count(*) FILTER (WHERE n.outcome = 'failed' AND NOT n.forget),
               count(*) FILTER (WHERE n.outcome = 'cancelled' AND NOT n.forget), count(*) FILTER (WHERE n.outcome = 'expired' AND NOT n.forget),
               count(*) FILTER (WHERE n.stage = 'stopped' AND NOT n.forget),
               CASE WHEN n.stage = 'ready' THEN n.kind END, min(n.order_at) FILTER (WHERE n.stage = 'ready'), min(n.seq) FILTER (WHERE n.stage = 'ready')
        FROM next n GROUP BY n.tenant, CASE WHEN n.stage = 'ready' THEN n.kind END
        RETURNING tenant
    )
    SELECT array_agg(n.ord), array_agg(n.stage), array_agg(n.outcome), array_agg(n.id) FILTER (WHERE n.stage = 'stopped'),
           array_agg(ROW(n.id, n.seq, n.tenant, n.kind, n.payload, n.tags, n.priority, n.cost, n.start_within, n.run_timeout, n.max_attempts,
               n.max_crashes, n.backoff_base, n.backoff_cap, n.unique_key, n.on_conflict, n.unique_period, n.wanted_by, n.schedule, n.missed, n.trace, n.stage,
               n.outcome, n.due, n.start_by, n.deadline, n.order_at, n.expires_at, n.attempt, n.fence, n.crashes, n.alone, n.node, n.enqueued_at,
               n.started_at, n.since, n.result, n.last_error, n.forget, n.while_wanted)::job)
               FILTER (WHERE n.stage <> 'stopped' OR n.unique_key IS NOT NULL OR n.while_wanted),
           bool_or(n.expires_at <= t),
           EXISTS (SELECT FROM tenant p WHERE p.name IN (SELECT l.tenant FROM told l) AND p.running_max IS NOT NULL AND p.has_work)
    INTO ords, stages, outcomes, ended, bound, has_late, has_room
    FROM next n;
    IF bound IS NOT NULL THEN
        INSERT INTO job SELECT b.* FROM unnest(bound) b WHERE b.stage = 'ready';
        INSERT INTO sched SELECT b.* FROM unnest(bound) b WHERE b.stage = 'scheduled';
        PERFORM let_go(ARRAY(SELECT b FROM unnest(bound) b WHERE b.stage = 'stopped'), t);
    END IF;
    IF ended IS NOT NULL THEN
        PERFORM tell_ended(ended);
    END IF;
    IF has_late THEN
        PERFORM expire(t, 1000);
    END IF;
    RETURN QUERY
    SELECT f.ord, coalesce(h.stage, a.stage), coalesce(h.outcome, a.outcome), has_room
    FROM unnest(ids) WITH ORDINALITY AS f (id, ord)
    LEFT JOIN unnest(ords, stages, outcomes) AS a (ord, stage, outcome) ON a.ord = f.ord
    -- Ready again, and past its time already.
    LEFT JOIN LATERAL (SELECT e.stage, e.outcome FROM history e WHERE has_late AND a.outcome IS NULL AND e.id = f.id LIMIT 1) h ON true
    ORDER BY f.ord;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan;
