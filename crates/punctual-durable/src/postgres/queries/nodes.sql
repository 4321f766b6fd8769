-- The nodes that are alive, or were a moment ago, and how much each runs.
CREATE OR REPLACE FUNCTION nodes(at bigint DEFAULT NULL)
RETURNS TABLE (id bigint, name text, kinds text[], paused text[], workers bigint, expires_at bigint, running bigint, clock_offset bigint, era bigint)
LANGUAGE sql STABLE AS $$
    SELECT n.id, n.name, n.kinds, n.paused, n.workers, n.expires_at,
           (SELECT count(*) FROM job j WHERE j.id = ANY (ran_by(n.id)) AND j.node = n.id AND j.stage = 'running'), n.clock_offset, n.era
    FROM node n ORDER BY n.id
$$ SET search_path FROM CURRENT;
