-- How many jobs of a tenant may start at this instant, at most so many: its limit, and its rate, by which each start
-- moves `rate_next` by a gap. (As `later`: in SQL, and without settings of its own, so that it becomes part of the
-- statements that call it.)
CREATE OR REPLACE FUNCTION starts(most bigint, p tenant, t_ns bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(least(most, p.running_max OPERATOR(pg_catalog.-) p.running,
                          CASE WHEN p.rate_gap IS NOT NULL
                               THEN ((t_ns OPERATOR(pg_catalog.+) p.rate_tolerance OPERATOR(pg_catalog.-) greatest(p.rate_next, t_ns)) OPERATOR(pg_catalog./) p.rate_gap)
                                    OPERATOR(pg_catalog.+) 1 END), 0)
$$;
