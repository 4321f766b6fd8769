-- Writes down in the rows of tenants what the ledger has told since. For tenants whose rows are free: a row that another transaction
-- has is absorbed by it or later. After the locks, in a statement of its own: its snapshot shows every job whose ledger row it takes
-- away, so no job is ever without either.
CREATE OR REPLACE FUNCTION absorb(names text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM ledger l WHERE l.tenant = ANY (names) RETURNING l.*
    ), sums AS (
        SELECT tenant, sum(scheduled) AS scheduled, sum(ready) AS ready, sum(running) AS running, sum(stopping) AS stopping, sum(succeeded) AS succeeded,
               sum(failed) AS failed, sum(cancelled) AS cancelled, sum(expired) AS expired, sum(kept) AS kept,
               array_agg(kind) FILTER (WHERE kind IS NOT NULL) AS kinds, array_agg(order_at) FILTER (WHERE kind IS NOT NULL) AS first_at,
               array_agg(seq) FILTER (WHERE kind IS NOT NULL) AS first_seq
        FROM gone GROUP BY tenant
    )
    UPDATE tenant t SET
        scheduled = t.scheduled + s.scheduled, ready = t.ready + s.ready, running = t.running + s.running, stopping = t.stopping + s.stopping,
        succeeded = t.succeeded + s.succeeded, failed = t.failed + s.failed, cancelled = t.cancelled + s.cancelled,
        expired = t.expired + s.expired, kept = t.kept + s.kept,
        has_work = t.has_work OR s.kinds IS NOT NULL,
        (kinds, first_at, first_seq) = (
            SELECT coalesce(array_agg(f.kind), '{}'), coalesce(array_agg(f.at), '{}'), coalesce(array_agg(f.seq), '{}')
            FROM (SELECT DISTINCT ON (u.kind) u.* FROM unnest(t.kinds || s.kinds, t.first_at || s.first_at, t.first_seq || s.first_seq) AS u (kind, at, seq)
                  ORDER BY u.kind, u.at, u.seq) f)
    FROM sums s WHERE t.name = s.tenant;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
