-- Tells the ledger of jobs of one tenant that were taken in, each by its kind, null if it is not due, its place in the
-- order and its arrival: one row for each kind.
CREATE OR REPLACE FUNCTION tell_new(of_tenant text, kinds text[], order_at bigint[], seqs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger (tenant, scheduled, ready, kind, order_at, seq)
    SELECT of_tenant, count(*) - count(n.kind), count(n.kind), n.kind, CASE WHEN n.kind IS NOT NULL THEN min(n.order_at) END, min(n.seq)
    FROM unnest(kinds, order_at, seqs) AS n (kind, order_at, seq) GROUP BY n.kind;
END $$ SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan;
