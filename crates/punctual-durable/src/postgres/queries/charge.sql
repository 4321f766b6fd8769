-- Writes down for `claim` what tenants were given, what that costs them, and where their ready jobs begin now. Of a
-- tenant with one queue the choice says that; each queue of others is asked. (Tenants are looked up by their names,
-- whatever the planner believes of how many there are: see `absorb_work`.)
CREATE OR REPLACE FUNCTION charge(chosen choice, open_kinds text[], t_ns bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF chosen.is_plain IS NOT NULL THEN
        UPDATE tenant p SET
            running = p.running + g.jobs, ready = p.ready - g.jobs, finish = g.finish,
            rate_next = CASE WHEN p.rate_gap IS NULL THEN p.rate_next ELSE greatest(p.rate_next, t_ns) + g.jobs * p.rate_gap END,
            kinds = CASE WHEN g.seq IS NULL THEN '{}' ELSE p.kinds END, first_at = array_remove(ARRAY[g.at], NULL), first_seq = array_remove(ARRAY[g.seq], NULL),
            has_work = g.seq IS NOT NULL
        FROM unnest(chosen.gainers, chosen.gains, chosen.finishes, chosen.is_plain, chosen.next_at, chosen.next_seq) AS g (name, jobs, finish, is_plain, at, seq) WHERE g.is_plain AND p.name = g.name AND p.name = ANY (chosen.gainers);
    END IF;
    IF cardinality(chosen.gainers) > cardinality(chosen.is_plain) OR false = ANY (chosen.is_plain) OR chosen.is_plain IS NULL THEN
        UPDATE tenant p SET
            running = p.running + coalesce(g.jobs, 0), ready = p.ready - coalesce(g.jobs, 0), finish = coalesce(g.finish, p.finish),
            rate_next = CASE WHEN p.rate_gap IS NULL OR g.jobs IS NULL THEN p.rate_next ELSE greatest(p.rate_next, t_ns) + g.jobs * p.rate_gap END,
            (kinds, first_at, first_seq, has_work) = (
                SELECT coalesce(array_agg(q.kind), '{}'), coalesce(array_agg(q.at), '{}'), coalesce(array_agg(q.seq), '{}'), count(*) > 0
                FROM (SELECT q.kind, coalesce(f.order_at, q.at) AS at, coalesce(f.seq, q.seq) AS seq
                      FROM unnest(p.kinds, p.first_at, p.first_seq) AS q (kind, at, seq) LEFT JOIN LATERAL (
                          SELECT j.order_at, j.seq FROM job j
                          WHERE q.kind = ANY (open_kinds) AND j.tenant = p.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                          ORDER BY j.order_at, j.seq LIMIT 1) f ON true
                      WHERE q.kind <> ALL (open_kinds) OR f.seq IS NOT NULL) q)
        FROM unnest(chosen.gainers, chosen.gains, chosen.finishes, chosen.is_plain) AS g (name, jobs, finish, is_plain) WHERE g.is_plain IS NOT TRUE AND p.name = g.name AND p.name = ANY (chosen.gainers);
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_hashjoin = on SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan;
