-- Writes down in the rows of tenants, as `absorb` does, what the ledger tells of new work: how many became ready, and
-- where the queue of their kind begins now. A row of the ledger that names a kind counts ready jobs and nothing else.
-- A plan that was made when there were few tenants may read all of them for each name. So the names are said twice, by
-- themselves for the index, and the two sides meet by a hash.
CREATE OR REPLACE FUNCTION absorb_work(names text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (
        DELETE FROM ledger l WHERE l.tenant = ANY (names) AND l.kind IS NOT NULL RETURNING l.tenant, l.ready, l.kind, l.order_at, l.seq
    ), sums AS (
        SELECT tenant, sum(ready) AS ready, array_agg(kind) AS kinds, array_agg(order_at) AS first_at, array_agg(seq) AS first_seq FROM gone GROUP BY tenant
    )
    UPDATE tenant t SET
        ready = t.ready + s.ready, has_work = true,
        (kinds, first_at, first_seq) = (
            SELECT array_agg(f.kind), array_agg(f.at), array_agg(f.seq)
            FROM (SELECT DISTINCT ON (u.kind) u.* FROM unnest(t.kinds || s.kinds, t.first_at || s.first_at, t.first_seq || s.first_seq) AS u (kind, at, seq)
                  ORDER BY u.kind, u.at, u.seq) f)
    FROM sums s WHERE t.name = s.tenant AND t.name = ANY (names);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_hashjoin = on SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
