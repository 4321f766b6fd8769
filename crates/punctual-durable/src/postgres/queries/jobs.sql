-- For people: all jobs, live and ended, with dates as such. Of an instant that never comes the date is infinity.
-- (Written out for each: a function would need to be granted to whoever reads this, and would obey that one's
-- search_path.)
CREATE OR REPLACE VIEW jobs AS
SELECT id, tenant, kind, stage, outcome, attempt, max_attempts, crashes, priority,
       to_timestamp(CASE WHEN due >= 4000000000000000000 THEN 'infinity' WHEN due < -200000000000000000 THEN '-infinity' ELSE due / 1000000::float8 END) AS due,
       to_timestamp(CASE WHEN start_by >= 4000000000000000000 THEN 'infinity' WHEN start_by < -200000000000000000 THEN '-infinity' ELSE start_by / 1000000::float8 END) AS start_by,
       to_timestamp(CASE WHEN deadline >= 4000000000000000000 THEN 'infinity' WHEN deadline < -200000000000000000 THEN '-infinity' ELSE deadline / 1000000::float8 END) AS deadline,
       to_timestamp(enqueued_at / 1000000::float8) AS enqueued_at, to_timestamp(started_at / 1000000::float8) AS started_at, to_timestamp(since / 1000000::float8) AS since,
       node, schedule, unique_key, tags, last_error, result, payload
FROM (SELECT * FROM sched UNION ALL SELECT * FROM job UNION ALL SELECT * FROM history) all_jobs;
