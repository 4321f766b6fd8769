-- Pauses or resumes a schedule; false if there is none of that name.
CREATE OR REPLACE FUNCTION pause_schedule(name text, paused boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE schedule s SET paused = pause_schedule.paused WHERE s.name = pause_schedule.name;
    RETURN FOUND;
END $$ SET search_path FROM CURRENT;
