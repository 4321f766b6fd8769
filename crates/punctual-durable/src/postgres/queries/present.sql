-- The present, in microseconds. The database's clock decides; only the owner may give another, for tests: whoever could
-- make it late would expire the jobs of everybody. Doors act for their owner, so here the owner is the current user.
-- `statement_timestamp()` and not `clock_timestamp()`, which changes within a statement, so that no index could be
-- asked by it. (Every call begins with this, and a setting of its own would cost more than all it does: so it names
-- whose functions it means.)
CREATE OR REPLACE FUNCTION present(at bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF at IS NULL THEN
        RETURN extract(epoch FROM pg_catalog.statement_timestamp()) OPERATOR(pg_catalog.*) 1000000;
    ELSIF NOT pg_catalog.pg_has_role(session_user, current_user, 'MEMBER') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the owner of the store may say what time it is';
    END IF;
    RETURN at;
END $$;
