-- A node is still alive. One row that says whether it has company if the store knows it, then all that it runs, by id;
-- no row at all if its lease had ended and everything was taken from it. If it begins another era, that is all it was
-- given, and nothing of the eras before can follow. What should stop is named at every beat, because the signal for it
-- can be lost.
CREATE OR REPLACE FUNCTION heartbeat(node bigint, name text, kinds text[], paused text[], workers bigint, lease bigint,
                                     at bigint DEFAULT NULL, clock_offset bigint DEFAULT 0, era bigint DEFAULT 0) RETURNS TABLE (id uuid, fence bigint, stopping boolean, has_company boolean)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    given uuid[];
    left_over uuid[];
BEGIN
    -- Nobody takes it for dead from here on. Its claims need not wait for this lock, and the reaper, who locks a node
    -- before what it was given, is not met half-way.
    PERFORM FROM node n WHERE n.id = heartbeat.node FOR KEY SHARE;
    PERFORM catch_up(t);
    -- What has ended is struck out of what it was given, while its claims add to it.
    WITH gone AS (
        DELETE FROM run r WHERE r.node = heartbeat.node RETURNING r.ids
    )
    SELECT array_agg(i) INTO given FROM gone g CROSS JOIN LATERAL unnest(g.ids) i;
    left_over := ARRAY(SELECT j.id FROM job j WHERE j.id = ANY (given) AND j.node = heartbeat.node AND j.stage = 'running');
    IF left_over <> '{}' THEN
        INSERT INTO run VALUES (heartbeat.node, left_over);
    END IF;
    UPDATE node n SET name = heartbeat.name, kinds = heartbeat.kinds, paused = heartbeat.paused, workers = heartbeat.workers,
        expires_at = least(t + lease, 4000000000000000000), clock_offset = heartbeat.clock_offset,
        era = greatest(n.era, heartbeat.era)
    WHERE n.id = heartbeat.node;
    IF NOT FOUND THEN
        DELETE FROM run r WHERE r.node = heartbeat.node;
        RETURN;
    END IF;
    has_company := EXISTS (SELECT FROM node n WHERE n.id <> heartbeat.node);
    RETURN NEXT;
    RETURN QUERY SELECT j.id, j.fence, j.outcome IS NOT NULL, NULL::boolean FROM job j
                 WHERE j.id = ANY (ran_by(heartbeat.node)) AND j.node = heartbeat.node AND j.stage = 'running' ORDER BY j.id;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
