-- Writes down in the rows of tenants the numbers that the ledger has told since, except of new work, which is for
-- `absorb_work`. For tenants whose rows are locked: a row that another transaction has is absorbed by it or later.
-- After the locks, in a statement of its own: its snapshot shows every job whose ledger row it takes away, so no job is
-- ever without either.
CREATE OR REPLACE FUNCTION absorb(names text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM ledger l WHERE l.tenant = ANY (names) AND l.kind IS NULL RETURNING l.*
    ), sums AS (
        SELECT tenant, sum(scheduled) AS scheduled, sum(ready) AS ready, sum(running) AS running, sum(stopping) AS stopping, sum(succeeded) AS succeeded,
               sum(failed) AS failed, sum(cancelled) AS cancelled, sum(expired) AS expired, sum(kept) AS kept
        FROM gone GROUP BY tenant
    )
    UPDATE tenant t SET
        scheduled = t.scheduled + s.scheduled, ready = t.ready + s.ready, running = t.running + s.running, stopping = t.stopping + s.stopping,
        succeeded = t.succeeded + s.succeeded, failed = t.failed + s.failed, cancelled = t.cancelled + s.cancelled,
        expired = t.expired + s.expired, kept = t.kept + s.kept
    FROM sums s WHERE t.name = s.tenant AND t.name = ANY (names);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_hashjoin = on SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
