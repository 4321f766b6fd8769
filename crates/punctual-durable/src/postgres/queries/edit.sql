-- Changes a job that waits; what is null stays as it is. Every edit puts it where it is anew, so it waits since now;
-- the latest instant to start moves only with a new due instant. No row if there is no such job.
CREATE OR REPLACE FUNCTION edit(job_id uuid, due_at bigint, due_in bigint, priority smallint, payload text, deadline_at bigint,
                                deadline_in bigint, max_attempts bigint, at bigint DEFAULT NULL)
RETURNS TABLE (status text, stage text, outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    never CONSTANT bigint := 4000000000000000000;
    t bigint := present(at);
    was job;
    is_now job;
    why text := misfit(NULL, NULL, NULL, NULL, NULL, priority, NULL, max_attempts, NULL, least(due_in, deadline_in), least(due_at, deadline_at),
                       greatest(due_at, due_in, deadline_at, deadline_in));
BEGIN
    IF why IS NOT NULL THEN
        RAISE check_violation USING MESSAGE = why;
    END IF;
    PERFORM expire_one(job_id, t);
    LOOP
        was := lock_job(job_id);
        EXIT WHEN was.id IS NOT NULL;
        SELECT * INTO was FROM find_job(job_id);
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- Otherwise it was redriven between the two looks.
        EXIT WHEN was.stage = 'stopped';
    END LOOP;
    IF was.stage NOT IN ('scheduled', 'ready') THEN
        RETURN QUERY SELECT 'not_waiting', was.stage, was.outcome;
        RETURN;
    END IF;
    is_now := was;
    IF due_at IS NOT NULL OR due_in IS NOT NULL THEN
        is_now.due := coalesce(due_at, least(t + due_in, never));
        is_now.start_by := later(is_now.due, was.start_within);
    END IF;
    is_now.priority := coalesce(edit.priority, was.priority);
    is_now.payload := coalesce(edit.payload, was.payload);
    is_now.deadline := coalesce(deadline_at, least(t + deadline_in, CASE WHEN deadline_in IS NOT NULL THEN never END), was.deadline);
    is_now.max_attempts := coalesce(edit.max_attempts, was.max_attempts);
    is_now.since := t;
    is_now.stage := CASE WHEN is_now.due <= t THEN 'ready' ELSE 'scheduled' END;
    is_now.order_at := is_now.due + 30000000::bigint * is_now.priority;
    is_now.expires_at := least(is_now.start_by, is_now.deadline);
    DELETE FROM sched WHERE id = job_id;
    DELETE FROM job WHERE id = job_id;
    PERFORM move(ARRAY[was], ARRAY[is_now], t);
    IF is_now.expires_at <= t THEN
        PERFORM settle(job_id, 'expired', NULL, t);
    END IF;
    RETURN QUERY SELECT 'done', NULL::text, NULL::text;
END $$ SET search_path FROM CURRENT;
