-- Does in vain what a node asks for most. A connection plans each statement when it comes to it for the first time, and
-- its first claim or finish takes 10 to 20 ms because of that: jobs need not be the ones to wait for it. Nothing comes
-- of it, for all is rolled back. While there is news of real jobs it does not claim: that would keep their tenants from
-- others.
CREATE OR REPLACE FUNCTION get_ready(node bigint, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
    nobody CONSTANT text := 'punctual: nobody';
    is_quiet boolean := NOT EXISTS (SELECT FROM ledger WHERE kind IS NOT NULL) AND NOT EXISTS (SELECT FROM sched WHERE due <= t);
    id uuid;
BEGIN
    IF is_quiet THEN
        PERFORM FROM tend(at);
    END IF;
    PERFORM FROM heartbeat(node, '', '{}', '{}', 0, 1000000, at);
    FOR place IN 1..2 LOOP
        id := gen_random_uuid();
        PERFORM FROM enqueue_alike(ARRAY[id], '{1}', nobody, nobody, NULL, 0::smallint, 1, NULL, NULL, NULL, 1, 1, 1, 1, NULL, at, CASE place WHEN 2 THEN node END);
        IF is_quiet THEN
            PERFORM FROM claim(node, 1, ARRAY[nobody], '{1}', at);
        END IF;
        PERFORM FROM finish(node, ARRAY[id], '{1}', '{succeeded}', '{1}', ARRAY[NULL::bigint], ARRAY[NULL::bigint], at);
    END LOOP;
    RAISE SQLSTATE 'PUN00';
EXCEPTION WHEN SQLSTATE 'PUN00' THEN
    NULL;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off;
