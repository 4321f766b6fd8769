-- Waits for whoever is about to take in one of these jobs as one that waits for its date, as an enqueue does whose answer was lost. Which of the two tables a job
-- goes to depends on the present; a row that is put into the other one for a moment meets that of the other caller.
CREATE OR REPLACE FUNCTION meet(ids uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sched (id, seq, tenant, kind, payload, priority, cost, max_attempts, max_crashes, backoff_base, backoff_cap, missed, stage, due, order_at,
                       attempt, fence, crashes, alone, enqueued_at, since, forget, while_wanted)
    SELECT i, -1, '', '', '', 0, 1, 1, 1, 0, 0, 0, 'scheduled', 4000000000000000000, 0, 0, 0, 0, false, 0, 0, false, false FROM unnest(ids) AS i ORDER BY i
    ON CONFLICT (id) DO NOTHING;
    DELETE FROM sched s WHERE s.id = ANY (ids) AND s.seq = -1;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
