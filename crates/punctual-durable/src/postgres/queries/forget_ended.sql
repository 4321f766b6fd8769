-- Forgets jobs that ended then, and the unique keys that a period still held for them; answers how many it was. In the
-- order of their ids, as everybody who locks several. The instant of its end leads to the table that a job is in.
CREATE OR REPLACE FUNCTION forget_ended(ids uuid[], ends bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ended record;
    of_tenant text;
    forgotten uuid[] := '{}';
    tenants text[] := '{}';
BEGIN
    -- One by one: of a join the planner may believe that it is best to read all that ended for each.
    FOR ended IN SELECT o.id, o.since FROM unnest(ids, ends) AS o (id, since) ORDER BY o.id LOOP
        DELETE FROM history h WHERE h.id = ended.id AND h.since = ended.since RETURNING h.tenant INTO of_tenant;
        IF FOUND THEN
            forgotten := forgotten || ended.id;
            tenants := tenants || of_tenant;
        END IF;
    END LOOP;
    INSERT INTO ledger (tenant, kept) SELECT o, -count(*) FROM unnest(tenants) AS o GROUP BY o;
    -- A key without an end is that of a live job. (A sum, so that the index of those that have one is not the way.)
    DELETE FROM live_key k WHERE k.job = ANY (forgotten) AND k.taken_until + 0 IS NOT NULL;
    RETURN cardinality(forgotten);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
