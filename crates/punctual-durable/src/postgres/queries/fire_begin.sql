-- A tick begins: `go` if the schedule is still at it, and locked until the end of the transaction, in which the job is
-- enqueued and `fire_end` called; `lost` if somebody else fired it, or it is gone or paused; `overlapped` if the job of
-- its last tick is live. The schedule's row is locked before the rows of jobs.
CREATE OR REPLACE FUNCTION fire_begin(name text, tick bigint, at bigint DEFAULT NULL) RETURNS TABLE (status text, job uuid)
LANGUAGE plpgsql ROWS 1 AS $$
DECLARE
    s schedule;
BEGIN
    SELECT * INTO s FROM schedule c WHERE c.name = fire_begin.name FOR UPDATE;
    IF NOT FOUND OR s.paused OR s.next IS DISTINCT FROM tick THEN
        status := 'lost';
    ELSE
        PERFORM expire_one(s.last, present(at));
        SELECT l.id INTO job
        FROM (SELECT j.id FROM job j WHERE j.id = s.last UNION ALL SELECT w.id FROM sched w WHERE w.id = s.last) l;
        status := CASE WHEN job IS NULL THEN 'go' ELSE 'overlapped' END;
    END IF;
    RETURN NEXT;
END $$ SET search_path FROM CURRENT;
