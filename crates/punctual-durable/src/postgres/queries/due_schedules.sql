-- The schedules whose tick has come, by name. One rests while the job of its last tick is live; when that ends, the
-- ticks that have come since are missed ones.
CREATE OR REPLACE FUNCTION due_schedules(at bigint DEFAULT NULL) RETURNS SETOF schedule
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    PERFORM catch_up(t);
    RETURN QUERY
    SELECT * FROM schedule s
    WHERE s.next <= t AND s.next IS NOT NULL AND NOT s.paused
      AND (SELECT j.id FROM job j WHERE j.id = s.last) IS NULL AND (SELECT w.id FROM sched w WHERE w.id = s.last) IS NULL
    ORDER BY s.name;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off;
