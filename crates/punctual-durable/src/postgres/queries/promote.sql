-- Jobs whose due instant has come become ready: some of them, the first due first. What another transaction promotes is
-- left to it. The instant they became ready is the one they were due, not the one when somebody noticed. What has
-- expired meanwhile is left to `expire`.
CREATE OR REPLACE FUNCTION promote(t bigint, max_jobs bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    promoted bigint;
BEGIN
    WITH come AS (
        SELECT id FROM sched WHERE due <= t AND (expires_at > t) IS NOT FALSE
        ORDER BY due, seq LIMIT max_jobs FOR UPDATE SKIP LOCKED
    ), taken AS (
        DELETE FROM sched s USING come WHERE s.id = come.id RETURNING s.*
    ), placed AS (
        -- A job that was enqueued twice at the same moment, once as due, is there already.
        INSERT INTO job
        SELECT id, seq, tenant, kind, payload, tags, priority, cost, start_within, run_timeout, max_attempts, max_crashes,
               backoff_base, backoff_cap, unique_key, on_conflict, unique_period, wanted_by, schedule, missed, trace,
               'ready', NULL, due, start_by, deadline, order_at, expires_at, attempt, fence, crashes, alone, NULL,
               enqueued_at, started_at, greatest(due, since), result, last_error, forget, while_wanted
        FROM taken
        ON CONFLICT (id) DO NOTHING
        RETURNING tenant, kind, order_at, seq
    ), told AS (
        INSERT INTO ledger (tenant, scheduled, ready, kind, order_at, seq)
        SELECT tenant, 0, count(*), kind, min(order_at), min(seq) FROM placed GROUP BY tenant, kind
        UNION ALL
        SELECT tenant, -count(*), 0, NULL, NULL, NULL FROM taken GROUP BY tenant
    )
    SELECT count(*) INTO promoted FROM taken;
    RETURN promoted;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
