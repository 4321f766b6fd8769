-- A job ends, or is told to stop, if its time is over; says whether it was. Waits for whoever has it in hand.
CREATE OR REPLACE FUNCTION expire_one(job_id uuid, t bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sched WHERE id = job_id AND expires_at <= t FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM FROM job WHERE id = job_id AND expires_at <= t FOR UPDATE;
    END IF;
    RETURN FOUND AND settle(job_id, 'expired', NULL, t) IS NOT NULL;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
