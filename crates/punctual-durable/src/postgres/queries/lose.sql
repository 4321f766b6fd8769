-- A node goes: what it ran is ready again, at once and with the attempt given back, or stops if its outcome was
-- settled; its interest ends. If it died, a crash is counted for each run, and a job that kills its process too often
-- fails. Answers how many runs it was.
-- The caller holds the lock of the node's row.
CREATE OR REPLACE FUNCTION lose(gone bigint, has_died boolean, t bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    was job;
    is_now job;
    unwanted uuid;
    runs bigint := 0;
BEGIN
    -- All that others may have in hand is locked before anything is written: who does not wait for it has done nothing
    -- in vain.
    PERFORM FROM job j WHERE j.id = ANY (ran_by(gone)) AND j.node = gone AND j.stage = 'running' ORDER BY j.id FOR UPDATE;
    PERFORM lock_job(i.job) FROM interest i WHERE i.node = gone ORDER BY i.job;
    FOR was IN SELECT * FROM job j WHERE j.id = ANY (ran_by(gone)) AND j.node = gone AND j.stage = 'running' ORDER BY j.id FOR UPDATE LOOP
        is_now := was;
        is_now.node := NULL;
        is_now.since := t;
        IF was.outcome IS NOT NULL THEN
            is_now.stage := 'stopped';
        ELSE
            is_now.attempt := was.attempt - 1;
            is_now.crashes := was.crashes + has_died::int;
            IF has_died AND is_now.crashes >= was.max_crashes THEN
                is_now.stage := 'stopped';
                is_now.outcome := 'failed';
                is_now.expires_at := NULL;
                is_now.last_error := 'the process that ran it died '
                    || CASE is_now.crashes WHEN 1 THEN 'once' ELSE is_now.crashes || ' times' END;
            ELSE
                is_now.stage := CASE WHEN was.due <= t THEN 'ready' ELSE 'scheduled' END;
                is_now.start_by := later(greatest(t, was.due), was.start_within);
                is_now.expires_at := least(is_now.start_by, was.deadline);
                is_now.alone := is_now.crashes > 0 AND is_now.crashes + 1 >= was.max_crashes;
            END IF;
        END IF;
        DELETE FROM job WHERE id = was.id;
        PERFORM move(ARRAY[was], ARRAY[is_now], t);
        runs := runs + 1;
    END LOOP;
    FOR unwanted IN SELECT job FROM interest WHERE node = gone ORDER BY job LOOP
        PERFORM give_up(unwanted, gone, t);
    END LOOP;
    -- Of jobs that ended meanwhile.
    DELETE FROM interest WHERE node = gone;
    DELETE FROM waiter WHERE node = gone;
    DELETE FROM run WHERE node = gone;
    UPDATE turn SET at = greatest(at, (SELECT n.turn FROM node n WHERE n.id = gone));
    DELETE FROM node WHERE id = gone;
    RETURN runs;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off SET enable_sort = on;
