-- A node is still alive. One row with nothing in it if the store knows it, then all that it runs, by id; no row at all if its lease
-- had ended and everything was taken from it. What should stop is named at every beat, because the signal for it can be lost.
CREATE OR REPLACE FUNCTION heartbeat(node bigint, name text, kinds text[], paused text[], workers bigint, lease bigint,
                                     at bigint DEFAULT NULL) RETURNS TABLE (id uuid, fence bigint, stopping boolean)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    UPDATE node n SET name = heartbeat.name, kinds = heartbeat.kinds, paused = heartbeat.paused, workers = heartbeat.workers,
        expires_at = least(t + lease, 4000000000000000000)
    WHERE n.id = heartbeat.node;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM catch_up(t);
    RETURN NEXT;
    RETURN QUERY SELECT j.id, j.fence, j.outcome IS NOT NULL FROM job j
                 WHERE j.node = heartbeat.node AND j.stage = 'running' ORDER BY j.id;
END $$ SET search_path FROM CURRENT;
