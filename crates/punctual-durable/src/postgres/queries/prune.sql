-- Forgets jobs that ended longer ago than they are to be kept (in microseconds, by outcome): the oldest first, at most
-- so many; but none whose period still holds its unique key. Then the keys whose period is over, and the days of which
-- nothing is to be kept:
-- those go whole, however many jobs are left in them. Makes room for the days to come.
-- Jobs that succeeded and are kept for a day or longer go with their day and not before, so none of them is deleted:
-- that would cost as much as keeping it did. What time has brought since is left to others, here and in `query`: both
-- may take long, and `keep_up` is asked before.
CREATE OR REPLACE FUNCTION prune(succeeded bigint, failed bigint, cancelled bigint, expired bigint, max_jobs bigint,
                                 at bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    never CONSTANT bigint := 4000000000000000000;
    day CONSTANT bigint := 86400000000;
    t bigint := present(at);
    old uuid[];
    ends bigint[];
    forgotten bigint;
BEGIN
    IF succeeded < day THEN
        PERFORM index_days();
    END IF;
    SELECT array_agg(o.id), array_agg(o.since) INTO old, ends
    FROM (SELECT o.id, o.since
          FROM (SELECT o.* FROM (VALUES ('failed', failed), ('cancelled', cancelled), ('expired', expired)) AS r (outcome, keep)
                CROSS JOIN LATERAL (
                    SELECT h.id, h.since FROM history_other h
                    WHERE h.outcome = r.outcome AND h.since <= t - least(r.keep, never)
                      AND (h.unique_key IS NULL OR (later(h.enqueued_at, h.unique_period) > t) IS NOT TRUE)
                    ORDER BY h.since, h.id LIMIT max_jobs) o
                UNION ALL
                (SELECT h.id, h.since FROM history_succeeded h
                 WHERE succeeded < day AND h.since <= t - succeeded
                   AND (h.unique_key IS NULL OR (later(h.enqueued_at, h.unique_period) > t) IS NOT TRUE)
                 ORDER BY h.since, h.id LIMIT max_jobs)
                UNION ALL
                (SELECT h.id, h.since FROM history_undated h
                 WHERE succeeded >= day AND h.since <= t - least(succeeded, never)
                   AND (h.unique_key IS NULL OR (later(h.enqueued_at, h.unique_period) > t) IS NOT TRUE)
                 ORDER BY h.since, h.id LIMIT max_jobs)) o
          ORDER BY o.since, o.id LIMIT max_jobs) o;
    forgotten := forget_ended(old, ends);
    DELETE FROM live_key k WHERE k.ctid = ANY (ARRAY(
        SELECT l.ctid FROM live_key l WHERE l.taken_until <= t LIMIT 1000 FOR UPDATE SKIP LOCKED));
    IF max_jobs > 0 THEN
        forgotten := forgotten + drop_partitions(t - least(succeeded, never), t);
    END IF;
    PERFORM make_partitions(t);
    RETURN forgotten;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_custom_plan;
