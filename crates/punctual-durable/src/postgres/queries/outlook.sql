-- What a node does after a claim, in a row that is about no job. Whether there is more for it; when the next job falls
-- due (what is due and still not ready, somebody else has in hand, and may have for long); of those whom only their
-- rate holds back, when the first may start; and when there is something to tend.
-- (The plans are made with the settings of `claim`, which alone calls it.)
CREATE OR REPLACE FUNCTION outlook(open_kinds text[], tried text[], is_contended boolean, has_promoted boolean, t bigint) RETURNS claimed
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t_ns bigint := t * 1000;
    is_rated boolean;
    has_ticks boolean;
    answer claimed;
BEGIN
    SELECT cardinality(open_kinds) > 0 AND (is_contended OR EXISTS (
               SELECT FROM tenant p
               WHERE p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
                 AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
                 AND (p.rate_next - p.rate_tolerance <= t_ns) IS NOT FALSE
                 AND p.name <> ALL ((SELECT tried)::text[]))),
           (SELECT CASE WHEN s.due > t OR has_promoted THEN s.due ELSE t + 5000 END FROM sched s WHERE s.due <= 4000000000000000000 ORDER BY s.due, s.seq LIMIT 1),
           EXISTS (SELECT FROM tenant p WHERE p.has_work AND p.rate_gap IS NOT NULL),
           EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused), next_tend(t)
    INTO answer.more, answer.due_at, is_rated, has_ticks, answer.tend_at;
    IF is_rated THEN
        SELECT min((p.rate_next - p.rate_tolerance + 999) / 1000) INTO answer.again_at
        FROM tenant p
        WHERE p.has_work AND p.rate_gap IS NOT NULL AND NOT p.paused
          AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
          AND p.rate_next - p.rate_tolerance > t_ns
          AND EXISTS (SELECT FROM unnest(p.kinds, p.first_at, p.first_seq) AS q (kind, at, seq), job j
                      WHERE q.kind = ANY (open_kinds) AND j.tenant = p.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                        AND (j.expires_at > t) IS NOT FALSE
                        AND (NOT j.alone OR NOT EXISTS (SELECT FROM job o WHERE o.alone AND o.stage = 'running')));
    END IF;
    IF has_ticks AND EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused AND NOT EXISTS (SELECT FROM job j WHERE j.id = c.last)
                               AND NOT EXISTS (SELECT FROM sched s WHERE s.id = c.last)) THEN
        answer.tend_at := least(answer.tend_at, t);
    END IF;
    RETURN answer;
END $$ SET search_path FROM CURRENT;
