-- The jobs that a node was given since its last heartbeat, and those that ran then.
CREATE OR REPLACE FUNCTION ran_by(of_node bigint) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(SELECT i FROM run r CROSS JOIN LATERAL unnest(r.ids) i WHERE r.node = of_node);
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
