-- A node does not wait for the ends of these jobs any more.
CREATE OR REPLACE FUNCTION stop_waiting(node bigint, ids uuid[]) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM waiter w WHERE w.job = ANY (ids) AND w.node = stop_waiting.node
$$ SET search_path FROM CURRENT;
