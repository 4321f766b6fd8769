-- Forgets jobs that ended then, and the unique keys that a period still held for them; answers how many it was. In the
-- order of their ids, as everybody who locks several. The instant of its end leads to the table that a job is in.
CREATE OR REPLACE FUNCTION forget_ended(ids uuid[], ends bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    forgotten uuid[];
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT h.id, h.since FROM unnest(ids, ends) AS o (id, since) JOIN history h ON h.id = o.id AND h.since = o.since
        ORDER BY h.id FOR UPDATE OF h
    ), gone AS (
        DELETE FROM history h USING locked l WHERE h.id = l.id AND h.since = l.since RETURNING h.id, h.tenant
    ), told AS (
        INSERT INTO ledger (tenant, kept) SELECT g.tenant, -count(*) FROM gone g GROUP BY g.tenant
    )
    SELECT array_agg(g.id) INTO forgotten FROM gone g;
    -- A key without an end is that of a live job.
    DELETE FROM live_key k WHERE k.job = ANY (forgotten) AND k.taken_until IS NOT NULL;
    RETURN coalesce(cardinality(forgotten), 0);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
