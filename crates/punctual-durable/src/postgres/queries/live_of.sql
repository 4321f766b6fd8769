-- The jobs of a tenant that wait or run, by id. One statement, so that none is missed which moves from one table to
-- another.
CREATE OR REPLACE FUNCTION live_of(of_tenant text) RETURNS uuid[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT id FROM sched WHERE tenant = of_tenant
        UNION ALL SELECT id FROM job WHERE tenant = of_tenant
        ORDER BY id);
END $$ SET search_path FROM CURRENT;
