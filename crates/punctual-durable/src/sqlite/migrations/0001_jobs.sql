-- Instants are microseconds since 1970. Lengths of time are nanoseconds, as text where they do not fit into an integer.
-- Ids are the 16 bytes of a UUID: lower(hex(id)).

-- Jobs that wait or run. `seq` is the order of arrival.
CREATE TABLE job (
    seq            INTEGER PRIMARY KEY,
    id             BLOB NOT NULL UNIQUE,
    kind           TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    payload        TEXT NOT NULL,
    tags           TEXT,
    priority       INTEGER NOT NULL,
    cost           INTEGER NOT NULL,
    -- As it was asked for: null for at once, a length of time, or 'at ' and an instant.
    asked_due      ANY,
    start_within   ANY,
    run_timeout    ANY,
    asked_deadline ANY,
    max_attempts   INTEGER NOT NULL,
    max_crashes    INTEGER NOT NULL,
    backoff_base   ANY NOT NULL,
    backoff_cap    ANY NOT NULL,
    unique_key     TEXT,
    on_conflict    TEXT,
    unique_period  ANY,
    wanted_by      INTEGER,
    schedule       TEXT,
    missed         INTEGER NOT NULL,
    trace          TEXT,
    -- scheduled, ready, running; ended ones are in `history`.
    stage          TEXT NOT NULL,
    -- Set while it runs: settled, and its handler has yet to stop.
    outcome        TEXT,
    due            INTEGER NOT NULL,
    start_by       INTEGER,
    deadline       INTEGER,
    -- Ready jobs of a tenant go by (order_at, seq).
    order_at       INTEGER NOT NULL,
    -- When it expires if it does not move on.
    expires_at     INTEGER,
    attempt        INTEGER NOT NULL,
    fence          INTEGER NOT NULL,
    crashes        INTEGER NOT NULL,
    -- One crash away from its end: runs only while no other such job does.
    alone          INTEGER NOT NULL,
    node           INTEGER,
    enqueued_at    INTEGER NOT NULL,
    started_at     INTEGER,
    since          INTEGER NOT NULL,
    result         TEXT,
    last_error     TEXT,
    -- Its tenant was erased while it ran: it goes without a trace when it stops.
    forget         INTEGER NOT NULL,
    -- It lives only while a node has interest in it.
    while_wanted   INTEGER NOT NULL
) STRICT;

CREATE INDEX job_scheduled ON job (due, seq) WHERE stage = 'scheduled';
CREATE INDEX job_ready ON job (tenant, kind, alone, order_at, seq) WHERE stage = 'ready';
CREATE INDEX job_running ON job (seq) WHERE stage = 'running';
CREATE INDEX job_expires ON job (expires_at, seq) WHERE expires_at IS NOT NULL;
CREATE INDEX job_wanted ON job (seq) WHERE while_wanted = 1;

-- Jobs that ended.
CREATE TABLE history (
    seq            INTEGER PRIMARY KEY,
    id             BLOB NOT NULL UNIQUE,
    kind           TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    payload        TEXT NOT NULL,
    tags           TEXT,
    priority       INTEGER NOT NULL,
    cost           INTEGER NOT NULL,
    asked_due      ANY,
    start_within   ANY,
    run_timeout    ANY,
    asked_deadline ANY,
    max_attempts   INTEGER NOT NULL,
    max_crashes    INTEGER NOT NULL,
    backoff_base   ANY NOT NULL,
    backoff_cap    ANY NOT NULL,
    unique_key     TEXT,
    on_conflict    TEXT,
    unique_period  ANY,
    wanted_by      INTEGER,
    schedule       TEXT,
    missed         INTEGER NOT NULL,
    trace          TEXT,
    stage          TEXT NOT NULL,
    outcome        TEXT NOT NULL,
    due            INTEGER NOT NULL,
    start_by       INTEGER,
    deadline       INTEGER,
    attempt        INTEGER NOT NULL,
    fence          INTEGER NOT NULL,
    crashes        INTEGER NOT NULL,
    node           INTEGER,
    enqueued_at    INTEGER NOT NULL,
    started_at     INTEGER,
    -- When it ended.
    since          INTEGER NOT NULL,
    result         TEXT,
    last_error     TEXT
) STRICT;

CREATE INDEX history_ended ON history (outcome, since);

-- Words to find jobs by, live and ended.
CREATE TABLE tag (tag TEXT NOT NULL, id BLOB NOT NULL, PRIMARY KEY (tag, id)) STRICT, WITHOUT ROWID;

-- Unique keys: taken while the job is live, and until the instant given.
CREATE TABLE live_key (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    job         BLOB NOT NULL,
    taken_until INTEGER,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX live_key_taken ON live_key (taken_until) WHERE taken_until IS NOT NULL;

-- Nodes that want the result of a job.
CREATE TABLE interest (job BLOB NOT NULL, node INTEGER NOT NULL, PRIMARY KEY (job, node)) STRICT, WITHOUT ROWID;

CREATE INDEX interest_node ON interest (node);

-- Tenants with a policy, or with jobs that have ended. `has_policy` 0: nobody has set one.
CREATE TABLE tenant (
    name          TEXT PRIMARY KEY,
    has_policy    INTEGER NOT NULL,
    running_max   INTEGER,
    backlog_max   INTEGER,
    scheduled_max INTEGER,
    weight        INTEGER NOT NULL,
    rate_gap      INTEGER,
    rate_burst    INTEGER,
    paused        INTEGER NOT NULL,
    closed        INTEGER NOT NULL,
    -- The theoretical instant of the next start by its rate, in nanoseconds.
    rate_next     INTEGER NOT NULL,
    -- How many have ever ended so.
    succeeded     INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    cancelled     INTEGER NOT NULL,
    expired       INTEGER NOT NULL,
    -- How many of those are in `history`.
    kept          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Stored series of jobs. The columns up to `trace` are those of the job of a tick.
CREATE TABLE schedule (
    name           TEXT PRIMARY KEY,
    id             BLOB NOT NULL,
    kind           TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    payload        TEXT NOT NULL,
    tags           TEXT,
    priority       INTEGER NOT NULL,
    cost           INTEGER NOT NULL,
    asked_due      ANY,
    start_within   ANY,
    run_timeout    ANY,
    asked_deadline ANY,
    max_attempts   INTEGER NOT NULL,
    max_crashes    INTEGER NOT NULL,
    backoff_base   ANY NOT NULL,
    backoff_cap    ANY NOT NULL,
    unique_key     TEXT,
    on_conflict    TEXT,
    unique_period  ANY,
    wanted_by      INTEGER,
    schedule       TEXT,
    missed         INTEGER NOT NULL,
    trace          TEXT,
    -- A cron expression and its zone, or a period and an instant on its grid.
    cron           TEXT,
    zone           TEXT,
    period         ANY,
    anchor         INTEGER,
    -- once, skip, all; and how many of all at most.
    on_missed      TEXT NOT NULL,
    on_missed_max  INTEGER,
    next           INTEGER,
    paused         INTEGER NOT NULL,
    last           BLOB,
    fired          INTEGER NOT NULL,
    missed_count   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX schedule_next ON schedule (next) WHERE next IS NOT NULL AND paused = 0;
CREATE INDEX schedule_tenant ON schedule (tenant);

-- The nodes of the process that has the file open.
CREATE TABLE node (
    id      INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,
    kinds   TEXT NOT NULL,
    paused  TEXT NOT NULL,
    workers INTEGER NOT NULL
) STRICT;

-- For people: ids and instants as text.
CREATE VIEW jobs AS
SELECT lower(hex(id)) AS id, tenant, kind, stage, outcome, attempt, priority,
       strftime('%Y-%m-%dT%H:%M:%fZ', due / 1e6, 'unixepoch') AS due,
       strftime('%Y-%m-%dT%H:%M:%fZ', since / 1e6, 'unixepoch') AS since, last_error, payload
FROM (SELECT id, tenant, kind, stage, outcome, attempt, priority, due, since, last_error, payload FROM job
      UNION ALL
      SELECT id, tenant, kind, stage, outcome, attempt, priority, due, since, last_error, payload FROM history);
