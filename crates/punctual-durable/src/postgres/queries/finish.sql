-- Ends runs: one answer each, in order; stage null for a run that is not the present one. If all have ended as is said
-- here, which is nearly always so, there is one answer for all of them, by the number 0. A result that comes after the
-- outcome was settled is thrown away: the handler has stopped, that is all. The rows are locked in the order in which
-- they are named, which should be that of their ids, as by everybody who locks several; of a run that is named twice
-- the first word counts. `work` says whether somebody may start now who was held back: true if so, which it also is if
-- the ledger has news of work that a claim, at this moment, may be taking in beside the limit as it was; false if only
-- a claim of the same process can know, null if not.
-- The hottest path beside the claim, so for jobs that end it does by itself what `move` does for others.
CREATE OR REPLACE FUNCTION finish(by_node bigint, ids uuid[], fences bigint[], verdicts text[], texts text[], due_at bigint[], due_in bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (ord bigint, stage text, outcome text, work boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := present(at);
    -- Those that ended, by their places, and how, if that was settled before.
    ords bigint[];
    outcomes text[];
    are_all boolean;
    -- Those that hold a key or depend on interest.
    bound job[];
    has_room boolean;
    -- Those that go on, as they were and as they are, and their places.
    before job[];
    after job[];
    places bigint[];
BEGIN
    -- A run past its deadline has expired, whatever came of it. What else has expired or fallen due is no business of
    -- those that end.
    IF EXISTS (SELECT FROM job WHERE expires_at <= t) THEN
        PERFORM settle(r.id, 'expired', NULL, t) FROM unnest(ids, fences) AS r (id, fence) JOIN job j ON j.id = r.id
        WHERE j.node = by_node AND j.fence = r.fence AND j.stage = 'running' AND j.expires_at <= t;
    END IF;
    -- What becomes of a row is said where it is deleted, so that it is unpacked and put together once; what several ask
    -- for comes first.
    WITH gone AS (
        DELETE FROM job j USING unnest(ids, fences, verdicts, texts) WITH ORDINALITY AS r (id, fence, verdict, told, ord)
        WHERE j.id = r.id AND j.node = by_node AND j.fence = r.fence AND j.stage = 'running' AND r.verdict IN ('succeeded', 'failed', 'cancelled')
        RETURNING r.ord, j.tenant AS of_tenant, j.outcome AS settled, coalesce(j.outcome, r.verdict) AS final, j.forget AS is_forgotten, j.alone AS was_alone,
                  CASE WHEN j.unique_key IS NOT NULL OR j.while_wanted THEN j END AS was,
                  j.id, j.seq, j.tenant, j.kind, j.payload, j.tags, j.priority, j.cost, j.start_within, j.run_timeout, j.max_attempts, j.max_crashes,
                  j.backoff_base, j.backoff_cap, j.unique_key, j.on_conflict, j.unique_period, j.wanted_by, j.schedule, j.missed, j.trace, 'stopped' AS stage,
                  coalesce(j.outcome, r.verdict) AS outcome, j.due, j.start_by, j.deadline, j.order_at, NULL::bigint AS expires_at, j.attempt, j.fence, j.crashes, j.alone,
                  NULL::bigint AS node, j.enqueued_at, j.started_at, t AS since, CASE WHEN r.verdict = 'succeeded' AND j.outcome IS NULL THEN r.told ELSE j.result END AS result,
                  CASE WHEN r.verdict <> 'succeeded' AND j.outcome IS NULL THEN r.told ELSE j.last_error END AS last_error, j.forget, j.while_wanted
    ), kept AS (
        INSERT INTO history
        SELECT g.id, g.seq, g.tenant, g.kind, g.payload, g.tags, g.priority, g.cost, g.start_within, g.run_timeout, g.max_attempts, g.max_crashes,
               g.backoff_base, g.backoff_cap, g.unique_key, g.on_conflict, g.unique_period, g.wanted_by, g.schedule, g.missed, g.trace, g.stage, g.outcome,
               g.due, g.start_by, g.deadline, g.order_at, g.expires_at, g.attempt, g.fence, g.crashes, g.alone, g.node, g.enqueued_at, g.started_at, g.since,
               g.result, g.last_error, g.forget, g.while_wanted
        FROM gone g WHERE NOT g.is_forgotten
    ), told AS (
        INSERT INTO ledger (tenant, running, stopping, succeeded, failed, cancelled, expired, kept)
        SELECT g.of_tenant, -count(*), -count(g.settled), count(*) FILTER (WHERE g.final = 'succeeded' AND NOT g.is_forgotten),
               count(*) FILTER (WHERE g.final = 'failed' AND NOT g.is_forgotten), count(*) FILTER (WHERE g.final = 'cancelled' AND NOT g.is_forgotten),
               count(*) FILTER (WHERE g.final = 'expired' AND NOT g.is_forgotten), count(*) FILTER (WHERE NOT g.is_forgotten)
        FROM gone g GROUP BY g.of_tenant
        RETURNING tenant
    )
    SELECT array_agg(g.ord), array_agg(g.settled), count(*) = cardinality(ids) AND count(g.settled) = 0,
           array_agg(g.was) FILTER (WHERE g.was IS DISTINCT FROM NULL),
           CASE WHEN bool_or(g.was_alone) THEN true ELSE (SELECT bool_or(p.has_work OR EXISTS (SELECT FROM ledger n WHERE n.tenant = p.name AND n.kind IS NOT NULL))
                                                             FROM told l JOIN tenant p ON p.name = l.tenant WHERE p.running_max IS NOT NULL) END
    INTO ords, outcomes, are_all, bound, has_room
    FROM gone g;
    IF bound IS NOT NULL THEN
        PERFORM let_go(bound, t);
    END IF;
    IF ords IS NOT NULL AND EXISTS (SELECT FROM waiter) THEN
        PERFORM tell_ended(ARRAY(SELECT ids[o] FROM unnest(ords) o));
    END IF;
    IF are_all THEN
        RETURN QUERY SELECT 0::bigint, 'stopped', NULL, has_room;
        RETURN;
    ELSIF verdicts <@ '{succeeded,failed,cancelled}' THEN
        RETURN QUERY
        SELECT f.ord, CASE WHEN a.ord IS NOT NULL THEN 'stopped' END, coalesce(a.outcome, verdicts[a.ord]), has_room
        FROM generate_series(1, cardinality(ids)::bigint) AS f (ord) LEFT JOIN unnest(ords, outcomes) AS a (ord, outcome) ON a.ord = f.ord
        ORDER BY f.ord;
        RETURN;
    END IF;

    -- Those that go on: ready again, or later, or stopped because their outcome was settled while they ran.
    WITH gone AS (
        DELETE FROM job j USING unnest(ids, fences, verdicts, texts, due_at, due_in) WITH ORDINALITY AS r (id, fence, verdict, told, due_at, due_in, ord)
        WHERE j.id = r.id AND j.node = by_node AND j.fence = r.fence AND j.stage = 'running' AND r.verdict NOT IN ('succeeded', 'failed', 'cancelled')
        RETURNING j, j.*, r.verdict, r.told, r.ord, coalesce(r.due_at, least(t + coalesce(r.due_in, 0), 4000000000000000000)) AS wished
    ), decided AS (
        SELECT g.*, coalesce(outcome, CASE WHEN verdict = 'retry' AND deadline <= wished THEN 'failed' END) AS final FROM gone g
    ), dated AS (
        SELECT d.*,
               CASE WHEN verdict IN ('retry', 'snooze') AND final IS NULL THEN wished ELSE due END AS new_due,
               CASE WHEN final IS NOT NULL THEN start_by
                    WHEN verdict IN ('retry', 'snooze') THEN later(wished, start_within)
                    ELSE later(greatest(t, due), start_within) END AS new_start_by
        FROM decided d
    )
    SELECT array_agg(d.ord), array_agg(d.j),
           array_agg(ROW(d.id, d.seq, d.tenant, d.kind, d.payload, d.tags, d.priority, d.cost, d.start_within, d.run_timeout, d.max_attempts, d.max_crashes,
               d.backoff_base, d.backoff_cap, d.unique_key, d.on_conflict, d.unique_period, d.wanted_by, d.schedule, d.missed, d.trace,
               CASE WHEN final IS NOT NULL THEN 'stopped' WHEN new_due <= t THEN 'ready' ELSE 'scheduled' END, final, new_due, new_start_by, d.deadline,
               new_due + 30000000::bigint * d.priority, CASE WHEN final IS NULL THEN least(new_start_by, d.deadline) END,
               d.attempt - CASE WHEN final IS NULL AND verdict <> 'retry' THEN 1 ELSE 0 END, d.fence, d.crashes, d.alone, NULL, d.enqueued_at, d.started_at, t,
               d.result, CASE WHEN verdict = 'retry' AND outcome IS NULL THEN told ELSE d.last_error END, d.forget, d.while_wanted)::job)
    INTO places, before, after
    FROM dated d;
    PERFORM move(before, after, t);
    IF EXISTS (SELECT FROM unnest(after) a WHERE a.expires_at <= t) THEN
        PERFORM expire(t, 1000);
    END IF;
    has_room := greatest(has_room, (SELECT bool_or(b.alone OR p.has_work OR EXISTS (SELECT FROM ledger n WHERE n.tenant = p.name AND n.kind IS NOT NULL))
                                    FROM unnest(before) b JOIN tenant p ON p.name = b.tenant
                                    WHERE b.alone OR p.running_max IS NOT NULL));
    RETURN QUERY
    SELECT f.ord, coalesce(h.stage, s.stage, CASE WHEN a.ord IS NOT NULL THEN 'stopped' END), coalesce(h.outcome, s.outcome, a.outcome, verdicts[a.ord]), has_room
    FROM unnest(ids) WITH ORDINALITY AS f (id, ord)
    LEFT JOIN unnest(ords, outcomes) AS a (ord, outcome) ON a.ord = f.ord
    LEFT JOIN (SELECT p.ord, m.stage, m.outcome, m.expires_at FROM unnest(places) WITH ORDINALITY AS p (ord, place)
               JOIN unnest(after) WITH ORDINALITY AS m ON m.ordinality = p.place) s ON s.ord = f.ord
    -- Ready again, and past its time already.
    LEFT JOIN LATERAL (SELECT e.stage, e.outcome FROM history e WHERE s.expires_at <= t AND e.id = f.id LIMIT 1) h ON true
    ORDER BY f.ord;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan;
