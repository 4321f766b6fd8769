-- May a job enter? Exact counts against exact bounds. Null if it may, otherwise which bound, its value and its limit,
-- and how long (ns)
-- until the tenant's rate allows a start, if that is the gate. Enqueues of a bounded tenant take turns (`take_turns`),
-- each until its transaction ends: so none is counted before it is certain, and a caller's open transaction holds back
-- only enqueues of the same bounded tenant. What leaves is counted at once. `without` is the stage of a job that the
-- new one would replace. `load` is what the tenant has, if whoever has the turn has counted before: a batch counts
-- once, and not once for each job what those before it wrote.
CREATE OR REPLACE FUNCTION admit(of_tenant text, new_stage text, without text, t bigint, INOUT load bigint[],
                                 OUT status text, OUT count bigint, OUT max bigint, OUT retry_after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    p tenant;
    scheduled bigint;
    ready bigint;
    running bigint;
    allowed bigint;
    told bigint;
    told_max CONSTANT bigint := 100;
BEGIN
    SELECT * INTO p FROM tenant WHERE name = of_tenant;
    max := CASE new_stage WHEN 'ready' THEN p.backlog_max ELSE p.scheduled_max END;
    IF max IS NULL THEN
        RETURN;
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE invalid_transaction_state USING MESSAGE = format('tenant %L has a bound, which can be kept in read committed transactions only, not in %s ones', of_tenant,
                                                               current_setting('transaction_isolation'));
    END IF;
    IF load IS NULL THEN
        -- Who calls has it, unless the bound is newer than that.
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || '/admit/' || of_tenant, 0));
        -- A statement of its own: its snapshot is taken after the lock, and shows what those before committed.
        SELECT ARRAY[n.scheduled, n.ready, n.running], n.told INTO load, told FROM numbers(of_tenant) n;
        -- Nodes take in what the ledger tells; where none lives, whoever enqueues does, or each would have more to
        -- count than the one before. Not in a transaction that is older than this call, as far as can be told, and may
        -- last: from here to its end the claims of a node that comes meanwhile pass the tenant by.
        IF told >= told_max AND pg_current_xact_id_if_assigned() IS NULL AND statement_timestamp() - transaction_timestamp() < interval '1 millisecond'
           AND NOT EXISTS (SELECT FROM node n WHERE n.workers > 0 AND n.expires_at > t) THEN
            PERFORM FROM tenant o WHERE o.name = of_tenant FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM absorb_work(ARRAY[of_tenant]);
                PERFORM absorb(ARRAY[of_tenant]);
            END IF;
        END IF;
    END IF;
    scheduled := load[1];
    ready := load[2];
    running := load[3];
    IF new_stage = 'ready' THEN
        ready := ready - (without IS NOT DISTINCT FROM 'ready')::int;
        IF p.running_max IS NULL AND NOT p.paused THEN
            count := ready;
            max := p.backlog_max;
        ELSE
            count := ready + running;
            max := p.backlog_max + CASE WHEN p.paused THEN 0 ELSE coalesce(p.running_max, 0) END;
        END IF;
        status := 'backlog_full';
        allowed := p.rate_next - p.rate_tolerance - t * 1000;
        IF allowed > 0 AND NOT p.paused THEN
            retry_after := allowed;
        END IF;
    ELSE
        count := scheduled - (without IS NOT DISTINCT FROM 'scheduled')::int;
        max := p.scheduled_max;
        status := 'scheduled_full';
    END IF;
    IF count < max THEN
        status := NULL;
    END IF;
END $$ SET search_path FROM CURRENT;
