-- A node comes, or comes again: from now on it can claim and want. Its lease begins. What it runs, if it was here before, stays its own.
CREATE OR REPLACE FUNCTION join_node(node bigint, name text, kinds text[], paused text[], workers bigint, lease bigint,
                                     at bigint DEFAULT NULL, clock_offset bigint DEFAULT 0) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO node (id, name, kinds, paused, workers, expires_at, clock_offset)
    VALUES (node, name, kinds, paused, workers, least(present(at) + lease, 4000000000000000000), join_node.clock_offset)
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, kinds = excluded.kinds, paused = excluded.paused,
        workers = excluded.workers, expires_at = excluded.expires_at, clock_offset = excluded.clock_offset
$$ SET search_path FROM CURRENT;
