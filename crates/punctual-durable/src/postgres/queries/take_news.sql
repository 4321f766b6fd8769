-- Takes in what the ledger tells: of new work, or everything. Of some tenants, those whose rows are free; says whether it had to leave somebody
-- out.
CREATE OR REPLACE FUNCTION take_news(of_work boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    news text[];
    names text[];
BEGIN
    IF of_work THEN
        news := ARRAY(SELECT DISTINCT l.tenant FROM ledger l WHERE l.kind IS NOT NULL LIMIT 2000);
    ELSE
        news := ARRAY(SELECT DISTINCT l.tenant FROM ledger l LIMIT 2000);
    END IF;
    names := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (news) ORDER BY p.name FOR NO KEY UPDATE SKIP LOCKED);
    IF cardinality(names) < cardinality(news) THEN
        -- Somebody else has them, or they were never heard of.
        INSERT INTO tenant (name, number)
        SELECT l.tenant, min(least(l.id, l.seq)) FROM ledger l
        WHERE l.tenant = ANY (news) AND NOT EXISTS (SELECT FROM tenant p WHERE p.name = l.tenant)
        GROUP BY l.tenant ORDER BY l.tenant
        ON CONFLICT (name) DO NOTHING;
        IF FOUND THEN
            names := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (news) ORDER BY p.name FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
    END IF;
    PERFORM absorb_work(names);
    IF NOT of_work THEN
        PERFORM absorb(names);
    END IF;
    RETURN cardinality(names) < cardinality(news);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
