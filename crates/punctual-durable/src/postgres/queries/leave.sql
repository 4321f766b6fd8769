-- A node goes, and says so: what it still ran is ready again at once, and no crash is counted.
CREATE OR REPLACE FUNCTION leave(node bigint, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    PERFORM FROM node n WHERE n.id = leave.node FOR UPDATE;
    IF FOUND THEN
        PERFORM catch_up(t);
        PERFORM lose(leave.node, false, t);
    END IF;
END $$ SET search_path FROM CURRENT;
