-- Enqueues of a bounded tenant take turns, each until its transaction ends: so `admit` counts nothing before it is
-- certain. Takes the turns of those of these tenants that are bounded, in the order of their names, and says who they
-- are. This comes before all else: whoever waits for a turn has nothing that others could wait for, and asks what it
-- has to ask when the one before is through.
CREATE OR REPLACE FUNCTION take_turns(names text[]) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    bounded text[] := ARRAY(SELECT p.name FROM tenant p WHERE p.name = ANY (names) AND (p.backlog_max IS NOT NULL OR p.scheduled_max IS NOT NULL)
                            ORDER BY p.name);
    name text;
BEGIN
    FOREACH name IN ARRAY bounded LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '/admit/' || name, 0));
    END LOOP;
    RETURN bounded;
END $$ SET search_path FROM CURRENT;
