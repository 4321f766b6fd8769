-- Stops wanting a job. Answers the stage it was in, or the outcome that was settled before; no row if there is no such
-- job. A job that is redriven while somebody cancels it is live again at the second look.
CREATE OR REPLACE FUNCTION cancel(job_id uuid, cause text, at bigint DEFAULT NULL) RETURNS TABLE (was text, outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    -- Its own row before those of others, which are skipped if somebody has them: who has some and waits for one more
    -- may be waited for.
    PERFORM lock_job(job_id);
    PERFORM catch_up(t);
    LOOP
        was := settle(job_id, 'cancelled', cause, t);
        IF was IS NULL THEN
            SELECT f.outcome INTO outcome FROM find_job(job_id) f;
            CONTINUE WHEN FOUND AND outcome IS NULL;
        END IF;
        IF was IS NOT NULL OR outcome IS NOT NULL THEN
            RETURN NEXT;
        END IF;
        RETURN;
    END LOOP;
END $$ SET search_path FROM CURRENT;
