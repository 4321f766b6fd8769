-- Cancels everything of a tenant; answers how many jobs it was. Those that wait go many at a time; those that run, or have moved from
-- one table to another meanwhile, one by one.
CREATE OR REPLACE FUNCTION cancel_tenant(tenant text, at bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    why CONSTANT text := 'cancelled with everything of its tenant';
    t bigint := present(at);
    ids uuid[];
    chunk uuid[];
    live job;
    before job[];
    after job[];
    cancelled bigint := 0;
BEGIN
    PERFORM catch_up(t);
    ids := live_of(tenant);
    FOR place IN 1 .. cardinality(ids) BY 500 LOOP
        chunk := ids[place : place + 499];
        before := '{}';
        after := '{}';
        FOR live IN SELECT * FROM take_waiting(chunk) LOOP
            before := before || live;
            live.stage := 'stopped';
            live.outcome := 'cancelled';
            live.since := t;
            live.expires_at := NULL;
            live.last_error := why;
            after := after || live;
        END LOOP;
        PERFORM move(before, after, t);
        cancelled := cancelled + cardinality(before)
            + (SELECT count(settle(s.id, 'cancelled', why, t)) FROM unnest(chunk) AS s (id)
               WHERE s.id NOT IN (SELECT b.id FROM unnest(before) b));
    END LOOP;
    RETURN cancelled;
END $$ SET search_path FROM CURRENT;
