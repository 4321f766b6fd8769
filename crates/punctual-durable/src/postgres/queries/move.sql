-- Jobs move: `before` is how they were, and they have been taken out of their tables; `after` is how they are from now
-- on. Puts each where its stage belongs, tells the ledger what that means for its tenant, and lets go of those that
-- ended. The one place where numbers are kept, for all but the hottest paths.
CREATE OR REPLACE FUNCTION move(before job[], after job[], t bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    ended job[] := ARRAY(SELECT a FROM unnest(after) a WHERE a.stage = 'stopped');
BEGIN
    INSERT INTO job SELECT * FROM unnest(after) a WHERE a.stage IN ('ready', 'running');
    INSERT INTO sched SELECT * FROM unnest(after) a WHERE a.stage = 'scheduled';
    INSERT INTO history SELECT * FROM unnest(ended) a WHERE NOT a.forget;
    PERFORM account(before, after);
    IF cardinality(ended) > 0 THEN
        PERFORM let_go(ended, t);
    END IF;
END $$ SET search_path FROM CURRENT;
