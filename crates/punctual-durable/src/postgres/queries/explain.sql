-- Why a job does not run at this moment: the first gate that is closed. No row if there is no such job.
CREATE OR REPLACE FUNCTION explain(job_id uuid, at bigint DEFAULT NULL)
RETURNS TABLE (gate text, since bigint, instant bigint, error text, running bigint, max bigint, node bigint, outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    j job;
    p tenant;
    handlers bigint;
    ready_handlers bigint;
BEGIN
    PERFORM catch_up(t);
    SELECT * INTO j FROM find_job(job_id);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    since := j.since;
    IF j.outcome IS NOT NULL THEN
        gate := CASE j.stage WHEN 'stopped' THEN 'ended' ELSE 'stopping' END;
        outcome := j.outcome;
    ELSIF j.stage = 'running' THEN
        gate := 'running';
        node := j.node;
    ELSIF j.stage = 'scheduled' AND j.attempt > 0 AND j.last_error IS NOT NULL THEN
        gate := 'retry';
        instant := j.due;
        error := j.last_error;
    ELSIF j.stage = 'scheduled' THEN
        gate := 'not_due';
        instant := j.due;
    END IF;
    IF gate IS NULL THEN
        SELECT * INTO p FROM tenant WHERE name = j.tenant;
        SELECT count(*), count(*) FILTER (WHERE j.kind <> ALL (n.paused)) INTO handlers, ready_handlers
        FROM node n WHERE j.kind = ANY (n.kinds) AND n.expires_at > t;
        SELECT n.running INTO running FROM numbers(j.tenant) n;
        max := p.running_max;
        -- When its rate allows the next start.
        instant := CASE WHEN p.rate_gap IS NOT NULL THEN greatest((p.rate_next - p.rate_tolerance + 999) / 1000, 0) END;
        gate := CASE
            WHEN p.paused THEN 'tenant_paused'
            WHEN handlers = 0 THEN 'no_worker'
            WHEN ready_handlers = 0 THEN 'kind_paused'
            WHEN running >= max THEN 'tenant_limit'
            WHEN instant > greatest(t, 0) THEN 'rate'
            WHEN j.alone AND EXISTS (SELECT FROM job o WHERE o.alone AND o.stage = 'running') THEN 'alone'
            ELSE 'turn'
        END;
    END IF;
    RETURN NEXT;
END $$ SET search_path FROM CURRENT;
