-- A tick ends: the schedule moves on, and counts what was missed (in all) and the job of this tick, if there is one.
CREATE OR REPLACE FUNCTION fire_end(name text, next bigint, missed bigint, fired uuid) RETURNS void
LANGUAGE sql AS $$
    UPDATE schedule s SET next = fire_end.next, missed_count = s.missed_count + fire_end.missed,
        last = coalesce(fire_end.fired, s.last), fired = s.fired + (fire_end.fired IS NOT NULL)::int
    WHERE s.name = fire_end.name
$$ SET search_path FROM CURRENT;
