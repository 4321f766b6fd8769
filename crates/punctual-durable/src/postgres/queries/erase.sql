-- Forgets all of one tenant: its schedules, its jobs that wait and that ended, its policy and its numbers. What runs is
-- cancelled and goes when it stops; until then it is accounted to a tenant that starts anew.
-- The tenant's row is locked first, as by a claim: so nothing of it starts meanwhile, and nobody else reads its ledger.
-- What others enqueue meanwhile is a new life: in the last statement one snapshot shows the jobs that are there and the
-- ledger that tells of them, and the new ledger is written from those jobs.
CREATE OR REPLACE FUNCTION erase(tenant text, at bigint DEFAULT NULL) RETURNS TABLE (removed bigint, stopping bigint)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    ids uuid[];
    job_id uuid;
    live job;
    gone uuid[];
    ends bigint[];
BEGIN
    LOOP
        INSERT INTO tenant (name, number) VALUES (erase.tenant, nextval('arrival')) ON CONFLICT (name) DO NOTHING;
        PERFORM FROM tenant p WHERE p.name = erase.tenant FOR UPDATE;
        -- Otherwise somebody else has just erased it, and with it the row that was waited for.
        EXIT WHEN FOUND;
    END LOOP;
    DELETE FROM schedule s WHERE s.tenant = erase.tenant;
    ids := live_of(erase.tenant);
    gone := ARRAY(SELECT w.id FROM take_waiting(ids) w);
    -- What is left runs, or has moved from one table to another meanwhile.
    stopping := 0;
    FOR job_id IN SELECT i FROM unnest(ids) i EXCEPT SELECT g FROM unnest(gone) g ORDER BY 1 LOOP
        live := lock_job(job_id);
        IF live.stage = 'running' THEN
            UPDATE job j SET forget = true WHERE j.id = job_id;
            PERFORM settle(job_id, 'cancelled', 'cancelled with everything of its tenant', t);
            stopping := stopping + 1;
        ELSIF live.id IS NOT NULL THEN
            gone := gone || ARRAY(SELECT w.id FROM take_waiting(ARRAY[job_id]) w);
        END IF;
    END LOOP;
    DELETE FROM live_key k WHERE k.job = ANY (gone);
    DELETE FROM interest i WHERE i.job = ANY (gone);
    PERFORM tell_ended(gone);
    SELECT array_agg(h.id), array_agg(h.since) INTO ids, ends FROM history h WHERE h.tenant = erase.tenant;
    removed := cardinality(gone) + forget_ended(ids, ends);

    DELETE FROM tenant p WHERE p.name = erase.tenant;
    WITH forgotten AS (
        DELETE FROM ledger l WHERE l.tenant = erase.tenant
    ), left_over AS (
        SELECT s.stage, s.outcome, s.kind, s.order_at, s.seq FROM sched s WHERE s.tenant = erase.tenant
        UNION ALL
        SELECT j.stage, j.outcome, j.kind, j.order_at, j.seq FROM job j WHERE j.tenant = erase.tenant
        UNION ALL
        SELECT h.stage, h.outcome, h.kind, h.order_at, h.seq FROM history h WHERE h.tenant = erase.tenant
    ), told AS (
        INSERT INTO ledger (tenant, scheduled, ready, kept, kind, order_at, seq)
        SELECT erase.tenant, count(*) FILTER (WHERE o.stage = 'scheduled'), count(*) FILTER (WHERE o.stage = 'ready'),
               count(*) FILTER (WHERE o.stage = 'stopped'), k.ready_kind, min(o.order_at), min(o.seq)
        FROM left_over o CROSS JOIN LATERAL (SELECT CASE WHEN o.stage = 'ready' THEN o.kind END AS ready_kind) k
        WHERE o.stage <> 'running' GROUP BY k.ready_kind
    )
    -- What runs is in the row and not in the ledger, of which a claim reads no more than it must: a limit that is set
    -- now counts it.
    INSERT INTO tenant (name, number, running, stopping)
    SELECT erase.tenant, min(o.seq), count(*) FILTER (WHERE o.stage = 'running'), count(*) FILTER (WHERE o.stage = 'running' AND o.outcome IS NOT NULL)
    FROM left_over o HAVING count(*) FILTER (WHERE o.stage = 'running') > 0;
    RETURN NEXT;
END $$ SET search_path FROM CURRENT;
