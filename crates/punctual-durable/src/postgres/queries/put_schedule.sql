-- Adds a schedule, or changes it: one with the rule it had keeps its next tick. What it has done stays in any case, and
-- so does a pause:
-- a deployment that states its schedules again does not resume what an operator has paused.
CREATE OR REPLACE FUNCTION put_schedule(name text, tenant text, cron text, zone text, period bigint, anchor bigint, on_missed text,
                                        on_missed_max bigint, template text, next bigint, paused boolean, last uuid, fired bigint,
                                        missed_count bigint, at bigint DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO schedule AS s (name, tenant, cron, zone, period, anchor, on_missed, on_missed_max, template, next, paused, last, fired,
                               missed_count)
    VALUES (name, tenant, cron, zone, period, anchor, on_missed, on_missed_max, template, next, paused, last, fired, missed_count)
    ON CONFLICT (name) DO UPDATE SET
        tenant = excluded.tenant, cron = excluded.cron, zone = excluded.zone, period = excluded.period, anchor = excluded.anchor,
        on_missed = excluded.on_missed, on_missed_max = excluded.on_missed_max, template = excluded.template,
        next = CASE WHEN (s.cron, s.zone, s.period, s.anchor) IS NOT DISTINCT FROM
                         (excluded.cron, excluded.zone, excluded.period, excluded.anchor) THEN s.next ELSE excluded.next END
$$ SET search_path FROM CURRENT;
