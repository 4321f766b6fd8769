-- Tenants with their policy and their true numbers: the one that is named, even if nobody has heard of it, or else
-- those with a policy or with jobs, by name. Planned anew for each question, which decides what of this is read.
CREATE OR REPLACE FUNCTION tenant_records(tenant text, after text, max_tenants bigint, at bigint DEFAULT NULL)
RETURNS TABLE (name text, running_max bigint, backlog_max bigint, scheduled_max bigint, weight bigint, rate_gap bigint, rate_burst bigint,
               paused boolean, closed boolean, scheduled bigint, ready bigint, running bigint, stopping bigint, succeeded bigint,
               failed bigint, cancelled bigint, expired bigint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catch_up(present(at));
    RETURN QUERY
    SELECT n.name, p.running_max, p.backlog_max, p.scheduled_max, coalesce(p.weight, 1), p.rate_gap, p.rate_burst,
           coalesce(p.paused, false), coalesce(p.closed, false), c.scheduled, c.ready, c.running, c.stopping,
           c.succeeded, c.failed, c.cancelled, c.expired
    FROM (SELECT tenant_records.tenant COLLATE "C" AS name WHERE tenant_records.tenant IS NOT NULL
          UNION ALL
          SELECT k.name FROM tenant k WHERE tenant_records.tenant IS NULL AND (after IS NULL OR k.name > after)
          UNION ALL
          -- Heard of since the last claim.
          SELECT DISTINCT l.tenant FROM ledger l
          WHERE tenant_records.tenant IS NULL AND (after IS NULL OR l.tenant > after)
            AND NOT EXISTS (SELECT FROM tenant k WHERE k.name = l.tenant)) n
    LEFT JOIN tenant p ON p.name = n.name
    CROSS JOIN LATERAL tally(n.name) c
    WHERE tenant_records.tenant IS NOT NULL OR p.has_policy OR c.scheduled + c.ready + c.running + c.kept > 0
    ORDER BY n.name LIMIT max_tenants;
END $$ SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_custom_plan;
