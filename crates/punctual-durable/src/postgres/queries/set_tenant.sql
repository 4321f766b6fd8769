-- Changes what a tenant may do; what is null stays as it is, but limits come all together. A tenant of which only the
-- ledger knows was heard of when its first row was written: between equals that decides.
CREATE OR REPLACE FUNCTION set_tenant(tenant text, set_limits boolean, running_max bigint, backlog_max bigint, scheduled_max bigint,
                                      weight bigint, rate_gap bigint, rate_burst bigint, paused boolean, closed boolean,
                                      at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    -- Half of what can be counted, and a hundred years in nanoseconds: so that two limits can be added up, and the
    -- present, a gap and a tolerance. A claim computes with all of these, for everybody: so whatever is asked for, what
    -- is kept is in bounds.
    most CONSTANT bigint := 4000000000000000000;
    long CONSTANT bigint := 3000000000000000000;
    tolerance bigint;
BEGIN
    weight := least(greatest(weight, 1), 4294967295);
    running_max := CASE WHEN running_max > most THEN most ELSE running_max END;
    backlog_max := CASE WHEN backlog_max > most THEN most ELSE backlog_max END;
    IF rate_gap IS NOT NULL THEN
        rate_gap := least(greatest(rate_gap, 1), long);
        rate_burst := greatest(rate_burst, 1);
        tolerance := least(rate_gap::numeric * (rate_burst - 1), long);
    END IF;
    INSERT INTO tenant (name, number)
    VALUES (set_tenant.tenant, coalesce((SELECT min(least(l.id, l.seq)) FROM ledger l WHERE l.tenant = set_tenant.tenant), nextval('arrival')))
    ON CONFLICT (name) DO NOTHING;
    UPDATE tenant p SET
        has_policy = true,
        running_max = CASE WHEN set_limits THEN set_tenant.running_max ELSE p.running_max END,
        backlog_max = CASE WHEN set_limits THEN set_tenant.backlog_max ELSE p.backlog_max END,
        scheduled_max = CASE WHEN set_limits THEN set_tenant.scheduled_max ELSE p.scheduled_max END,
        weight = CASE WHEN set_limits THEN set_tenant.weight ELSE p.weight END,
        rate_gap = CASE WHEN set_limits THEN set_tenant.rate_gap ELSE p.rate_gap END,
        rate_burst = CASE WHEN set_limits THEN set_tenant.rate_burst ELSE p.rate_burst END,
        rate_tolerance = CASE WHEN set_limits THEN tolerance ELSE p.rate_tolerance END,
        paused = coalesce(set_tenant.paused, p.paused),
        closed = coalesce(set_tenant.closed, p.closed)
    WHERE p.name = set_tenant.tenant;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off;
