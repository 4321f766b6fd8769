-- Locks for `claim` the tenants whose turn it is: as many as are served and one more, if there are so many that can
-- run. Says who they are, in their order; which of them their limit may stop in this claim; what they weigh; and
-- whether one of them would miss the spare jobs.
-- Sorted before they are locked, so that not all of them need be: the first, and some more in case others have those.
-- By where what they were given ends: who is behind the present starts at it, before all others, and of these whoever
-- has waited longest for a turn goes first.
-- Who is at its limit counts if the ledger knows of runs that have ended. That, and whether they have such work, is
-- asked of the first ones only, and of all if those were not enough (`is_thorough`).
-- (`SELECT` before a variable that is an array: otherwise it would be copied for each row. The plans are made with the
-- settings of `claim`, which alone calls it.)
CREATE OR REPLACE FUNCTION whose_turn(served bigint, is_thorough boolean, open_kinds text[], tried text[], n bigint,
                                      n_spare bigint, t_ns bigint,
                                      OUT names text[], OUT full_names text[], OUT weights numeric, OUT is_near boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    has_tried boolean := tried <> '{}';
BEGIN
    SELECT coalesce(array_agg(p.name), '{}'), array_agg(p.name) FILTER (WHERE p.running + n > p.running_max), sum(p.weight),
           n_spare > 0 AND bool_or(p.rate_gap IS NOT NULL OR 2 * (p.running + n) > p.running_max)
    INTO names, full_names, weights, is_near
    FROM (
        SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight
        FROM (SELECT o.ctid AS row FROM tenant o
              WHERE o.has_work AND NOT o.paused
                AND (NOT is_thorough OR (o.kinds && (SELECT open_kinds)
                     AND (o.running_max IS NULL OR o.running < o.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = o.name AND l.running < 0))))
                AND (o.rate_next - o.rate_tolerance <= t_ns) IS NOT FALSE
                AND (NOT has_tried OR o.name <> ALL ((SELECT tried)::text[]))
              ORDER BY o.finish, o.number LIMIT 4 * (served + 1)) o
        CROSS JOIN LATERAL (
            SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight FROM tenant p
            WHERE p.ctid = o.row AND p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
              AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
              AND (p.rate_next - p.rate_tolerance <= t_ns) IS NOT FALSE
            FOR NO KEY UPDATE SKIP LOCKED) p
        LIMIT served + 1) p;
END $$ SET search_path FROM CURRENT;
