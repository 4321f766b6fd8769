-- Gives a live job its outcome: at once if it waits; if it runs, its node is told to stop it, and it keeps its permit
-- until it has.
-- An expiry is dated by the instant it happened, everything else by the present. Answers the stage it was in; null if
-- there is no such job, or its outcome was settled before. Row locks decide between this and a claim or a finish.
CREATE OR REPLACE FUNCTION settle(job_id uuid, how text, why text, t bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    was job;
    is_now job;
BEGIN
    SELECT * INTO was FROM sched WHERE id = job_id FOR UPDATE;
    IF NOT FOUND THEN
        SELECT * INTO was FROM job WHERE id = job_id FOR UPDATE;
    END IF;
    IF NOT FOUND THEN
        -- It may have moved from `sched` to `job` and back between the two looks.
        SELECT * INTO was FROM sched WHERE id = job_id FOR UPDATE;
    END IF;
    IF NOT FOUND OR was.outcome IS NOT NULL THEN
        RETURN NULL;
    END IF;
    is_now := was;
    is_now.outcome := how;
    is_now.last_error := coalesce(why, expiry_error(was));
    is_now.since := CASE WHEN how = 'expired' THEN greatest(was.expires_at, was.since) ELSE t END;
    is_now.expires_at := NULL;
    IF was.stage = 'running' THEN
        UPDATE job SET outcome = is_now.outcome, last_error = is_now.last_error, since = is_now.since, expires_at = NULL
        WHERE id = job_id;
        INSERT INTO ledger (tenant, stopping) VALUES (was.tenant, 1);
        DELETE FROM interest WHERE job = job_id AND was.while_wanted;
        PERFORM pg_notify(current_schema(), format('s%s:%s:%s', was.node, was.id, was.fence));
        PERFORM tell_ended(ARRAY[job_id]);
    ELSE
        DELETE FROM sched WHERE id = job_id;
        DELETE FROM job WHERE id = job_id;
        is_now.stage := 'stopped';
        PERFORM move(ARRAY[was], ARRAY[is_now], t);
    END IF;
    RETURN was.stage;
END $$ SET search_path FROM CURRENT;
