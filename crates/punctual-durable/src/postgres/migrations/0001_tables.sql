-- Instants are microseconds since 1970, cut to 4e18 ("never"), so that adding two of them cannot overflow. Lengths of
-- time are nanoseconds. A job is in exactly one of `sched`, `job` and `history`, and their columns are the same, so
-- that it moves by `INSERT INTO ... SELECT`.

-- The order of arrival of jobs, and the order in which tenants were heard of.
CREATE SEQUENCE arrival;

-- Jobs that are due: ready and running. Small, whatever is parked in `sched`, so that its vacuum is quick and its
-- indexes short.
CREATE TABLE job (
    id            uuid NOT NULL,
    seq           bigint NOT NULL,
    tenant        text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    payload       text NOT NULL,
    tags          text[],
    priority      smallint NOT NULL,
    cost          bigint NOT NULL,
    start_within  bigint,
    run_timeout   bigint,
    max_attempts  bigint NOT NULL,
    max_crashes   bigint NOT NULL,
    backoff_base  bigint NOT NULL,
    backoff_cap   bigint NOT NULL,
    unique_key    text COLLATE "C",
    -- reject, join, replace
    on_conflict   text,
    unique_period bigint,
    wanted_by     bigint,
    schedule      text COLLATE "C",
    missed        bigint NOT NULL,
    trace         text,
    -- scheduled (in `sched`), ready, running (in `job`), stopped (in `history`)
    stage         text COLLATE "C" NOT NULL,
    -- succeeded, failed, cancelled, expired; set while it runs: settled, and its handler has yet to stop.
    outcome       text COLLATE "C",
    due           bigint NOT NULL,
    start_by      bigint,
    deadline      bigint,
    -- Ready jobs of a tenant go by (order_at, seq).
    order_at      bigint NOT NULL,
    -- When it expires if it does not move on; null once its outcome is settled.
    expires_at    bigint,
    attempt       bigint NOT NULL,
    fence         bigint NOT NULL,
    crashes       bigint NOT NULL,
    -- One crash away from its end: runs only while no other such job does.
    alone         boolean NOT NULL,
    node          bigint,
    enqueued_at   bigint NOT NULL,
    started_at    bigint,
    since         bigint NOT NULL,
    result        text,
    last_error    text,
    -- Its tenant was erased while it ran: it goes without a trace when it stops.
    forget        boolean NOT NULL,
    -- It lives only while a node has interest in it.
    while_wanted  boolean NOT NULL
);

-- Jobs that wait for their due instant, the first time or for another attempt.
CREATE TABLE sched (LIKE job);

-- Jobs that ended. Those that succeeded are many and kept for a short time: one table a day, dropped whole, which
-- leaves nothing to vacuum (`history_undated` is for days that have no table). The others are few and kept for
-- different times.
CREATE TABLE history (LIKE job) PARTITION BY LIST (outcome);
CREATE TABLE history_succeeded PARTITION OF history FOR VALUES IN ('succeeded') PARTITION BY RANGE (since);
CREATE TABLE history_undated PARTITION OF history_succeeded DEFAULT;
CREATE TABLE history_other PARTITION OF history DEFAULT;

ALTER TABLE job ADD PRIMARY KEY (id);
-- A claim writes a row anew beside the old one, in the same page, and touches no index: so no index says what runs, and
-- half a page is free.
ALTER TABLE job SET (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_order ON job (tenant, kind, order_at, seq);
CREATE INDEX job_expires ON job (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX job_alone ON job (id) WHERE alone;

-- What each node was given, one row a claim. Some of it may have ended since; the node's next heartbeat strikes that
-- out.
CREATE TABLE run (node bigint NOT NULL, ids uuid[] NOT NULL) WITH (autovacuum_vacuum_cost_delay = 0);
ALTER TABLE run ALTER ids SET STORAGE EXTERNAL;
CREATE INDEX run_node ON run (node);

ALTER TABLE sched ADD PRIMARY KEY (id);
CREATE INDEX sched_due ON sched (due, seq);
CREATE INDEX sched_expires ON sched (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX sched_tenant ON sched (tenant, id);

CREATE INDEX history_id ON history (id);
CREATE INDEX history_tenant ON history (tenant, id);
-- What is deleted one by one is found by its age. Days go whole and need no such index, which would be a tenth of what
-- it costs to end a job; for those who keep jobs that succeeded for less than a day `index_days` makes it.
CREATE INDEX history_other_ended ON history_other (outcome, since);
CREATE INDEX history_undated_since ON history_undated (since);

-- To find jobs by. Those without a tag or a schedule cost nothing here. Not in `job`, which is small and changes often.
CREATE INDEX sched_tags ON sched USING gin (tags) WHERE tags IS NOT NULL;
CREATE INDEX sched_schedule ON sched (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX history_tags ON history USING gin (tags) WHERE tags IS NOT NULL;
CREATE INDEX history_schedule ON history (schedule, id) WHERE schedule IS NOT NULL;

-- What a claim answers: jobs, and at last what to do next. Never has rows; it is there for its row type.
CREATE TABLE claimed (LIKE job, more boolean, again_at bigint, due_at bigint, tend_at bigint);

-- What one round of a claim has chosen.
CREATE TYPE choice AS (
    -- The jobs, and whether one has a last chance.
    rows      tid[],
    ids       uuid[],
    kinds     text[],
    has_alone boolean,
    -- Where virtual time is after them.
    turn      numeric,
    -- The tenants that had anything to choose from.
    used      text[],
    -- Something that was read must be looked at with care.
    is_odd    boolean,
    -- The tenants they are of, how many of each, and where that ends in virtual time.
    gainers   text[],
    gains     bigint[],
    finishes  numeric[],
    -- Whether a tenant has one queue, and where that goes on, if it does.
    is_plain  boolean[],
    next_at   bigint[],
    next_seq  bigint[]
);

-- Who is accounted: policy, turn, numbers. Written by claims, which lock it and never wait for it, and by whoever
-- changes the policy. Enqueue, finish and cancel do not touch it: what they change is told by `ledger`, so a caller's
-- long transaction holds nobody back.
CREATE TABLE tenant (
    name          text COLLATE "C" PRIMARY KEY,
    -- Between equals the one that was heard of first goes first.
    number        bigint NOT NULL,
    has_policy    boolean NOT NULL DEFAULT false,
    running_max   bigint,
    backlog_max   bigint,
    scheduled_max bigint,
    weight        bigint NOT NULL DEFAULT 1,
    rate_gap      bigint,
    rate_burst    bigint,
    -- How far ahead of its rate it may be: a gap for each but the first of a burst.
    rate_tolerance bigint,
    paused        boolean NOT NULL DEFAULT false,
    closed        boolean NOT NULL DEFAULT false,
    -- The theoretical instant of the next start by its rate, in nanoseconds.
    rate_next     bigint NOT NULL DEFAULT 0,
    -- Virtual time at which what it was given ends: service received, divided by weight.
    finish        numeric NOT NULL DEFAULT 0,
    -- The kinds that may have ready jobs, and where those of each begin: none has a lower key, unless a row of `ledger`
    -- says so.
    kinds         text[] COLLATE "C" NOT NULL DEFAULT '{}',
    first_at      bigint[] NOT NULL DEFAULT '{}',
    first_seq     bigint[] NOT NULL DEFAULT '{}',
    -- Whether there are any. Not more is indexed, so that claims update in place.
    has_work      boolean NOT NULL DEFAULT false,
    scheduled     bigint NOT NULL DEFAULT 0,
    ready         bigint NOT NULL DEFAULT 0,
    running       bigint NOT NULL DEFAULT 0,
    stopping      bigint NOT NULL DEFAULT 0,
    succeeded     bigint NOT NULL DEFAULT 0,
    failed        bigint NOT NULL DEFAULT 0,
    cancelled     bigint NOT NULL DEFAULT 0,
    expired       bigint NOT NULL DEFAULT 0,
    -- How many are in `history`.
    kept          bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tenant_has_work ON tenant (name) WHERE has_work;
CREATE INDEX tenant_rated ON tenant (name) WHERE has_work AND rate_gap IS NOT NULL;

-- What has changed for a tenant since the last claim that looked at it. Numbers are differences; a tenant's true
-- numbers are those in `tenant` and the sum of these. `kind`, `order_at` and `seq` name the first of the jobs that
-- became ready; `seq` also says when a tenant was first heard of.
CREATE TABLE ledger (
    id        bigint NOT NULL DEFAULT nextval('arrival'),
    tenant    text COLLATE "C" NOT NULL,
    scheduled bigint NOT NULL DEFAULT 0,
    ready     bigint NOT NULL DEFAULT 0,
    running   bigint NOT NULL DEFAULT 0,
    stopping  bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    expired   bigint NOT NULL DEFAULT 0,
    kept      bigint NOT NULL DEFAULT 0,
    kind      text COLLATE "C",
    order_at  bigint,
    seq       bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ledger_tenant ON ledger (tenant);
CREATE INDEX ledger_news ON ledger (tenant) WHERE kind IS NOT NULL;

-- Unique keys: taken while the job is live, and until the instant given.
CREATE TABLE live_key (
    tenant      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    job         uuid NOT NULL,
    -- Set when the job has ended: its period holds the key so long.
    taken_until bigint,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX live_key_job ON live_key (job);
CREATE INDEX live_key_taken ON live_key (taken_until) WHERE taken_until IS NOT NULL;

-- Nodes that want the result of a job, which lives only while there are any.
CREATE TABLE interest (job uuid NOT NULL, node bigint NOT NULL, PRIMARY KEY (job, node));
CREATE INDEX interest_node ON interest (node);

-- Nodes that wait for the end of a job and want to be told.
CREATE TABLE waiter (job uuid NOT NULL, node bigint NOT NULL, PRIMARY KEY (job, node));
CREATE INDEX waiter_node ON waiter (node);

-- Processes that are alive, or were a moment ago. A node's lease is its row: what it runs is its own until
-- `expires_at`.
CREATE TABLE node (
    id         bigint PRIMARY KEY,
    name       text NOT NULL,
    kinds      text[] NOT NULL,
    paused     text[] NOT NULL,
    workers    bigint NOT NULL,
    expires_at bigint NOT NULL,
    -- How far this server's clock is ahead of that of the node, which measured it.
    clock_offset bigint NOT NULL DEFAULT 0,
    -- What was asked for in an era before this one, and is done only now, gives it nothing.
    era        bigint NOT NULL DEFAULT 0,
    -- Virtual time as far as its claims have brought it. The present is the greatest of all: so claims of different
    -- nodes do not wait for each other at one row.
    turn       numeric NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The virtual time of nodes that have gone.
CREATE TABLE turn (at numeric NOT NULL);
INSERT INTO turn VALUES (0);

-- Stored series of jobs. The template is the job of a tick, as JSON.
CREATE TABLE schedule (
    name          text COLLATE "C" PRIMARY KEY,
    tenant        text COLLATE "C" NOT NULL,
    -- A cron expression and its zone, or a period (nanoseconds) and an instant on its grid.
    cron          text,
    zone          text,
    period        bigint,
    anchor        bigint,
    -- once, skip, all; and how many of all at most.
    on_missed     text NOT NULL,
    on_missed_max bigint,
    template      text NOT NULL,
    next          bigint,
    paused        boolean NOT NULL,
    last          uuid,
    fired         bigint NOT NULL,
    missed_count  bigint NOT NULL
);
CREATE INDEX schedule_next ON schedule (next) WHERE next IS NOT NULL AND NOT paused;
CREATE INDEX schedule_tenant ON schedule (tenant);

-- The roles that were given rights, and which: 1 to enqueue, 2 to work, 3 to manage. What a newer version adds is
-- opened to them too.
CREATE TABLE granted (role text PRIMARY KEY, rank int NOT NULL);
