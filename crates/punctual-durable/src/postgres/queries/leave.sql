-- A node goes, and says so: what it still ran is ready again at once, and no crash is counted.
CREATE OR REPLACE FUNCTION leave(node bigint, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t bigint := present(at);
BEGIN
    PERFORM FROM node n WHERE n.id = leave.node FOR UPDATE;
    IF FOUND THEN
        -- What has expired did so before it went.
        PERFORM expire_one(j, t) FROM (SELECT unnest(ran_by(leave.node)) UNION SELECT i.job FROM interest i WHERE i.node = leave.node) AS o (j) ORDER BY j;
        PERFORM lose(leave.node, false, t);
    END IF;
END $$ SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off;
