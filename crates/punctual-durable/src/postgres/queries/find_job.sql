-- A job, live or ended, as it stands. Each look is one statement, so a live job that moves from one table to the other
-- is in exactly one of them; the ended ones are asked only for what is not live, and once more the live ones, in case
-- it was redriven meanwhile.
CREATE OR REPLACE FUNCTION find_job(job_id uuid) RETURNS SETOF job
LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    RETURN QUERY SELECT * FROM job WHERE id = job_id UNION ALL SELECT * FROM sched WHERE id = job_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM history WHERE id = job_id;
    END IF;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM job WHERE id = job_id UNION ALL SELECT * FROM sched WHERE id = job_id;
    END IF;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
