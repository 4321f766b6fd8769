-- A node comes, or comes again: from now on it can claim and want. Its lease begins. What it runs, if it was here
-- before, stays its own.
CREATE OR REPLACE FUNCTION join_node(node bigint, name text, kinds text[], paused text[], workers bigint, lease bigint,
                                     at bigint DEFAULT NULL, clock_offset bigint DEFAULT 0, era bigint DEFAULT 0) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO node AS n (id, name, kinds, paused, workers, expires_at, clock_offset, era)
    VALUES (node, name, kinds, paused, workers, least(present(at) + lease, 4000000000000000000), join_node.clock_offset, join_node.era)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, kinds = excluded.kinds, paused = excluded.paused,
        workers = excluded.workers, expires_at = excluded.expires_at, clock_offset = excluded.clock_offset,
        era = greatest(n.era, excluded.era)
$$ SET search_path FROM CURRENT;
