-- The present that a caller gives. Only the owner may, for tests: whoever could make it late would expire the jobs of everybody.
CREATE OR REPLACE FUNCTION given(at bigint) RETURNS bigint
LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    IF NOT pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = 'job'::regclass), 'MEMBER') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the owner of the store may say what time it is';
    END IF;
    RETURN at;
END $$ SET search_path FROM CURRENT;

-- The present, in microseconds. The database's clock decides; a test may give another. `statement_timestamp()` and not
-- `clock_timestamp()`, which changes within a statement, so that no index could be asked by it.
CREATE OR REPLACE FUNCTION present(at bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(given(at), (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
$$;
