-- One job, live or ended, as of now; no row if it never was or is forgotten.
CREATE OR REPLACE FUNCTION get(job_id uuid, at bigint DEFAULT NULL) RETURNS SETOF job
LANGUAGE plpgsql ROWS 1 AS $$
BEGIN
    PERFORM catch_up(present(at));
    RETURN QUERY SELECT * FROM find_job(job_id);
END $$ SET search_path FROM CURRENT;
