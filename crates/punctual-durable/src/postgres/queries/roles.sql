-- Who may do what. The functions are the only doors: they act with the rights of their owner, and no role has rights on
-- the tables.
-- `SELECT grant_roles('app', 'node', 'operator')` lets the first enqueue and nothing else (it reads no job), the second
-- do all that a node does, the third everything; null leaves one out. The roles must exist, and whoever calls it must
-- own the functions. What was granted outlives a new version of the functions; that they act for their owner does not,
-- so it is said here each time they are installed, and those that are new are opened to the same roles.
CREATE OR REPLACE FUNCTION doors() RETURNS TABLE (name text, rank int)
LANGUAGE sql IMMUTABLE AS $$
    SELECT unnest('{enqueue,enqueue_batch,enqueue_alike,clock}'::text[]), 1
    UNION ALL
    SELECT unnest('{claim,finish,get_ready,cancel,join_node,heartbeat,leave,tend,want,unwant,get,wait_for,stop_waiting,ended,prune,keep_up,due_schedules,
                    put_schedule,fire_begin,fire_end}'::text[]), 2
    UNION ALL
    SELECT unnest('{edit,query,explain,redrive,purge,set_tenant,tenant_records,totals,cancel_tenant,erase,remove_schedule,
                    pause_schedule,schedules,nodes}'::text[]), 3
$$ SET search_path FROM CURRENT;

-- Opens to a role the doors up to its rank.
CREATE OR REPLACE FUNCTION open_doors(to_role text, up_to int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    door regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), to_role);
    -- A process that opens the store looks which version it has.
    EXECUTE format('GRANT SELECT ON migration, functions TO %I', to_role);
    FOR door IN
        SELECT p.oid FROM doors() d JOIN pg_proc p ON p.proname = d.name AND p.pronamespace = quote_ident(current_schema())::regnamespace
        WHERE d.rank <= up_to
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', door, to_role);
    END LOOP;
    IF up_to >= 3 THEN
        EXECUTE format('GRANT SELECT ON jobs TO %I', to_role);
    END IF;
END $$ SET search_path FROM CURRENT;

CREATE OR REPLACE FUNCTION grant_roles(enqueuer text, worker text, admin text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT r.name, r.rank FROM unnest(ARRAY[enqueuer, worker, admin]) WITH ORDINALITY AS r (name, rank) WHERE r.name IS NOT NULL
    LOOP
        PERFORM open_doors(given.name, given.rank::int);
        INSERT INTO granted AS g (role, rank) VALUES (given.name, given.rank)
        ON CONFLICT (role) DO UPDATE SET rank = greatest(g.rank, excluded.rank);
    END LOOP;
END $$ SET search_path FROM CURRENT;

DO $$
DECLARE
    door regprocedure;
BEGIN
    EXECUTE format('REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
    FOR door IN SELECT p.oid FROM doors() d JOIN pg_proc p ON p.proname = d.name AND p.pronamespace = quote_ident(current_schema())::regnamespace LOOP
        -- All read a few rows by an index. A plan that is forbidden its sequential scans looks dear, and would be
        -- compiled to machine code, in 200 ms.
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET jit = off', door);
    END LOOP;
    -- Whoever was shut out of the schema, or is another role of the same name, is not let in again.
    PERFORM open_doors(g.role, g.rank) FROM granted g JOIN pg_roles r ON r.rolname = g.role WHERE has_schema_privilege(r.oid, current_schema(), 'USAGE');
END $$;
