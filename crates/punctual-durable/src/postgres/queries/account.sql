-- Tells the ledger what a change means for the tenants: one row per tenant, and one more per kind of which something
-- became ready.
-- An end counts when it comes, and is not taken back by a redrive; `kept` is what is there to be read. What is to be
-- forgotten has no end to count. The least `order_at` with the least `seq` may name a place before the first job: a
-- claim looks there in vain, which is harmless. (Not in SQL: such a function would be planned anew by every query that
-- calls it.)
CREATE OR REPLACE FUNCTION account(before job[], after job[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger (tenant, scheduled, ready, running, stopping, succeeded, failed, cancelled, expired, kept, kind, order_at, seq)
    SELECT tenant,
           sum(CASE WHEN stage = 'scheduled' THEN sign ELSE 0 END),
           sum(CASE WHEN stage = 'ready' THEN sign ELSE 0 END),
           sum(CASE WHEN stage = 'running' THEN sign ELSE 0 END),
           sum(CASE WHEN stage = 'running' AND outcome IS NOT NULL THEN sign ELSE 0 END),
           count(*) FILTER (WHERE ends AND outcome = 'succeeded'),
           count(*) FILTER (WHERE ends AND outcome = 'failed'),
           count(*) FILTER (WHERE ends AND outcome = 'cancelled'),
           count(*) FILTER (WHERE ends AND outcome = 'expired'),
           sum(CASE WHEN stage = 'stopped' AND NOT forget THEN sign ELSE 0 END),
           ready_kind, min(order_at), min(seq)
    FROM (SELECT -1 AS sign, false AS ends, NULL::text AS ready_kind, b.tenant, b.stage, b.outcome, b.forget,
                 NULL::bigint AS order_at, NULL::bigint AS seq
          FROM unnest(before) b
          UNION ALL
          SELECT 1, a.stage = 'stopped' AND NOT a.forget, CASE WHEN a.stage = 'ready' THEN a.kind END, a.tenant, a.stage, a.outcome, a.forget,
                 CASE WHEN a.stage = 'ready' THEN a.order_at END, a.seq
          FROM unnest(after) a) changes
    GROUP BY tenant, ready_kind;
END $$ SET search_path FROM CURRENT;
