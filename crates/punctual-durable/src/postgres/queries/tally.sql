-- All of a tenant's true numbers at this moment: what the last claim that looked at it wrote down, and what the ledger
-- says since.
CREATE OR REPLACE FUNCTION tally(of_tenant text, OUT scheduled bigint, OUT ready bigint, OUT running bigint, OUT stopping bigint,
                                 OUT succeeded bigint, OUT failed bigint, OUT cancelled bigint, OUT expired bigint, OUT kept bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(sum(n.scheduled), 0), coalesce(sum(n.ready), 0), coalesce(sum(n.running), 0), coalesce(sum(n.stopping), 0),
           coalesce(sum(n.succeeded), 0), coalesce(sum(n.failed), 0), coalesce(sum(n.cancelled), 0), coalesce(sum(n.expired), 0),
           coalesce(sum(n.kept), 0)
    INTO scheduled, ready, running, stopping, succeeded, failed, cancelled, expired, kept
    FROM (SELECT t.scheduled, t.ready, t.running, t.stopping, t.succeeded, t.failed, t.cancelled, t.expired, t.kept
          FROM tenant t WHERE t.name = of_tenant
          UNION ALL
          SELECT l.scheduled, l.ready, l.running, l.stopping, l.succeeded, l.failed, l.cancelled, l.expired, l.kept
          FROM ledger l WHERE l.tenant = of_tenant) n;
END $$ SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan;
