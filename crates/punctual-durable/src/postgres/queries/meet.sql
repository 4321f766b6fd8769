-- Waits for whoever is about to take in one of these jobs in the other table. An id may be given twice at the same
-- moment, for now and for later, or across its date, and neither sees the row of the other: a row that is put where the
-- job does not go meets that of the other, and is in the way of whoever comes after, until this transaction ends.
-- `in_sched` are to be met among those that wait, `in_job` among those that are due: in this order, and each by id, so
-- that no two wait for each other.
-- (Rows and not advisory locks, of which a caller's transaction with thousands of jobs could use up what the server has
-- for all.)
CREATE OR REPLACE FUNCTION meet(in_sched uuid[], in_job uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- Where nobody looks: until they are vacuumed away, these rows are in the indexes.
    nobody CONSTANT text := 'punctual: nobody';
    after_all CONSTANT bigint := 9000000000000000000;
    rows tid[];
BEGIN
    IF in_sched <> '{}' THEN
        WITH new AS (
            INSERT INTO sched (id, seq, tenant, kind, payload, priority, cost, max_attempts, max_crashes, backoff_base, backoff_cap, missed, stage, due, order_at,
                               attempt, fence, crashes, alone, enqueued_at, since, forget, while_wanted)
            SELECT i, -1, nobody, nobody, '', 0, 1, 1, 1, 0, 0, 0, 'scheduled', after_all, 0, 0, 0, 0, false, 0, 0, false, false FROM unnest(in_sched) AS i ORDER BY i
            ON CONFLICT (id) DO NOTHING RETURNING ctid
        )
        SELECT array_agg(n.ctid) INTO rows FROM new n;
        DELETE FROM sched s WHERE s.ctid = ANY (rows);
    END IF;
    IF in_job <> '{}' THEN
        WITH new AS (
            INSERT INTO job (id, seq, tenant, kind, payload, priority, cost, max_attempts, max_crashes, backoff_base, backoff_cap, missed, stage, due, order_at,
                             attempt, fence, crashes, alone, enqueued_at, since, forget, while_wanted)
            SELECT i, -1, nobody, nobody, '', 0, 1, 1, 1, 0, 0, 0, 'ready', after_all, 0, 0, 0, 0, false, 0, 0, false, false FROM unnest(in_job) AS i ORDER BY i
            ON CONFLICT (id) DO NOTHING RETURNING ctid
        )
        SELECT array_agg(n.ctid) INTO rows FROM new n;
        DELETE FROM job j WHERE j.ctid = ANY (rows);
    END IF;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
