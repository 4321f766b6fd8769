-- Takes one job in, by all the rules: known id, closed tenant, in vain, unique key, limits, interest. The row is complete, but for
-- what depends on the others.
CREATE OR REPLACE FUNCTION enqueue_one(new job, t bigint, OUT status text, OUT other uuid, OUT count bigint, OUT max bigint, OUT retry_after bigint)
LANGUAGE plpgsql AS $$
DECLARE
    holder live_key;
    holder_stage text;
BEGIN
    IF is_known(new.id) THEN
        status := 'new';
        RETURN;
    ELSIF EXISTS (SELECT FROM tenant WHERE name = new.tenant AND closed) THEN
        status := 'closed';
        RETURN;
    ELSIF new.deadline <= greatest(new.due, t) OR new.start_within = 0 THEN
        status := 'expired';
        RETURN;
    END IF;
    LOOP
        other := NULL;
        holder_stage := NULL;
        IF new.unique_key IS NOT NULL THEN
            SELECT * INTO holder FROM live_key WHERE tenant = new.tenant AND key = new.unique_key;
            IF FOUND AND (holder.taken_until > t) IS NOT FALSE THEN
                other := holder.job;
                IF new.on_conflict = 'join' THEN
                    PERFORM take_interest(other, new.wanted_by) WHERE new.wanted_by IS NOT NULL;
                    status := 'joined';
                    RETURN;
                END IF;
                IF new.on_conflict = 'replace' THEN
                    -- The job's row before the key's: the order in which a finish locks them.
                    SELECT stage INTO holder_stage FROM sched WHERE id = other FOR UPDATE;
                    IF NOT FOUND THEN
                        SELECT stage INTO holder_stage FROM job WHERE id = other AND stage = 'ready' FOR UPDATE;
                    END IF;
                    -- It does not wait any more. If that is because it ended or was replaced, the key is somebody else's, or free.
                    CONTINUE WHEN holder_stage IS NULL AND NOT EXISTS (
                        SELECT FROM live_key k WHERE k.tenant = new.tenant AND k.key = new.unique_key AND k.job = other);
                END IF;
                IF holder_stage IS NULL THEN
                    status := 'conflict';
                    RETURN;
                END IF;
            END IF;
        END IF;
        SELECT a.status, a.count, a.max, a.retry_after INTO status, count, max, retry_after
        FROM admit(new.tenant, new.stage, holder_stage, t) a;
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
        END IF;
        -- Waits for whoever is about to take or to free the key. If it is taken after all, everything is to be asked anew.
        INSERT INTO live_key AS k (tenant, key, job) VALUES (new.tenant, new.unique_key, new.id)
        ON CONFLICT (tenant, key) DO UPDATE SET job = excluded.job, taken_until = NULL
        WHERE k.taken_until <= t OR k.job = other;
        EXIT WHEN FOUND;
    END LOOP;
    status := CASE WHEN other IS NULL THEN 'new' ELSE 'replaced' END;
    IF new.stage = 'ready' THEN
        INSERT INTO job SELECT new.* ON CONFLICT (id) DO NOTHING;
    ELSE
        INSERT INTO sched SELECT new.* ON CONFLICT (id) DO NOTHING;
    END IF;
    IF NOT FOUND THEN
        -- The same job came twice at the same moment, and the other one was first.
        RETURN;
    END IF;
    PERFORM account('{}', ARRAY[new]);
    IF new.while_wanted THEN
        -- The lock keeps the node from leaving before it has this interest to give up.
        INSERT INTO interest (SELECT new.id, n.id FROM node n WHERE n.id = new.wanted_by FOR KEY SHARE) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            -- Such an interest could never end.
            PERFORM settle(new.id, 'cancelled', 'cancelled because nobody wanted its result any more', t);
        END IF;
    END IF;
    IF new.expires_at <= t THEN
        PERFORM settle(new.id, 'expired', NULL, t);
    END IF;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan;
