-- The numbers of all tenants together: counters, so that no job is read.
CREATE OR REPLACE FUNCTION totals(at bigint DEFAULT NULL)
RETURNS TABLE (scheduled bigint, ready bigint, running bigint, stopping bigint, succeeded bigint, failed bigint, cancelled bigint,
               expired bigint)
LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    PERFORM catch_up(present(at));
    RETURN QUERY
    SELECT coalesce(sum(n.scheduled), 0)::bigint, coalesce(sum(n.ready), 0)::bigint, coalesce(sum(n.running), 0)::bigint,
           coalesce(sum(n.stopping), 0)::bigint, coalesce(sum(n.succeeded), 0)::bigint, coalesce(sum(n.failed), 0)::bigint,
           coalesce(sum(n.cancelled), 0)::bigint, coalesce(sum(n.expired), 0)::bigint
    FROM (SELECT t.scheduled, t.ready, t.running, t.stopping, t.succeeded, t.failed, t.cancelled, t.expired FROM tenant t
          UNION ALL
          SELECT l.scheduled, l.ready, l.running, l.stopping, l.succeeded, l.failed, l.cancelled, l.expired FROM ledger l) n;
END $$ SET search_path FROM CURRENT;
