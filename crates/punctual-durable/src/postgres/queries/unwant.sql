-- A node does not want the result of a job any more.
CREATE OR REPLACE FUNCTION unwant(job_id uuid, node bigint, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    PERFORM expire_one(job_id, t);
    PERFORM give_up(job_id, node, t);
END $$ SET search_path FROM CURRENT;
