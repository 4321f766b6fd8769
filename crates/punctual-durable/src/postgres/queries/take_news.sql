-- Takes in what the ledger tells: of new work, or everything. Of some tenants, those whose rows are free; says whether
-- it had to leave somebody out. Of very many it takes those whose names follow a place that is chosen by chance:
-- otherwise the last in the alphabet would never be taken in.
CREATE OR REPLACE FUNCTION take_news(of_work boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT bigint := 2000;
    page bigint;
    news text[];
    are_many boolean;
    names text[];
    unheard text[];
BEGIN
    IF of_work THEN
        news := ARRAY(SELECT DISTINCT l.tenant FROM ledger l WHERE l.kind IS NOT NULL LIMIT most);
    ELSE
        news := ARRAY(SELECT DISTINCT l.tenant FROM ledger l LIMIT most);
    END IF;
    are_many := cardinality(news) = most;
    IF are_many AND NOT of_work THEN
        page := floor(random() * (pg_relation_size('ledger') / current_setting('block_size')::bigint));
        news := ARRAY(SELECT DISTINCT l.tenant FROM ledger l
                      WHERE l.tenant >= coalesce((SELECT min(o.tenant) FROM ledger o
                                                  WHERE o.ctid = ANY (ARRAY(SELECT format('(%s,%s)', page, i)::tid FROM generate_series(1, 50) i))), '')
                      LIMIT most);
    END IF;
    names := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (news) ORDER BY p.name FOR NO KEY UPDATE SKIP LOCKED);
    IF cardinality(names) < cardinality(news) THEN
        -- Somebody else has them, or they were never heard of.
        -- (Each is looked up. NOT EXISTS would be a join, for which the planner may read all tenants for each name.)
        unheard := ARRAY(SELECT n FROM unnest(news) AS n WHERE (SELECT p.name FROM tenant p WHERE p.name = n) IS NULL);
        IF unheard <> '{}' AND hear_of(unheard) THEN
            names := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (news) ORDER BY p.name FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
    END IF;
    PERFORM absorb_work(names);
    IF NOT of_work THEN
        PERFORM absorb(names);
    END IF;
    RETURN are_many OR cardinality(names) < cardinality(news);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
