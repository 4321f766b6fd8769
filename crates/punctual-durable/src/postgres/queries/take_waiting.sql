-- Takes those of these jobs that wait out of their tables, and answers them as they were. Locked in the order of their
-- ids, as by everybody who locks several.
CREATE OR REPLACE FUNCTION take_waiting(ids uuid[]) RETURNS SETOF job
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sched s WHERE s.id = ANY (ids) ORDER BY s.id FOR UPDATE;
    PERFORM FROM job j WHERE j.id = ANY (ids) AND j.stage = 'ready' ORDER BY j.id FOR UPDATE;
    RETURN QUERY DELETE FROM sched s WHERE s.id = ANY (ids) RETURNING s.*;
    RETURN QUERY DELETE FROM job j WHERE j.id = ANY (ids) AND j.stage = 'ready' RETURNING j.*;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
