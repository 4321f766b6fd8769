-- A node takes interest in a job. True while its outcome is open; but of a job that lives only while it is wanted, only
-- nodes that are known are counted. The node's row is locked before the job's, as by a node that leaves: so no interest
-- outlives it. The job's row is locked, so that whoever gives up the last interest sees this one, or this one comes too
-- late. Most jobs live anyway, and are only looked at: a lock would be in the way of a claim.
CREATE OR REPLACE FUNCTION take_interest(job_id uuid, by_node bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    is_known boolean;
    wanted job;
BEGIN
    SELECT * INTO wanted FROM find_job(job_id);
    IF NOT FOUND OR wanted.outcome IS NOT NULL OR NOT wanted.while_wanted THEN
        RETURN FOUND AND wanted.outcome IS NULL;
    END IF;
    PERFORM FROM node WHERE id = by_node FOR KEY SHARE;
    is_known := FOUND;
    wanted := lock_job(job_id);
    IF NOT is_known OR wanted.id IS NULL OR wanted.outcome IS NOT NULL THEN
        RETURN false;
    END IF;
    INSERT INTO interest (job, node) VALUES (job_id, by_node) ON CONFLICT DO NOTHING;
    RETURN true;
END $$ SET search_path FROM CURRENT;

-- A node wants the result of a job; false if it has ended or is unknown.
CREATE OR REPLACE FUNCTION want(job_id uuid, node bigint, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM expire_one(job_id, present(at));
    RETURN take_interest(job_id, node);
END $$ SET search_path FROM CURRENT;
