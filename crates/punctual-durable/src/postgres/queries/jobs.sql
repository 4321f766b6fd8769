-- For people: all jobs, live and ended, with dates and lengths of time as such. Of an instant that never comes the date is infinity.
CREATE OR REPLACE FUNCTION date_of(at bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN at >= 4000000000000000000 THEN 'infinity'
                WHEN at < -200000000000000000 THEN '-infinity'
                ELSE to_timestamp(at / 1000000.0) END
$$;

CREATE OR REPLACE VIEW jobs AS
SELECT id, tenant, kind, stage, outcome, attempt, max_attempts, crashes, priority, date_of(due) AS due, date_of(start_by) AS start_by,
       date_of(deadline) AS deadline, date_of(enqueued_at) AS enqueued_at, date_of(started_at) AS started_at, date_of(since) AS since,
       node, schedule, unique_key, tags, last_error, result, payload
FROM (SELECT * FROM sched UNION ALL SELECT * FROM job UNION ALL SELECT * FROM history) all_jobs;
