-- Takes jobs in, given by columns: what concurrent callers of one process enqueue is one call and one commit. One
-- answer each, by number.
-- If one of them is out of bounds, none is taken in: whoever calls finds out which. `are_given` says whose ids were not
-- made for this call, and may come twice; all, if it is null.
-- A batch with nothing to decide (no unique key, interest or time limit, no bounded tenant) is written as it comes.
CREATE OR REPLACE FUNCTION enqueue_batch(
    ids uuid[], kinds text[], tenants text[], payloads text[], tags text[], priorities smallint[], costs bigint[], due_at bigint[], due_in bigint[],
    start_withins bigint[], run_timeouts bigint[], deadline_at bigint[], deadline_in bigint[], max_attempts bigint[], max_crashes bigint[],
    backoff_bases bigint[], backoff_caps bigint[], unique_keys text[], on_conflicts text[], unique_periods bigint[], wanted_by bigint[],
    schedules text[], missed bigint[], traces text[], are_given boolean[] DEFAULT NULL, at bigint DEFAULT NULL)
RETURNS TABLE (ord bigint, status text, other uuid, count bigint, max bigint, retry_after bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := present(at);
    given record;
    -- Of an id that is there twice the first counts.
    is_doubled boolean := false;
    seqs bigint[];
    doubled uuid[];
    known uuid[] := '{}';
    due bigint;
    one job;
    why text;
    bounded text[];
    -- The tenant whose jobs are being taken in, what it has, and those that were, for the ledger.
    of_tenant text;
    load bigint[];
    is_in boolean;
    new_kinds text[] := '{}';
    new_at bigint[] := '{}';
    new_seqs bigint[] := '{}';
BEGIN
    IF cardinality(ids) = 1 THEN
        why := misfit(kinds[1], tenants[1], unique_keys[1], schedules[1], tags[1]::text[], priorities[1], costs[1], max_attempts[1], max_crashes[1],
                      least(due_in[1], start_withins[1], run_timeouts[1], deadline_in[1], backoff_bases[1], backoff_caps[1], unique_periods[1]),
                      least(due_at[1], deadline_at[1]), greatest(due_at[1], due_in[1], deadline_at[1], deadline_in[1]));
    ELSE
        SELECT m.why INTO why
        FROM (SELECT misfit(n.kind, n.tenant, n.unique_key, n.schedule, n.tags::text[], n.priority, n.cost, n.attempts, n.crashes,
                            least(n.due_in, n.start_within, n.run_timeout, n.deadline_in, n.backoff_base, n.backoff_cap, n.unique_period),
                            least(n.due_at, n.deadline_at), greatest(n.due_at, n.due_in, n.deadline_at, n.deadline_in)) AS why
              FROM unnest(kinds, tenants, unique_keys, schedules, tags, priorities, costs, max_attempts, max_crashes, due_in, start_withins, run_timeouts,
                          deadline_in, backoff_bases, backoff_caps, unique_periods, due_at, deadline_at)
                   AS n (kind, tenant, unique_key, schedule, tags, priority, cost, attempts, crashes, due_in, start_within, run_timeout,
                         deadline_in, backoff_base, backoff_cap, unique_period, due_at, deadline_at)) m
        WHERE m.why IS NOT NULL LIMIT 1;
    END IF;
    IF why IS NOT NULL THEN
        RAISE check_violation USING MESSAGE = why;
    END IF;
    IF cardinality(ids) > 1 THEN
        is_doubled := cardinality(ids) > (SELECT count(DISTINCT i) FROM unnest(ids) i);
    END IF;
    IF array_remove(unique_keys, NULL) <> '{}' OR array_remove(wanted_by, NULL) <> '{}' OR array_remove(start_withins, NULL) <> '{}'
       OR is_doubled
       OR array_remove(deadline_at, NULL) <> '{}' OR array_remove(deadline_in, NULL) <> '{}'
       OR EXISTS (SELECT FROM tenant p WHERE p.name = ANY (tenants) AND (p.closed OR p.backlog_max IS NOT NULL OR p.scheduled_max IS NOT NULL)) THEN
        -- Turns before anything else; then places may have become free.
        bounded := take_turns(tenants);
        IF bounded <> '{}' THEN
            PERFORM catch_up_of(bounded, t);
        END IF;
        -- By tenant, and by key or id where no bound makes the order count: two batches that want the same, in
        -- whatever order they name it, take turns and do not wait for each other. Arrival is the order of the batch all
        -- the same, and so is who has a key.
        FOR given IN
            WITH new AS MATERIALIZED (
                SELECT n.*, nextval('arrival') AS seq
                FROM unnest(ids, kinds, tenants, payloads, tags, priorities, costs, due_at, due_in, start_withins, run_timeouts, deadline_at, deadline_in,
                            max_attempts, max_crashes, backoff_bases, backoff_caps, unique_keys, on_conflicts, unique_periods, wanted_by, schedules,
                            missed, traces, are_given) WITH ORDINALITY
                     AS n (id, kind, tenant, payload, tags, priority, cost, due_at, due_in, start_within, run_timeout, deadline_at, deadline_in,
                           max_attempts, max_crashes, backoff_base, backoff_cap, unique_key, on_conflict, unique_period, wanted_by, schedule,
                           missed, trace, is_given, ord)
            )
            SELECT n.ord, coalesce(n.is_given, true) AS is_given,
                   ROW(n.id, n.seq, n.tenant, n.kind, n.payload, n.tags::text[], n.priority, n.cost, n.start_within, n.run_timeout,
                   n.max_attempts, n.max_crashes, n.backoff_base, n.backoff_cap, n.unique_key, n.on_conflict, n.unique_period, n.wanted_by,
                   n.schedule, n.missed, n.trace, CASE WHEN d.due <= t THEN 'ready' ELSE 'scheduled' END, NULL, d.due, d.start_by, d.deadline,
                   d.due + 30000000::bigint * n.priority, least(d.start_by, d.deadline), 0, 0, 0, false, NULL, t, NULL, t, NULL, NULL, false,
                   n.wanted_by IS NOT NULL)::job AS one
            FROM new n
                 CROSS JOIN LATERAL (SELECT w.due, later(w.due, n.start_within) AS start_by,
                                 coalesce(n.deadline_at, CASE WHEN n.deadline_in IS NOT NULL THEN least(t + n.deadline_in, 4000000000000000000) END) AS deadline
                          FROM (SELECT coalesce(n.due_at, least(t + coalesce(n.due_in, 0), 4000000000000000000)) AS due) w) d
                 CROSS JOIN LATERAL (SELECT CASE WHEN NOT is_doubled THEN n.tenant COLLATE "C" END AS by_tenant,
                                            CASE WHEN NOT is_doubled AND n.tenant <> ALL (bounded) THEN n.unique_key COLLATE "C" END AS by_key,
                                            CASE WHEN NOT is_doubled AND n.tenant <> ALL (bounded) AND n.unique_key IS NULL THEN n.id END AS by_id) o
            ORDER BY o.by_tenant, o.by_key NULLS FIRST, o.by_id, n.ord
        LOOP
            IF (given.one).tenant IS DISTINCT FROM of_tenant THEN
                PERFORM tell_new(of_tenant, new_kinds, new_at, new_seqs);
                of_tenant := (given.one).tenant;
                load := NULL;
                new_kinds := '{}';
                new_at := '{}';
                new_seqs := '{}';
            END IF;
            ord := given.ord;
            SELECT e.load, e.is_in, e.status, e.other, e.count, e.max, e.retry_after INTO load, is_in, status, other, count, max, retry_after
            FROM enqueue_one(given.one, t, given.is_given, load) e;
            IF is_in THEN
                new_kinds := array_append(new_kinds, CASE WHEN (given.one).stage = 'ready' THEN (given.one).kind END);
                new_at := array_append(new_at, (given.one).order_at);
                new_seqs := array_append(new_seqs, (given.one).seq);
            END IF;
            RETURN NEXT;
        END LOOP;
        PERFORM tell_new(of_tenant, new_kinds, new_at, new_seqs);
        RETURN;
    END IF;
    IF (true = ANY (are_given)) IS NOT FALSE THEN
        -- What is known is left alone: a row of the same id, if only for a moment, would be in the way of whoever
        -- promotes it, or puts it off.
        known := ARRAY(SELECT j.id FROM job j WHERE j.id = ANY (ids) UNION ALL SELECT s.id FROM sched s WHERE s.id = ANY (ids)
                       UNION ALL SELECT h.id FROM history h WHERE h.id = ANY (ids));
        PERFORM meet(array_agg(n.id), array_agg(n.id) FILTER (WHERE coalesce(n.at, t + n.after) > t))
        FROM unnest(ids, due_at, due_in, are_given) AS n (id, at, after, is_given) WHERE n.is_given IS NOT FALSE AND n.id <> ALL (known);
    END IF;
    IF cardinality(ids) = 1 AND known <> '{}' THEN
        NULL;
    ELSIF cardinality(ids) = 1 THEN
        -- The same as below in small steps: for one job half of the time would go into making a big statement ready.
        seqs := ARRAY[nextval('arrival')];
        due := coalesce(due_at[1], least(t + coalesce(due_in[1], 0), 4000000000000000000));
        one := ROW(ids[1], seqs[1], tenants[1], kinds[1], payloads[1], tags[1]::text[], priorities[1], costs[1], NULL, run_timeouts[1], max_attempts[1],
            max_crashes[1], backoff_bases[1], backoff_caps[1], NULL, NULL, NULL, NULL, schedules[1], missed[1], traces[1],
            CASE WHEN due <= t THEN 'ready' ELSE 'scheduled' END, NULL, due, NULL, NULL, due + 30000000::bigint * priorities[1], NULL, 0, 0, 0, false, NULL,
            t, NULL, t, NULL, NULL, false, false)::job;
        IF due <= t THEN
            INSERT INTO job SELECT one.* ON CONFLICT (id) DO NOTHING;
        ELSE
            INSERT INTO sched SELECT one.* ON CONFLICT (id) DO NOTHING;
        END IF;
        IF FOUND THEN
            INSERT INTO ledger (tenant, scheduled, ready, kind, order_at, seq)
            VALUES (one.tenant, (due > t)::int, (due <= t)::int, CASE WHEN due <= t THEN one.kind END, CASE WHEN due <= t THEN one.order_at END, one.seq);
        END IF;
    ELSE
        WITH new AS MATERIALIZED (
            SELECT n.*, nextval('arrival') AS seq, coalesce(n.due_at, least(t + coalesce(n.due_in, 0), 4000000000000000000)) AS due
            FROM unnest(ids, kinds, tenants, payloads, tags, priorities, costs, due_at, due_in, run_timeouts, max_attempts, max_crashes, backoff_bases,
                        backoff_caps, schedules, missed, traces)
                 AS n (id, kind, tenant, payload, tags, priority, cost, due_at, due_in, run_timeout, max_attempts, max_crashes, backoff_base,
                       backoff_cap, schedule, missed, trace)
            WHERE n.id <> ALL (known)
        ), due AS (
            INSERT INTO job
            SELECT id, seq, tenant, kind, payload, tags::text[], priority, cost, NULL, run_timeout, max_attempts, max_crashes, backoff_base, backoff_cap,
                   NULL, NULL, NULL, NULL, schedule, missed, trace, 'ready', NULL, due, NULL, NULL, due + 30000000::bigint * priority, NULL, 0, 0, 0, false, NULL,
                   t, NULL, t, NULL, NULL, false, false
            FROM new WHERE due <= t
            ON CONFLICT (id) DO NOTHING RETURNING tenant, kind, order_at, seq
        ), parked AS (
            INSERT INTO sched
            SELECT id, seq, tenant, kind, payload, tags::text[], priority, cost, NULL, run_timeout, max_attempts, max_crashes, backoff_base, backoff_cap,
                   NULL, NULL, NULL, NULL, schedule, missed, trace, 'scheduled', NULL, due, NULL, NULL, due + 30000000::bigint * priority, NULL, 0, 0, 0, false, NULL,
                   t, NULL, t, NULL, NULL, false, false
            FROM new WHERE due > t
            ON CONFLICT (id) DO NOTHING RETURNING tenant, seq
        ), told AS (
            INSERT INTO ledger (tenant, scheduled, ready, kind, order_at, seq)
            SELECT tenant, 0, count(*), kind, min(order_at), min(seq) FROM due GROUP BY tenant, kind
            UNION ALL
            SELECT tenant, count(*), 0, NULL, NULL, min(seq) FROM parked GROUP BY tenant
        )
        SELECT array_agg(seq) INTO seqs FROM (SELECT seq FROM due UNION ALL SELECT seq FROM parked) p;
    END IF;
    -- After the rows are there, so that nobody can slip in between: what is known elsewhere is taken out again, with
    -- its numbers.
    doubled := ARRAY(SELECT h.id FROM history h WHERE h.id = ANY (ids)
                     UNION ALL
                     SELECT s.id FROM sched s JOIN job j ON j.id = s.id WHERE s.id = ANY (ids));
    IF doubled <> '{}' THEN
        WITH due AS (
            DELETE FROM job WHERE id = ANY (doubled) AND seq = ANY (seqs) RETURNING tenant
        ), parked AS (
            DELETE FROM sched WHERE id = ANY (doubled) AND seq = ANY (seqs) RETURNING tenant
        )
        INSERT INTO ledger (tenant, ready, scheduled)
        SELECT tenant, -1, 0 FROM due UNION ALL SELECT tenant, 0, -1 FROM parked;
    END IF;
    RETURN QUERY SELECT n, 'new', NULL::uuid, NULL::bigint, NULL::bigint, NULL::bigint FROM generate_series(1, cardinality(ids)::bigint) AS n;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan;
