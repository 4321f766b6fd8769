-- Enqueues one job, from any language, in the caller's own transaction: it is there if and only if that commits. Says
-- what became of it in `status` and never makes the transaction fail:
--   new       it is in the store
--   joined    `other` has its unique key, and stands for it
--   replaced  it is in the store, and `other`, which had its key, was cancelled for it
--   conflict  `other` has its unique key
--   closed, expired, backlog_full, scheduled_full
--             its tenant does not take it: `detail` says why, `count` of `max` are there, `retry_after` says when to
--             try again, if that is known
--   busy      another transaction is about to decide the same (its unique key, or the last place of its tenant), or a
--             newer program has just brought the tables up to date: try again
--   bad       a value is out of its bounds, or too long, or this transaction sees too old a state to keep its tenant's
--             bound: `detail` says so
-- What else is null is as if it had not been given.
-- Nothing is locked that a claim needs (but see `admit`, where no node lives), and if it is not taken in nothing is
-- locked at all. What else time has brought is left to others: a caller's transaction may last.
CREATE OR REPLACE FUNCTION enqueue(
    kind text, payload json DEFAULT '{}', tenant text DEFAULT '', id uuid DEFAULT NULL,
    due timestamptz DEFAULT NULL, after interval DEFAULT NULL, deadline timestamptz DEFAULT NULL, deadline_after interval DEFAULT NULL, start_within interval DEFAULT NULL, run_timeout interval DEFAULT NULL,
    priority int DEFAULT 0, cost bigint DEFAULT 1, max_attempts bigint DEFAULT 10, max_crashes bigint DEFAULT 3,
    backoff_base interval DEFAULT '1 second', backoff_cap interval DEFAULT '1 hour',
    unique_key text DEFAULT NULL, on_conflict text DEFAULT 'reject', unique_period interval DEFAULT NULL,
    tags text[] DEFAULT NULL, trace text DEFAULT NULL, notify boolean DEFAULT true, at bigint DEFAULT NULL,
    OUT job_id uuid, OUT status text, OUT other uuid, OUT detail text, OUT count bigint, OUT max bigint, OUT retry_after interval)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    never CONSTANT bigint := 4000000000000000000;
    t bigint := present(at);
    due_at bigint := t;
    new job;
    told record;
BEGIN
    job_id := coalesce(id, new_id(t));
    priority := coalesce(priority, 0);
    cost := coalesce(cost, 1);
    max_attempts := coalesce(max_attempts, 10);
    max_crashes := coalesce(max_crashes, 3);
    backoff_base := coalesce(backoff_base, interval '1 second');
    backoff_cap := coalesce(backoff_cap, interval '1 hour');
    on_conflict := coalesce(on_conflict, 'reject');
    detail := CASE
        WHEN coalesce(kind, '') = '' THEN 'a kind has at least one character'
        WHEN payload IS NULL OR tenant IS NULL THEN 'payload and tenant must be there'
        WHEN due IS NOT NULL AND after IS NOT NULL THEN 'give due or after, not both'
        WHEN NOT isfinite(due) OR NOT isfinite(deadline) THEN 'due and deadline must be dates'
        WHEN deadline IS NOT NULL AND deadline_after IS NOT NULL THEN 'give deadline or deadline_after, not both'
        WHEN least(after, deadline_after, start_within, run_timeout, backoff_base, backoff_cap, unique_period) < interval '0' THEN 'no time may be negative'
        WHEN on_conflict NOT IN ('reject', 'join', 'replace') THEN format('on_conflict is %L, and must be reject, join or replace', on_conflict)
        WHEN unique_key IS NULL AND (unique_period IS NOT NULL OR on_conflict <> 'reject') THEN 'unique_period and on_conflict go with a unique_key, which is not given'
        WHEN least(cost, max_attempts, max_crashes) = 0 THEN 'cost, max_attempts and max_crashes must be at least 1'
        ELSE misfit(kind, tenant, unique_key, NULL, tags, priority, cost, max_attempts, max_crashes, NULL, NULL, NULL)
    END;
    IF detail IS NOT NULL THEN
        status := 'bad';
        RETURN;
    END IF;
    BEGIN
        due_at := CASE WHEN due IS NOT NULL THEN least(extract(epoch FROM due) * 1000000, never) ELSE coalesce(later(t, nanos(after)), t) END;
        new.id := job_id;
        new.seq := nextval('arrival');
        new.tenant := tenant;
        new.kind := kind;
        new.payload := payload::text;
        new.tags := tags;
        new.priority := priority;
        new.cost := cost;
        new.start_within := nanos(start_within);
        new.run_timeout := nanos(run_timeout);
        new.max_attempts := max_attempts;
        new.max_crashes := max_crashes;
        new.backoff_base := nanos(backoff_base);
        new.backoff_cap := nanos(backoff_cap);
        new.unique_key := unique_key;
        new.on_conflict := CASE WHEN unique_key IS NOT NULL THEN on_conflict END;
        new.unique_period := CASE WHEN unique_key IS NOT NULL THEN nanos(unique_period) END;
        new.missed := 0;
        new.trace := trace;
        new.stage := CASE WHEN due_at <= t THEN 'ready' ELSE 'scheduled' END;
        new.due := due_at;
        new.start_by := later(due_at, new.start_within);
        new.deadline := CASE WHEN deadline IS NOT NULL THEN least(extract(epoch FROM deadline) * 1000000, never) ELSE later(t, nanos(deadline_after)) END;
        new.order_at := due_at + 30000000::bigint * priority;
        new.expires_at := least(new.start_by, new.deadline);
        new.attempt := 0;
        new.fence := 0;
        new.crashes := 0;
        new.alone := false;
        new.enqueued_at := t;
        new.since := t;
        new.forget := false;
        new.while_wanted := false;
        PERFORM take_turns(ARRAY[tenant]);
        SELECT * INTO told FROM enqueue_one(new, t, id IS NOT NULL, NULL);
        IF NOT told.is_in THEN
            -- Nothing of it is there, so no lock may stay either: the caller's transaction may last. What was told
            -- survives that.
            RAISE SQLSTATE 'PUN01';
        END IF;
        PERFORM account('{}', ARRAY[new]);
    EXCEPTION
        WHEN SQLSTATE 'PUN01' THEN
            NULL;
        WHEN lock_not_available OR deadlock_detected THEN
            status := 'busy';
            detail := 'another transaction is about to decide the same';
            RETURN;
        -- It waited while a newer program changed the tables, and goes on as it was before that.
        WHEN serialization_failure OR datatype_mismatch OR cannot_coerce OR undefined_column OR undefined_function OR undefined_table OR internal_error THEN
            status := 'busy';
            detail := SQLERRM;
            RETURN;
        WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR invalid_transaction_state THEN
            status := 'bad';
            detail := SQLERRM;
            RETURN;
    END;
    status := told.status;
    other := told.other;
    count := told.count;
    max := told.max;
    retry_after := told.retry_after / 1000 * interval '1 microsecond';
    detail := CASE status
        WHEN 'closed' THEN format('tenant %L is closed', tenant)
        WHEN 'expired' THEN 'it could never start in time'
        WHEN 'backlog_full' THEN format('the backlog of tenant %L is full: %s of %s', tenant, told.count, told.max)
        WHEN 'scheduled_full' THEN format('tenant %L has %s of %s jobs scheduled', tenant, told.count, told.max)
    END;
    IF coalesce(notify, true) AND status IN ('new', 'replaced') THEN
        -- Who hears of an instant that has passed claims and looks no further; so one that may expire is told without.
        PERFORM pg_notify(current_schema(), 'w' || CASE WHEN new.expires_at IS NULL THEN due_at::text ELSE '' END);
    END IF;
END $$ SET search_path FROM CURRENT SET lock_timeout = '1s' SET jit = off;
