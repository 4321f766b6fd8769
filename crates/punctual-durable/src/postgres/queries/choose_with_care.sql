-- Chooses for `claim` as `choose` does, when some of what is read may not be had: candidates are locked as they are
-- read, and those that somebody else has are skipped, as are expired ones; no kind gets more than its room, and of the
-- jobs with a last chance at most one goes. Where queues go on is not said. (Its plans are made with the settings of
-- `claim`, which alone calls it.)
CREATE OR REPLACE FUNCTION choose_with_care(names text[], served bigint, n bigint, open_kinds text[], open_rooms bigint[], is_tight boolean, may_alone boolean,
                                            v numeric, t bigint) RETURNS choice
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t_ns bigint := t * 1000;
    answer choice;
BEGIN
    WITH lane AS (
        SELECT p.name, p.number, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start, p.finish,
               p.finish >= v AND p.finish > 0 AS goes_on, starts(n, p, t_ns) AS may
        FROM tenant p WHERE p.name = ANY (names)
    ), shared AS (
        SELECT l.*, least(l.may, ceil(n * l.weight / sum(l.weight) OVER ())::bigint) AS share,
               -- One more tenant was locked than is served: nothing is taken from it, its turn is the frontier.
               cardinality(names) > served AND row_number() OVER (ORDER BY l.start, l.goes_on, l.finish, l.number) > served AS is_frontier
        FROM lane l
    ), candidate AS (
        SELECT s.name, s.number, s.share, s.may, s.start, s.goes_on OR row_number() OVER w > 1 AS goes_on, c.*,
               sum(o.own) OVER w AS costs, o.own, CASE WHEN row_number() OVER w = 1 THEN s.finish ELSE s.start + sum(o.own) OVER w - o.own END AS ended
        FROM shared s CROSS JOIN LATERAL (
            SELECT j.row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone
            FROM unnest(s.kinds, s.first_at, s.first_seq) AS q (kind, at, seq) CROSS JOIN LATERAL (
                SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone FROM job j
                WHERE j.tenant = s.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                  AND (j.expires_at > t) IS NOT FALSE AND (may_alone OR NOT j.alone)
                ORDER BY j.order_at, j.seq LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED) j
            WHERE q.kind = ANY (open_kinds)
            ORDER BY j.order_at, j.seq LIMIT s.share) c
        CROSS JOIN LATERAL (SELECT div(4294967296::numeric * greatest(c.cost, 1), s.weight) AS own) o
        WHERE NOT s.is_frontier
        WINDOW w AS (PARTITION BY s.name ORDER BY c.order_at, c.seq)
    ), turn AS (
        SELECT c.*, row_number() OVER (ORDER BY c.begins, c.goes_on, c.ended, c.number) AS place
        FROM (SELECT d.*, d.start + d.costs - d.own AS begins FROM candidate d) c
    ), frontier AS (
        SELECT f.begins, f.goes_on, f.ended, f.number
        FROM (SELECT s.start AS begins, s.goes_on, s.finish AS ended, s.number FROM shared s WHERE s.is_frontier
              UNION ALL
              SELECT max(c.start + c.costs), true, max(c.start + c.costs), c.number FROM candidate c
              GROUP BY c.number, c.share, c.may HAVING count(*) = c.share AND c.share < c.may) f
        ORDER BY 1, 2, 3, 4 LIMIT 1
    ), cut AS (
        -- The first that the room for its kind, or another job with a last chance, forbids.
        SELECT min(u.place) AS place
        FROM (SELECT x.place, x.kind, x.alone, row_number() OVER (PARTITION BY x.kind ORDER BY x.place) AS of_kind,
                     row_number() OVER (PARTITION BY x.alone ORDER BY x.place) AS of_alone
              FROM turn x WHERE is_tight) u
        WHERE u.of_kind > open_rooms[array_position(open_kinds, u.kind)] OR (u.alone AND u.of_alone > 1)
    ), chosen AS (
        SELECT u.* FROM turn u CROSS JOIN cut LEFT JOIN frontier f ON true
        WHERE u.place <= n AND (u.place < cut.place) IS NOT FALSE
          AND (f.number IS NULL OR (u.begins, u.goes_on, u.ended, u.number) < (f.begins, f.goes_on, f.ended, f.number))
    ), gain AS (
        SELECT c.name, count(*) AS jobs, max(c.start + c.costs) AS finish FROM chosen c GROUP BY c.name
    )
    SELECT s.rows, s.ids, s.kinds, s.has_alone, s.v, (SELECT array_agg(DISTINCT c.name) FROM candidate c), true,
           g.gainers, g.gains, g.finishes, NULL::boolean[], NULL::bigint[], NULL::bigint[]
    INTO answer
    FROM (SELECT array_agg(c.row ORDER BY c.place) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds, bool_or(c.alone) AS has_alone,
                 greatest(v, max(c.begins)) AS v
          FROM chosen c) s,
         (SELECT array_agg(g.name) AS gainers, array_agg(g.jobs) AS gains, array_agg(g.finish) AS finishes FROM gain g) g;
    RETURN answer;
END $$ SET search_path FROM CURRENT;
