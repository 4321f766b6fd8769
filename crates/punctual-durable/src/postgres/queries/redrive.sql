-- A person wants an ended job to run again: as new, with the number of its fences and its place in the order of
-- arrival. Its unique key must be free, and is its own again. It no longer depends on interest. The error stays to be
-- read, the end stays counted. No row if there is no such job.
CREATE OR REPLACE FUNCTION redrive(job_id uuid, at bigint DEFAULT NULL)
RETURNS TABLE (status text, other uuid, stage text, outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    was job;
    is_now job;
BEGIN
    PERFORM expire_one(job_id, t);
    SELECT * INTO was FROM history h WHERE h.id = job_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'not_ended', NULL::uuid, f.stage, f.outcome FROM find_job(job_id) f;
        RETURN;
    ELSIF was.outcome = 'succeeded' THEN
        RETURN QUERY SELECT 'not_ended', NULL::uuid, was.stage, was.outcome;
        RETURN;
    END IF;
    IF was.unique_key IS NOT NULL THEN
        LOOP
            -- Whose time is over has no right to the key, whether or not anybody has noticed.
            PERFORM expire_one(k.job, t) FROM live_key k WHERE k.tenant = was.tenant AND k.key = was.unique_key;
            INSERT INTO live_key AS k (tenant, key, job) VALUES (was.tenant, was.unique_key, job_id)
            ON CONFLICT (tenant, key) DO UPDATE SET job = excluded.job, taken_until = NULL
            WHERE k.job = excluded.job OR k.taken_until <= t;
            EXIT WHEN FOUND;
            SELECT k.job INTO other FROM live_key k WHERE k.tenant = was.tenant AND k.key = was.unique_key;
            IF FOUND THEN
                status := 'conflict';
                RETURN NEXT;
                RETURN;
            END IF;
        END LOOP;
    END IF;
    is_now := was;
    is_now.stage := 'ready';
    is_now.outcome := NULL;
    is_now.due := t;
    is_now.start_by := later(t, was.start_within);
    is_now.deadline := CASE WHEN was.deadline > t THEN was.deadline END;
    is_now.order_at := t + 30000000::bigint * was.priority;
    is_now.expires_at := least(is_now.start_by, is_now.deadline);
    is_now.attempt := 0;
    is_now.crashes := 0;
    is_now.alone := false;
    is_now.since := t;
    is_now.result := NULL;
    is_now.while_wanted := false;
    DELETE FROM history h WHERE h.id = job_id AND h.since = was.since;
    PERFORM move(ARRAY[was], ARRAY[is_now], t);
    status := 'done';
    RETURN NEXT;
END $$ SET search_path FROM CURRENT;
