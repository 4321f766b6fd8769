-- Which of these jobs have ended, or are unknown: for a process that waits for many and asks now and then, in case it
-- was not told.
-- Changes nothing and locks nothing.
CREATE OR REPLACE FUNCTION ended(ids uuid[], at bigint DEFAULT NULL) RETURNS uuid[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT DISTINCT i.id FROM unnest(ids) AS i (id)
        WHERE NOT EXISTS (
            SELECT FROM sched s WHERE s.id = i.id AND (s.expires_at <= (SELECT present(at))) IS NOT TRUE
            UNION ALL
            SELECT FROM job j WHERE j.id = i.id AND j.outcome IS NULL AND (j.expires_at <= (SELECT present(at))) IS NOT TRUE)
        ORDER BY i.id)
$$ SET search_path FROM CURRENT;
