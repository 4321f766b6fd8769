-- What a job's `last_error` says if it expires where it stands: which time ran out.
CREATE OR REPLACE FUNCTION expiry_error(j job) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN j.stage <> 'running' AND j.start_by IS NOT NULL AND (j.start_by < j.deadline) IS NOT FALSE
            THEN 'it was not started by ' || instant(j.start_by)
        WHEN j.deadline IS NULL THEN 'its time ran out'
        WHEN j.stage = 'running' THEN 'its deadline, ' || instant(j.deadline) || ', passed while it ran'
        ELSE 'its deadline, ' || instant(j.deadline) || ', passed before it started'
    END
$$ SET search_path FROM CURRENT;
