-- A tenant's true numbers at this moment: what the last claim that looked at it wrote down, and what the ledger says
-- since, in `told` rows.
CREATE OR REPLACE FUNCTION numbers(of_tenant text, OUT scheduled bigint, OUT ready bigint, OUT running bigint, OUT told bigint)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(sum(n.scheduled), 0), coalesce(sum(n.ready), 0), coalesce(sum(n.running), 0), count(*) FILTER (WHERE n.is_told) INTO scheduled, ready, running, told
    FROM (SELECT t.scheduled, t.ready, t.running, false AS is_told FROM tenant t WHERE t.name = of_tenant
          UNION ALL
          SELECT l.scheduled, l.ready, l.running, true FROM ledger l WHERE l.tenant = of_tenant) n;
END $$ SET search_path FROM CURRENT;
