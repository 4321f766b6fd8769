-- Makes rows for tenants of which only the ledger knows; says whether there is a new one. Whoever else is about to make
-- the same row may take long (an erasure, a caller's transaction that sets limits), and a claim waits for nobody: such
-- a tenant is left out, for a later time. Who that is is found by halves.
CREATE OR REPLACE FUNCTION hear_of(names text[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    -- Each costs a millisecond. The others are left for later too: most often another claim makes all of them at this
    -- moment.
    failures_max CONSTANT int := 20;
    failures int := 0;
    place int := 1;
    size int := cardinality(names);
    is_any boolean := false;
BEGIN
    WHILE place <= cardinality(names) AND failures < failures_max LOOP
        BEGIN
            INSERT INTO tenant (name, number)
            SELECT l.tenant, min(least(l.id, l.seq)) FROM ledger l WHERE l.tenant = ANY (names[place:place + size - 1])
            GROUP BY l.tenant ORDER BY l.tenant
            ON CONFLICT (name) DO NOTHING;
            is_any := is_any OR FOUND;
            place := place + size;
            size := size * 2;
        EXCEPTION WHEN lock_not_available THEN
            failures := failures + 1;
            place := place + (size = 1)::int;
            size := greatest(size / 2, 1);
        END;
    END LOOP;
    RETURN is_any;
END $$ SET search_path FROM CURRENT SET lock_timeout = '1ms'
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan;
