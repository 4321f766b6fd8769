-- Takes one job in, by all the rules: known id, closed tenant, in vain, unique key, limits, interest. The row is
-- complete, but for what depends on the others. Whoever calls has the turn of its tenant (`take_turns`), and tells the
-- ledger if `is_in` says that the job is in its table now.
-- `is_given` says that the id was not made for this call: it may come twice. `load` is what the tenant has, as far as
-- it is known: a batch counts on from there.
-- The same job may come twice at the same moment: a caller repeats what it got no answer to. So whether it is known is
-- asked after whatever was waited for, and whether it has been is asked once more when its row is there, so that nobody
-- can slip in between.
CREATE OR REPLACE FUNCTION enqueue_one(new job, t bigint, is_given boolean, INOUT load bigint[], OUT is_in boolean, OUT status text, OUT other uuid, OUT count bigint,
                                       OUT max bigint, OUT retry_after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    holder live_key;
    holder_stage text;
    is_over boolean := false;
BEGIN
    is_in := false;
    LOOP
        other := NULL;
        holder_stage := NULL;
        IF new.unique_key IS NOT NULL THEN
            SELECT * INTO holder FROM live_key WHERE tenant = new.tenant AND key = new.unique_key;
            IF FOUND AND (holder.taken_until > t) IS NOT FALSE THEN
                other := holder.job;
                -- Whose time is over has no right to it, whether or not anybody has noticed.
                CONTINUE WHEN expire_one(other, t);
                IF new.on_conflict = 'replace' THEN
                    -- The job's row before the key's: the order in which a finish locks them.
                    SELECT stage INTO holder_stage FROM sched WHERE id = other FOR UPDATE;
                    IF NOT FOUND THEN
                        SELECT stage INTO holder_stage FROM job WHERE id = other AND stage = 'ready' FOR UPDATE;
                    END IF;
                    IF NOT FOUND THEN
                        -- It may have moved from `sched` to `job` and back between the two looks.
                        SELECT stage INTO holder_stage FROM sched WHERE id = other FOR UPDATE;
                    END IF;
                    -- It does not wait any more. If that is because it ended or was replaced, the key is somebody
                    -- else's, or free.
                    CONTINUE WHEN holder_stage IS NULL AND NOT EXISTS (
                        SELECT FROM live_key k WHERE k.tenant = new.tenant AND k.key = new.unique_key AND k.job = other);
                END IF;
            END IF;
        END IF;
        IF is_known(new.id) THEN
            status := 'new';
        ELSIF EXISTS (SELECT FROM tenant WHERE name = new.tenant AND closed) THEN
            status := 'closed';
        ELSIF new.deadline <= greatest(new.due, t) OR new.start_within = 0 THEN
            status := 'expired';
        END IF;
        IF status IS NOT NULL THEN
            other := NULL;
            RETURN;
        END IF;
        IF other IS NOT NULL AND new.on_conflict = 'join' THEN
            IF new.wanted_by IS NOT NULL AND NOT take_interest(other, new.wanted_by) THEN
                -- If the last who wanted it left at this moment, its key is free. (A statement of its own: its snapshot
                -- shows that.)
                CONTINUE WHEN NOT EXISTS (SELECT FROM live_key k WHERE k.tenant = new.tenant AND k.key = new.unique_key AND k.job = other);
            END IF;
            status := 'joined';
            RETURN;
        ELSIF other IS NOT NULL AND holder_stage IS NULL THEN
            status := 'conflict';
            RETURN;
        END IF;
        SELECT a.load, a.status, a.count, a.max, a.retry_after INTO load, status, count, max, retry_after
        FROM admit(new.tenant, new.stage, holder_stage, t, load) a;
        IF status IS NOT NULL THEN
            other := NULL;
            RETURN;
        END IF;
        count := NULL;
        max := NULL;
        retry_after := NULL;
        EXIT WHEN new.unique_key IS NULL;
        IF other IS NOT NULL THEN
            PERFORM settle(other, 'cancelled', 'cancelled because another job took its unique key', t);
            load := count_on(load, holder_stage, -1);
        END IF;
        -- Waits for whoever is about to take or to free the key. If it is taken after all, everything is to be asked
        -- anew; and no lock stays on what is not to be had, as one of an `ON CONFLICT DO UPDATE` would.
        INSERT INTO live_key (tenant, key, job) VALUES (new.tenant, new.unique_key, new.id) ON CONFLICT (tenant, key) DO NOTHING;
        EXIT WHEN FOUND;
        UPDATE live_key k SET job = new.id, taken_until = NULL
        WHERE k.tenant = new.tenant AND k.key = new.unique_key AND (k.taken_until <= t OR k.job = other);
        EXIT WHEN FOUND;
    END LOOP;
    status := CASE WHEN other IS NULL THEN 'new' ELSE 'replaced' END;
    IF new.stage = 'ready' THEN
        IF is_given THEN
            PERFORM meet(ARRAY[new.id], '{}');
        END IF;
        INSERT INTO job SELECT new.* ON CONFLICT (id) DO NOTHING;
        is_in := FOUND;
    ELSE
        INSERT INTO sched SELECT new.* ON CONFLICT (id) DO NOTHING;
        is_in := FOUND;
        IF is_in AND is_given THEN
            PERFORM meet('{}', ARRAY[new.id]);
        END IF;
    END IF;
    IF is_in THEN
        is_in := NOT EXISTS (SELECT FROM history h WHERE h.id = new.id
                             UNION ALL SELECT FROM job j WHERE j.id = new.id AND j.seq <> new.seq
                             UNION ALL SELECT FROM sched s WHERE s.id = new.id AND s.seq <> new.seq);
    END IF;
    IF NOT is_in THEN
        -- The same job came twice at the same moment, and the other one was first: nothing of this one stays.
        DELETE FROM job j WHERE j.id = new.id AND j.seq = new.seq;
        DELETE FROM sched s WHERE s.id = new.id AND s.seq = new.seq;
        DELETE FROM live_key k WHERE k.tenant = new.tenant AND k.key = new.unique_key AND k.job = new.id;
        RETURN;
    END IF;
    IF new.while_wanted THEN
        -- The lock keeps the node from leaving before it has this interest to give up.
        INSERT INTO interest (SELECT new.id, n.id FROM node n WHERE n.id = new.wanted_by FOR KEY SHARE) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            -- Such an interest could never end.
            is_over := settle(new.id, 'cancelled', 'cancelled because nobody wanted its result any more', t) IS NOT NULL;
        END IF;
    END IF;
    IF new.expires_at <= t AND NOT is_over THEN
        is_over := settle(new.id, 'expired', NULL, t) IS NOT NULL;
    END IF;
    IF NOT is_over THEN
        load := count_on(load, new.stage, 1);
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
