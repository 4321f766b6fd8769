-- The row of a job that waits or runs, locked; null if there is none. A job goes from one table to another while others
-- look for it in one after the other, so what is found in neither is given up only if one look shows that it is in none
-- of them.
CREATE OR REPLACE FUNCTION lock_job(job_id uuid) RETURNS job
LANGUAGE plpgsql AS $$
DECLARE
    live job;
BEGIN
    LOOP
        SELECT * INTO live FROM sched WHERE id = job_id FOR UPDATE;
        EXIT WHEN FOUND;
        SELECT * INTO live FROM job WHERE id = job_id FOR UPDATE;
        EXIT WHEN FOUND
            OR NOT EXISTS (SELECT FROM sched WHERE id = job_id UNION ALL SELECT FROM job WHERE id = job_id);
    END LOOP;
    RETURN live;
END $$ SET search_path FROM CURRENT;
