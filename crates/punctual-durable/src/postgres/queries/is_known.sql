-- Whether there is a job of this id, live or ended.
CREATE OR REPLACE FUNCTION is_known(job_id uuid) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM job WHERE id = job_id) OR EXISTS (SELECT FROM sched WHERE id = job_id)
        OR EXISTS (SELECT FROM history WHERE id = job_id);
END $$ SET search_path FROM CURRENT;
