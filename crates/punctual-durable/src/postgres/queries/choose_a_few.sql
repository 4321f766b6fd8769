-- Chooses for `claim`, of very many tenants, some jobs of each that is served: its share of n as one, all of which
-- starts where the first does. Nothing is put in order but what is taken of each. Read without locks, as in `choose`.
-- (Its plans are made with the settings of `claim`, which alone calls it.)
CREATE OR REPLACE FUNCTION choose_a_few(names text[], served bigint, n bigint, weights numeric, open_kinds text[], v numeric, t bigint) RETURNS choice
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t_ns bigint := t * 1000;
    answer choice;
BEGIN
    WITH lane AS MATERIALIZED (
        SELECT m.place, p.name, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start,
               least(starts(n, p, t_ns), greatest(round(n * p.weight / weights), 1)::bigint) AS share
        FROM unnest(names[:served]) WITH ORDINALITY AS m (name, place) JOIN tenant p ON p.name = m.name
    ), candidate AS MATERIALIZED (
        SELECT l.place AS of_lane, l.share, l.start, l.weight, cardinality(l.kinds) = 1 AS is_plain, j.*, row_number() OVER w AS place, sum(least(greatest(j.cost, 1), 2147483647)::int) OVER w AS costs,
               lead(j.order_at) OVER w AS next_at, lead(j.seq) OVER w AS next_seq
        FROM lane l CROSS JOIN LATERAL unnest(l.kinds, l.first_at, l.first_seq) AS q (queue, at, seq) CROSS JOIN LATERAL (
            SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone OR j.expires_at <= t OR j.cost > 2147483647 AS is_odd FROM job j
            WHERE j.tenant = l.name AND j.kind = q.queue AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
            ORDER BY j.order_at, j.seq LIMIT l.share + 1) j
        WHERE l.share > 0 AND q.queue = ANY ((SELECT open_kinds)::text[])
        WINDOW w AS (PARTITION BY l.place ORDER BY j.order_at, j.seq)
    ), chosen AS MATERIALIZED (
        SELECT c.* FROM candidate c WHERE c.place <= c.share ORDER BY c.of_lane, c.place LIMIT n
    ), gain AS (
        SELECT DISTINCT ON (c.of_lane) c.* FROM chosen c ORDER BY c.of_lane, c.place DESC
    )
    SELECT s.rows, s.ids, s.kinds, false, g.v, (SELECT array_agg(names[c.of_lane]) FROM candidate c WHERE c.place = 1), (SELECT bool_or(c.is_odd) IS TRUE FROM candidate c),
           g.gainers, g.gains, g.finishes, g.is_plain, g.next_at, g.next_seq
    INTO answer
    FROM (SELECT array_agg(c.row) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds FROM chosen c) s,
         (SELECT max(g.start) AS v, array_agg(names[g.of_lane]) AS gainers, array_agg(g.place) AS gains,
                 array_agg(g.start + div(4294967296::numeric * g.costs, g.weight)) AS finishes,
                 array_agg(g.is_plain) AS is_plain, array_agg(g.next_at) AS next_at, array_agg(g.next_seq) AS next_seq FROM gain g) g;
    RETURN answer;
END $$ SET search_path FROM CURRENT;
