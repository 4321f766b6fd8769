-- What time has brought, some of it, for those who ask for much: a call and a commit of its own, so that they keep
-- nobody's jobs meanwhile.
CREATE OR REPLACE FUNCTION keep_up(at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM catch_up(present(at));
END $$ SET search_path FROM CURRENT;
