-- Takes a schedule away; false if there is none of that name. The jobs it made go on.
CREATE OR REPLACE FUNCTION remove_schedule(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM schedule s WHERE s.name = remove_schedule.name;
    RETURN FOUND;
END $$ SET search_path FROM CURRENT;
