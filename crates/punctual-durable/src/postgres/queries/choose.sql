-- Chooses for `claim` the next n jobs of these tenants, whose rows are locked, in fair order: the k-th job of a tenant
-- starts, in virtual time, where the one before ends; all candidates get their start at once, and the least before the
-- frontier go. The first start that was not looked at is the frontier: that of a tenant that is not served, or of a job
-- behind a share. Read without locks, one job more of each queue than may be taken, so that it is known where the queue
-- goes on; whether what was chosen can be had is for the caller to see, and what it could not judge is odd. (Its plans
-- are made with the settings of `claim`, which alone calls it.)
CREATE OR REPLACE FUNCTION choose(names text[], served bigint, n bigint, weights numeric, open_kinds text[], v numeric, t bigint) RETURNS choice
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t_ns bigint := t * 1000;
    answer choice;
BEGIN
    WITH lane AS (
        SELECT p.name, p.number, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start, p.finish,
               p.finish >= v AND p.finish > 0 AS goes_on, (p.name = names[served + 1]) IS TRUE AS is_frontier, starts(n, p, t_ns) AS may
        FROM tenant p WHERE p.name = ANY (names)
    ), shared AS MATERIALIZED (
        SELECT l.*, least(l.may, ceil(n * l.weight / weights)::bigint) AS share FROM lane l
    ), candidate AS MATERIALIZED (
        SELECT c.*, c.start + sum(c.own) OVER w AS ends, row_number() OVER w AS place, lead(c.order_at) OVER w AS next_at, lead(c.seq) OVER w AS next_seq
        FROM (SELECT s.name, s.number, s.start, s.finish, s.goes_on, s.share, s.may, cardinality(s.kinds) = 1 AS is_plain, j.*,
                     4294967296 * greatest(least(j.cost, 2147483647), 1) / s.weight AS own
              FROM shared s CROSS JOIN LATERAL unnest(s.kinds, s.first_at, s.first_seq) AS q (queue, at, seq) CROSS JOIN LATERAL (
                  SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone OR j.expires_at <= t OR j.cost > 2147483647 AS is_odd FROM job j
                  WHERE j.tenant = s.name AND j.kind = q.queue AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                  ORDER BY j.order_at, j.seq LIMIT s.share + 1) j
              WHERE NOT s.is_frontier AND s.share > 0 AND q.queue = ANY ((SELECT open_kinds)::text[])) c
        WINDOW w AS (PARTITION BY c.number ORDER BY c.order_at, c.seq)
    ), frontier AS (
        SELECT f.* FROM (
            SELECT s.start AS begins, s.goes_on, s.finish, s.number FROM shared s WHERE s.is_frontier
            UNION ALL
            SELECT c.ends, true, c.ends, c.number FROM candidate c WHERE c.place = c.share AND c.share < c.may) f
        ORDER BY 1, 2, 3, 4 LIMIT 1
    ), chosen AS MATERIALIZED (
        SELECT u.*
        FROM (SELECT c.*, c.ends - c.own AS begins, c.goes_on OR c.place > 1 AS follows, CASE WHEN c.place > 1 THEN c.ends - c.own ELSE c.finish END AS ended
              FROM candidate c WHERE c.place <= c.share) u LEFT JOIN frontier f ON true
        WHERE f.number IS NULL OR (u.begins, u.follows, u.ended, u.number) < (f.begins, f.goes_on, f.finish, f.number)
        ORDER BY u.begins, u.follows, u.ended, u.number LIMIT n
    ), gain AS (
        SELECT DISTINCT ON (c.number) c.name, c.place AS jobs, c.ends, c.is_plain, c.next_at, c.next_seq FROM chosen c ORDER BY c.number, c.place DESC
    )
    SELECT s.rows, s.ids, s.kinds, false, s.v, (SELECT array_agg(DISTINCT c.name) FROM candidate c), (SELECT bool_or(c.is_odd) IS TRUE FROM candidate c),
           g.gainers, g.gains, g.finishes, g.is_plain, g.next_at, g.next_seq
    INTO answer
    FROM (SELECT array_agg(c.row) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds, greatest(v, max(c.begins)) AS v
          FROM chosen c) s,
         (SELECT array_agg(g.name) AS gainers, array_agg(g.jobs) AS gains, array_agg(g.ends) AS finishes,
                 array_agg(g.is_plain) AS is_plain, array_agg(g.next_at) AS next_at, array_agg(g.next_seq) AS next_seq FROM gain g) g;
    RETURN answer;
END $$ SET search_path FROM CURRENT;
