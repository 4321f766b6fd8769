-- A node gives up its interest in a job: the last one cancels it. The job's row is locked first, so that of two nodes
-- which give up at the same moment the second sees that it is the last.
CREATE OR REPLACE FUNCTION give_up(job_id uuid, gone bigint, t bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    wanted job := lock_job(job_id);
BEGIN
    IF wanted.while_wanted THEN
        DELETE FROM interest i WHERE i.job = job_id AND i.node = gone;
        IF wanted.outcome IS NULL AND NOT EXISTS (SELECT FROM interest i WHERE i.job = job_id) THEN
            PERFORM settle(job_id, 'cancelled', 'cancelled because nobody wanted its result any more', t);
        END IF;
    END IF;
END $$ SET search_path FROM CURRENT;
