-- Jobs, live and ended, in the order of their ids: what is null is not asked for. Each table is read in that order, the
-- filters inside, and no further than the page; a table that cannot hold what is asked for is not read. The text is
-- made anew for each question, so that the plan knows which filters there are: one plan for all of them would read
-- whole tables.
CREATE OR REPLACE FUNCTION query(tenant text, kind text, stage text, outcome text, tag text, schedule text, after uuid, max_jobs bigint,
                                 at bigint DEFAULT NULL) RETURNS SETOF job
LANGUAGE plpgsql AS $$
DECLARE
    wishes text := concat_ws(' AND ', 'true',
        CASE WHEN tenant IS NOT NULL THEN 'tenant = $1' END,
        CASE WHEN kind IS NOT NULL THEN 'kind = $2' END,
        CASE WHEN stage IS NOT NULL THEN 'stage = $3' END,
        CASE WHEN outcome IS NOT NULL THEN 'outcome = $4' END,
        CASE WHEN tag IS NOT NULL THEN 'tags @> ARRAY[$5]' END,
        CASE WHEN schedule IS NOT NULL THEN 'schedule = $6' END,
        CASE WHEN after IS NOT NULL THEN 'id > $7' END);
    page CONSTANT text := '(SELECT * FROM %I WHERE %s ORDER BY id LIMIT $8)';
    pages text := concat_ws(' UNION ALL ',
        CASE WHEN coalesce(stage, 'scheduled') = 'scheduled' AND outcome IS NULL THEN format(page, 'sched', wishes) END,
        CASE WHEN coalesce(stage, 'ready') IN ('ready', 'running') THEN
            -- Of the live ones only those that run have an outcome.
            format(page, 'job', wishes || CASE WHEN outcome IS NOT NULL THEN ' AND stage = ''running''' ELSE '' END) END,
        CASE WHEN coalesce(stage, 'stopped') = 'stopped' THEN format(page, 'history', wishes) END);
BEGIN
    IF pages <> '' THEN
        RETURN QUERY EXECUTE format('SELECT * FROM (%s) found ORDER BY id LIMIT $8', pages)
            USING tenant, kind, stage, outcome, tag, schedule, after, max_jobs;
    END IF;
END $$ SET search_path FROM CURRENT;
