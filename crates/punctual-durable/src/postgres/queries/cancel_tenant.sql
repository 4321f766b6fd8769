-- Cancels everything of a tenant; answers how many jobs it was. Those that wait go many at a time; those that run, or
-- have moved from one table to another meanwhile, one by one. What is past its time has expired, and is not counted.
-- What time has brought to others is left to others: this may take seconds.
CREATE OR REPLACE FUNCTION cancel_tenant(tenant text, at bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    why CONSTANT text := 'cancelled with everything of its tenant';
    t bigint := present(at);
    ids uuid[];
    chunk uuid[];
    live job;
    is_over boolean;
    before job[];
    after job[];
    cancelled bigint := 0;
BEGIN
    ids := live_of(tenant);
    FOR place IN 1 .. cardinality(ids) BY 500 LOOP
        chunk := ids[place : place + 499];
        before := '{}';
        after := '{}';
        FOR live IN SELECT * FROM take_waiting(chunk) LOOP
            before := before || live;
            is_over := coalesce(live.expires_at <= t, false);
            live.outcome := CASE WHEN is_over THEN 'expired' ELSE 'cancelled' END;
            live.last_error := CASE WHEN is_over THEN expiry_error(live) ELSE why END;
            live.since := CASE WHEN is_over THEN greatest(live.expires_at, live.since) ELSE t END;
            live.stage := 'stopped';
            live.expires_at := NULL;
            after := after || live;
            cancelled := cancelled + (NOT is_over)::int;
        END LOOP;
        PERFORM move(before, after, t);
        PERFORM expire_one(s.id, t) FROM unnest(chunk) AS s (id) WHERE s.id NOT IN (SELECT b.id FROM unnest(before) b) ORDER BY s.id;
        cancelled := cancelled
            + (SELECT count(settle(s.id, 'cancelled', why, t)) FROM unnest(chunk) AS s (id)
               WHERE s.id NOT IN (SELECT b.id FROM unnest(before) b));
    END LOOP;
    RETURN cancelled;
END $$ SET search_path FROM CURRENT;
