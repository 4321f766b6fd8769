-- When there is something to tend, apart from jobs that fall due; at or before the present if there is now. (Not in
-- SQL: such a function would be planned anew by every query that calls it.)
CREATE OR REPLACE FUNCTION next_tend(t bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        (SELECT s.expires_at FROM sched s WHERE s.expires_at IS NOT NULL ORDER BY s.expires_at LIMIT 1),
        (SELECT j.expires_at FROM job j WHERE j.expires_at IS NOT NULL ORDER BY j.expires_at LIMIT 1),
        (SELECT min(n.expires_at) FROM node n),
        (SELECT c.next FROM schedule c WHERE c.next > t AND NOT c.paused ORDER BY c.next LIMIT 1));
END $$ SET search_path FROM CURRENT;
