-- A node waits for the ends of these jobs and wants to be told. Answers those whose outcome is settled, or of which
-- nothing is known:
-- nobody will tell of them. Whoever ends a job locks its row for update and looks for waiters after that; this looks
-- with the least lock there is, after it has written that it waits. So either it sees the end, or the end sees it; and
-- a claim, which locks less, is not held up by it.
CREATE OR REPLACE FUNCTION wait_for(node bigint, ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    job_id uuid;
    settled boolean;
    ended uuid[] := '{}';
BEGIN
    INSERT INTO waiter (job, node) SELECT DISTINCT i.id, wait_for.node FROM unnest(ids) AS i (id) ORDER BY i.id
    ON CONFLICT DO NOTHING;
    FOR job_id IN SELECT DISTINCT i.id FROM unnest(ids) AS i (id) ORDER BY i.id LOOP
        LOOP
            SELECT false INTO settled FROM sched s WHERE s.id = job_id FOR KEY SHARE;
            EXIT WHEN FOUND;
            SELECT j.outcome IS NOT NULL INTO settled FROM job j WHERE j.id = job_id FOR KEY SHARE;
            EXIT WHEN FOUND;
            settled := true;
            -- It may have moved between the two looks.
            EXIT WHEN NOT EXISTS (SELECT FROM sched s WHERE s.id = job_id UNION ALL SELECT FROM job j WHERE j.id = job_id);
        END LOOP;
        IF settled THEN
            ended := ended || job_id;
        END IF;
    END LOOP;
    PERFORM stop_waiting(wait_for.node, ended);
    RETURN ended;
END $$ SET search_path FROM CURRENT;
