-- Those who bear witness to what a cluster does. `at` is the database's clock at the moment itself, in microseconds.

-- What handlers say of their runs. `was_claimed`: when it said that it starts, the claim was there for everybody to
-- see. No end: the process died.
CREATE TABLE witness (
    token       text PRIMARY KEY,
    process     text NOT NULL,
    job         uuid NOT NULL,
    fence       bigint NOT NULL,
    node        bigint NOT NULL,
    was_claimed boolean NOT NULL,
    started_at  bigint NOT NULL,
    ended_at    bigint,
    how         text
);
CREATE INDEX ON witness (job);

-- What the store did with runs: claimed (with the tenant's numbers as they were then), left (it runs no longer), ended
-- (it is history).
CREATE TABLE moves (
    seq         bigserial PRIMARY KEY,
    at          bigint NOT NULL,
    xact        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    what        text NOT NULL,
    job         uuid NOT NULL,
    tenant      text NOT NULL,
    fence       bigint NOT NULL,
    node        bigint,
    running     bigint,
    running_max bigint
);
CREATE INDEX ON moves (job, fence);

-- What became of leases: joined, renewed, gone; and who did it.
CREATE TABLE leases (
    seq        bigserial PRIMARY KEY,
    at         bigint NOT NULL,
    xact       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    what       text NOT NULL,
    node       bigint NOT NULL,
    name       text NOT NULL,
    who        text NOT NULL DEFAULT current_setting('application_name'),
    expires_at bigint NOT NULL
);
CREATE INDEX ON leases (node);

-- When which limit came into force.
CREATE TABLE limit_log (seq bigserial PRIMARY KEY, at bigint NOT NULL, tenant text NOT NULL, running_max bigint);

CREATE FUNCTION witness_clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A claim holds the row of its tenant, so nobody else starts the tenant's jobs meanwhile, and its limit stays: what is
-- counted here is at least what runs.
CREATE FUNCTION witness_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.stage = 'running' AND (TG_OP = 'INSERT' OR OLD.stage <> 'running') THEN
        INSERT INTO moves (at, what, job, tenant, fence, node, running, running_max)
        SELECT witness_clock(), 'claimed', NEW.id, NEW.tenant, NEW.fence, NEW.node,
               (SELECT count(*) FROM job j WHERE j.tenant = NEW.tenant AND j.stage = 'running'),
               (SELECT t.running_max FROM tenant t WHERE t.name = NEW.tenant);
    ELSIF TG_OP = 'DELETE' AND OLD.stage = 'running' THEN
        INSERT INTO moves (at, what, job, tenant, fence, node) VALUES (witness_clock(), 'left', OLD.id, OLD.tenant, OLD.fence, OLD.node);
    END IF;
    RETURN NULL;
END $$ SET search_path FROM CURRENT;
CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON job FOR EACH ROW EXECUTE FUNCTION witness_job();

CREATE FUNCTION witness_end() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves (at, what, job, tenant, fence, node) VALUES (witness_clock(), 'ended', NEW.id, NEW.tenant, NEW.fence, NEW.node);
    RETURN NULL;
END $$ SET search_path FROM CURRENT;
CREATE TRIGGER witness AFTER INSERT ON history FOR EACH ROW EXECUTE FUNCTION witness_end();

CREATE FUNCTION witness_node() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO leases (at, what, node, name, expires_at) VALUES (witness_clock(), 'gone', OLD.id, OLD.name, OLD.expires_at);
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO leases (at, what, node, name, expires_at) VALUES (witness_clock(), 'joined', NEW.id, NEW.name, NEW.expires_at);
    ELSIF NEW.expires_at <> OLD.expires_at THEN
        INSERT INTO leases (at, what, node, name, expires_at) VALUES (witness_clock(), 'renewed', NEW.id, NEW.name, NEW.expires_at);
    END IF;
    RETURN NULL;
END $$ SET search_path FROM CURRENT;
CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON node FOR EACH ROW EXECUTE FUNCTION witness_node();

CREATE FUNCTION witness_limit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO limit_log (at, tenant, running_max) VALUES (witness_clock(), NEW.name, NEW.running_max);
    RETURN NULL;
END $$ SET search_path FROM CURRENT;
CREATE TRIGGER witness AFTER UPDATE OF running_max ON tenant FOR EACH ROW
WHEN (OLD.running_max IS DISTINCT FROM NEW.running_max) EXECUTE FUNCTION witness_limit();
