-- The schedules, by name, after the given one.
CREATE OR REPLACE FUNCTION schedules(after text, max_schedules bigint) RETURNS SETOF schedule
LANGUAGE sql STABLE AS $$
    SELECT * FROM schedule s WHERE after IS NULL OR s.name > after ORDER BY s.name LIMIT max_schedules
$$ SET search_path FROM CURRENT;
