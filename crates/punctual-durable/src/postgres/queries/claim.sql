-- Gives ready jobs to a node: tenants in fair order, within a tenant by (order_at, seq), as far as limits, rates and the room for each
-- kind allow. docs/design/postgres.md proves what it promises; in short:
-- Rows of tenants are locked in the order of their turn, those that others have are skipped, so claims do not wait for each other.
-- Who holds a tenant's row is the only one who starts its jobs, and sees in a snapshot taken after the lock every run that ended: so
-- no limit is ever exceeded.
-- Turns are start-time fair queueing: the k-th job of a tenant starts, in virtual time, where the one before ends. All candidates get
-- their start at once and the least go; what is taken lies before the frontier, the first start that was not looked at. Usually one
-- round is enough; another follows when a tenant has less than its share, or the room for a kind is used up.
-- `asked` names each kind once, and `rooms` how many of it there may be: at least one. `max_ahead` may fall due up to `ahead` microseconds from now.
-- `spare` of the jobs wait at the node until a worker is free, in a moment. They are given only if nobody misses them meanwhile: no tenant that is served has a
-- rate, or would be nearer to its limit than half of it.
-- There are several ways to choose. One tenant with one queue has nothing but its own order. Several are read without locks, one job
-- more of each than it may have, so that it is known where its queue goes on; then what is taken is locked. If that is not all to be had (somebody has locked one, one
-- has expired), or rooms are tight, it is done again with care: what is read is locked, and each queue is asked where it goes on. All these give the same. Of very many
-- tenants some get a few jobs each at once, which is as fair over time: a batch more or less.
CREATE OR REPLACE FUNCTION claim(to_node bigint, max_jobs bigint, asked text[], rooms bigint[], at bigint DEFAULT NULL,
                                 ahead bigint DEFAULT 0, max_ahead bigint DEFAULT 0, spare bigint DEFAULT 0)
RETURNS SETOF claimed
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := present(at);
    t_ns bigint := t * 1000;
    v numeric;
    n bigint := max_jobs;
    -- How many tenants are served at a time, and whether each is given its share of n at once although there are more of them.
    served bigint;
    is_coarse boolean;
    -- Who can run is found out before all are put in order, and not after that.
    is_thorough boolean := false;
    far numeric;
    open_kinds text[] := asked;
    open_rooms bigint[] := rooms;
    names text[];
    full_names text[];
    tried text[] := '{}';
    may_alone boolean := false;
    -- Of the jobs that are still wanted; and whether somebody would miss them.
    n_spare bigint := spare;
    is_near boolean;
    -- For another claim that has everybody it could serve.
    may_wait boolean;
    is_contended boolean := false;
    is_tight boolean;
    is_odd boolean := false;
    is_careful boolean;
    weights numeric;
    start numeric;
    may bigint;
    has_due boolean;
    has_near boolean;
    has_news boolean;
    has_chance boolean;
    promoted bigint := 0;
    foreseen job[];
    rows tid[];
    ids uuid[];
    got uuid[] := '{}';
    kinds text[];
    has_alone boolean;
    next_v numeric;
    used text[];
    gainers text[];
    gains bigint[];
    finishes numeric[];
    -- Of those whose queue has one kind: where it goes on, if it does.
    queue text;
    queue_at bigint;
    queue_seq bigint;
    is_plain boolean[];
    next_at bigint[];
    next_seq bigint[];
    is_rated boolean;
    has_ticks boolean;
    -- What comes after the jobs.
    answer claimed;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a claim needs a new snapshot for each statement: read committed, not %', current_setting('transaction_isolation');
    END IF;
    -- Only a node that has joined can hold a lease. As much as can be in one statement: making one ready costs more than all that this one does.
    SELECT EXISTS (SELECT FROM sched WHERE due <= t), EXISTS (SELECT FROM sched WHERE due > t AND due <= t + ahead), EXISTS (SELECT FROM ledger WHERE kind IS NOT NULL),
           EXISTS (SELECT FROM tenant p WHERE p.has_work), EXISTS (SELECT FROM job WHERE alone AND stage = 'ready'),
           greatest((SELECT max(o.turn) FROM node o), (SELECT g.at FROM turn g))
    INTO has_due, has_near, has_news, may_wait, has_chance, v
    FROM node WHERE id = to_node;
    IF NOT FOUND THEN
        answer.more := false;
        RETURN NEXT answer;
        RETURN;
    END IF;
    IF has_due THEN
        promoted := promote(t, 500);
        has_chance := EXISTS (SELECT FROM job WHERE alone AND stage = 'ready');
    END IF;

    -- Only new work is looked for here. That runs have ended is taken in when it counts, below, or at leisure, by `tend`.
    IF has_due OR has_news THEN
        is_contended := take_news(true);
        may_wait := false;
    END IF;

    -- Jobs with a last chance run one at a time, over all nodes.
    IF has_chance THEN
        IF pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/alone', 0)) THEN
            may_alone := NOT EXISTS (SELECT FROM job WHERE alone AND stage = 'running');
        ELSE
            is_contended := true;
        END IF;
    END IF;

    WHILE n > 0 AND cardinality(open_kinds) > 0 LOOP
        -- A visit costs more than a job: so of many tenants up to four jobs each are taken, if those are a small part of what is wanted.
        far := v + 9000000000000000000;
        served := ceil(n / least(greatest(n / 16, 1), 4)::numeric);
        -- Sorted before they are locked, so that not all of them need be: the first, and some more in case others have those. Who is at its
        -- limit counts if the ledger knows of runs that have ended. That, and whether they have such work, is asked of the first ones only, and of all if those
        -- were not enough.
        -- (`SELECT` before a variable that is an array: otherwise it would be copied for each row.)
        SELECT coalesce(array_agg(p.name), '{}'), array_agg(p.name) FILTER (WHERE p.running >= p.running_max), sum(p.weight),
               n_spare > 0 AND bool_or(p.rate_gap IS NOT NULL OR 2 * (p.running + n) > p.running_max)
        INTO names, full_names, weights, is_near
        FROM (
            SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight
            FROM (SELECT o.ctid AS row FROM tenant o
                  WHERE o.has_work AND NOT o.paused
                    AND (NOT is_thorough OR (o.kinds && (SELECT open_kinds)
                         AND (o.running_max IS NULL OR o.running < o.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = o.name AND l.running < 0))))
                    AND (o.rate_next - o.rate_gap * (o.rate_burst - 1) <= t_ns) IS NOT FALSE
                    AND o.name <> ALL ((SELECT tried)::text[])
                  -- The same as by `greatest(finish, v)`, those that go on after those that come anew, but small numbers are compared.
                  ORDER BY CASE WHEN o.finish < v THEN -1 ELSE (least(o.finish, far) - v)::bigint END, CASE WHEN o.finish > far THEN o.finish END,
                           o.number LIMIT 4 * (served + 1)) o
            CROSS JOIN LATERAL (
                SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight FROM tenant p
                WHERE p.ctid = o.row AND p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
                  AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
                  AND (p.rate_next - p.rate_gap * (p.rate_burst - 1) <= t_ns) IS NOT FALSE
                FOR NO KEY UPDATE SKIP LOCKED) p
            LIMIT served + 1) p;
        IF NOT is_thorough AND cardinality(names) <= served THEN
            is_thorough := true;
            CONTINUE WHEN EXISTS (SELECT FROM tenant o WHERE o.has_work OFFSET 4 * (served + 1));
        END IF;
        IF names = '{}' THEN
            EXIT WHEN NOT may_wait OR got <> '{}';
            may_wait := false;
            EXIT WHEN NOT wait_for_turn(open_kinds, v, t_ns);
            -- What has expired meanwhile has expired.
            t := coalesce(at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
            t_ns := t * 1000;
            CONTINUE;
        END IF;
        IF full_names IS NOT NULL THEN
            PERFORM absorb(full_names);
        END IF;
        IF is_near THEN
            -- One by itself may be less near than it looks: some of its runs have ended.
            IF cardinality(names) = 1 THEN
                PERFORM absorb(names);
                is_near := EXISTS (SELECT FROM tenant p WHERE p.name = names[1] AND (p.rate_gap IS NOT NULL OR 2 * (p.running + n) > p.running_max));
            END IF;
            IF is_near THEN
                n := greatest(n - n_spare, 0);
                n_spare := 0;
                CONTINUE;
            END IF;
        END IF;
        is_tight := may_alone OR n > ANY (open_rooms);
        is_coarse := served < n AND cardinality(names) > served;
        queue := NULL;
        is_plain := NULL;
        is_careful := false;

        IF cardinality(names) = 1 AND NOT is_tight THEN
            SELECT CASE WHEN cardinality(p.kinds) = 1 THEN p.kinds[1] END, p.first_at[1], p.first_seq[1], p.weight, greatest(p.finish, v), starts(n, p, t_ns)
            INTO queue, queue_at, queue_seq, weights, start, may
            FROM tenant p WHERE p.name = names[1];
        END IF;
        IF queue IS NOT NULL THEN
            -- One tenant with one queue: nothing but its order to go by.
            SELECT array_agg(c.row), array_agg(c.id), array_agg(c.kind), start + sum(c.own) - (array_agg(c.own))[count(*)], ARRAY[count(*)], ARRAY[start + sum(c.own)]
            INTO rows, ids, kinds, next_v, gains, finishes
            FROM (SELECT j.ctid AS row, j.id, j.kind,
                         CASE WHEN j.cost > 2147483647 THEN div(4294967296 * j.cost::numeric, weights)
                              ELSE (4294967296 * greatest(j.cost, 1) / weights::bigint)::numeric END AS own
                  FROM job j
                  WHERE j.tenant = names[1] AND j.kind = queue AND (j.order_at, j.seq) >= (queue_at, queue_seq) AND j.stage = 'ready'
                    AND (j.expires_at > t) IS NOT FALSE AND NOT j.alone
                  ORDER BY j.order_at, j.seq LIMIT may FOR NO KEY UPDATE SKIP LOCKED) c;
            has_alone := false;
            IF rows IS NOT NULL THEN
                used := names;
                gainers := names;
                is_plain := '{true}';
            ELSE
                used := NULL;
                gainers := NULL;
            END IF;
        ELSIF is_coarse AND NOT is_tight AND NOT is_odd THEN
            -- Each of those that are served gets its share as one: all of it starts where the first does. Nothing is put in order but what is taken of each.
            WITH lane AS MATERIALIZED (
                SELECT m.place, p.name, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start,
                       least(starts(n, p, t_ns), greatest(round(n * p.weight / weights), 1)::bigint) AS share
                FROM unnest(names[:served]) WITH ORDINALITY AS m (name, place) JOIN tenant p ON p.name = m.name
            ), candidate AS MATERIALIZED (
                SELECT l.place AS of_lane, l.share, l.start, l.weight, cardinality(l.kinds) = 1 AS is_plain, j.*, row_number() OVER w AS place, sum(least(greatest(j.cost, 1), 2147483647)::int) OVER w AS costs,
                       lead(j.order_at) OVER w AS next_at, lead(j.seq) OVER w AS next_seq
                FROM lane l CROSS JOIN LATERAL unnest(l.kinds, l.first_at, l.first_seq) AS q (queue, at, seq) CROSS JOIN LATERAL (
                    SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone OR j.expires_at <= t OR j.cost > 2147483647 AS is_odd FROM job j
                    WHERE j.tenant = l.name AND j.kind = q.queue AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                    ORDER BY j.order_at, j.seq LIMIT l.share + 1) j
                WHERE l.share > 0 AND q.queue = ANY ((SELECT open_kinds)::text[])
                WINDOW w AS (PARTITION BY l.place ORDER BY j.order_at, j.seq)
            ), chosen AS MATERIALIZED (
                SELECT c.* FROM candidate c WHERE c.place <= c.share ORDER BY c.of_lane, c.place LIMIT n
            ), gain AS (
                SELECT DISTINCT ON (c.of_lane) c.* FROM chosen c ORDER BY c.of_lane, c.place DESC
            )
            SELECT s.rows, s.ids, s.kinds, false, g.v, (SELECT array_agg(names[c.of_lane]) FROM candidate c WHERE c.place = 1), (SELECT bool_or(c.is_odd) IS TRUE FROM candidate c),
                   g.gainers, g.gains, g.finishes, g.is_plain, g.next_at, g.next_seq
            INTO rows, ids, kinds, has_alone, next_v, used, is_odd, gainers, gains, finishes, is_plain, next_at, next_seq
            FROM (SELECT array_agg(c.row) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds FROM chosen c) s,
                 (SELECT max(g.start) AS v, array_agg(names[g.of_lane]) AS gainers, array_agg(g.place) AS gains,
                         array_agg(g.start + div(4294967296::numeric * g.costs, g.weight)) AS finishes,
                         array_agg(g.is_plain) AS is_plain, array_agg(g.next_at) AS next_at, array_agg(g.next_seq) AS next_seq FROM gain g) g;
        ELSIF NOT is_tight AND NOT is_odd THEN
            WITH lane AS (
                SELECT p.name, p.number, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start,
                       p.finish >= v AND p.finish > 0 AS goes_on, (p.name = names[served + 1]) IS TRUE AS is_frontier, starts(n, p, t_ns) AS may
                FROM tenant p WHERE p.name = ANY (names)
            ), shared AS MATERIALIZED (
                SELECT l.*, least(l.may, ceil(n * l.weight / weights)::bigint) AS share FROM lane l
            ), candidate AS MATERIALIZED (
                SELECT c.*, c.start + sum(c.own) OVER w AS ends, row_number() OVER w AS place, lead(c.order_at) OVER w AS next_at, lead(c.seq) OVER w AS next_seq
                FROM (SELECT s.name, s.number, s.start, s.goes_on, s.share, s.may, cardinality(s.kinds) = 1 AS is_plain, j.*,
                             4294967296 * greatest(least(j.cost, 2147483647), 1) / s.weight AS own
                      FROM shared s CROSS JOIN LATERAL unnest(s.kinds, s.first_at, s.first_seq) AS q (queue, at, seq) CROSS JOIN LATERAL (
                          SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone OR j.expires_at <= t OR j.cost > 2147483647 AS is_odd FROM job j
                          WHERE j.tenant = s.name AND j.kind = q.queue AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                          ORDER BY j.order_at, j.seq LIMIT s.share + 1) j
                      WHERE NOT s.is_frontier AND s.share > 0 AND q.queue = ANY ((SELECT open_kinds)::text[])) c
                WINDOW w AS (PARTITION BY c.number ORDER BY c.order_at, c.seq)
            ), frontier AS (
                SELECT f.* FROM (
                    SELECT s.start AS begins, s.goes_on, s.number FROM shared s WHERE s.is_frontier
                    UNION ALL
                    SELECT c.ends, true, c.number FROM candidate c WHERE c.place = c.share AND c.share < c.may) f
                ORDER BY 1, 2, 3 LIMIT 1
            ), chosen AS MATERIALIZED (
                SELECT u.* FROM (SELECT c.*, c.ends - c.own AS begins, c.goes_on OR c.place > 1 AS follows FROM candidate c WHERE c.place <= c.share) u LEFT JOIN frontier f ON true
                WHERE f.number IS NULL OR (u.begins, u.follows, u.number) < (f.begins, f.goes_on, f.number)
                ORDER BY u.begins, u.follows, u.number LIMIT n
            ), gain AS (
                SELECT DISTINCT ON (c.number) c.name, c.place AS jobs, c.ends, c.is_plain, c.next_at, c.next_seq FROM chosen c ORDER BY c.number, c.place DESC
            )
            SELECT s.rows, s.ids, s.kinds, false, s.v, (SELECT array_agg(DISTINCT c.name) FROM candidate c), (SELECT bool_or(c.is_odd) IS TRUE FROM candidate c),
                   g.gainers, g.gains, g.finishes, g.is_plain, g.next_at, g.next_seq
            INTO rows, ids, kinds, has_alone, next_v, used, is_odd, gainers, gains, finishes, is_plain, next_at, next_seq
            FROM (SELECT array_agg(c.row) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds, greatest(v, max(c.begins)) AS v
                  FROM chosen c) s,
                 (SELECT array_agg(g.name) AS gainers, array_agg(g.jobs) AS gains, array_agg(g.ends) AS finishes,
                         array_agg(g.is_plain) AS is_plain, array_agg(g.next_at) AS next_at, array_agg(g.next_seq) AS next_seq FROM gain g) g;
        ELSE
            is_careful := true;
            WITH lane AS (
                SELECT p.name, p.number, p.weight, p.kinds, p.first_at, p.first_seq, greatest(p.finish, v) AS start,
                       p.finish >= v AND p.finish > 0 AS goes_on, starts(n, p, t_ns) AS may
                FROM tenant p WHERE p.name = ANY (names)
            ), shared AS (
                SELECT l.*, least(l.may, ceil(n * l.weight / sum(l.weight) OVER ())::bigint) AS share,
                       -- One more tenant was locked than is served: nothing is taken from it, its turn is the frontier.
                       cardinality(names) > served AND row_number() OVER (ORDER BY l.start, l.goes_on, l.number) > served AS is_frontier
                FROM lane l
            ), candidate AS (
                SELECT s.name, s.number, s.share, s.may, s.start, s.goes_on OR row_number() OVER w > 1 AS goes_on, c.*,
                       sum(o.own) OVER w AS costs, o.own
                FROM shared s CROSS JOIN LATERAL (
                    SELECT j.row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone
                    FROM unnest(s.kinds, s.first_at, s.first_seq) AS q (kind, at, seq) CROSS JOIN LATERAL (
                        SELECT j.ctid AS row, j.id, j.kind, j.order_at, j.seq, j.cost, j.alone FROM job j
                        WHERE j.tenant = s.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                          AND (j.expires_at > t) IS NOT FALSE AND (may_alone OR NOT j.alone)
                        ORDER BY j.order_at, j.seq LIMIT s.share FOR NO KEY UPDATE SKIP LOCKED) j
                    WHERE q.kind = ANY (open_kinds)
                    ORDER BY j.order_at, j.seq LIMIT s.share) c
                CROSS JOIN LATERAL (SELECT div(4294967296::numeric * greatest(c.cost, 1), s.weight) AS own) o
                WHERE NOT s.is_frontier
                WINDOW w AS (PARTITION BY s.name ORDER BY c.order_at, c.seq)
            ), turn AS (
                SELECT c.*, row_number() OVER (ORDER BY c.begins, c.goes_on, c.number) AS place
                FROM (SELECT d.*, d.start + d.costs - d.own AS begins FROM candidate d) c
            ), frontier AS (
                SELECT f.begins, f.goes_on, f.number
                FROM (SELECT s.start AS begins, s.goes_on, s.number FROM shared s WHERE s.is_frontier
                      UNION ALL
                      SELECT max(c.start + c.costs), true, c.number FROM candidate c
                      GROUP BY c.number, c.share, c.may HAVING count(*) = c.share AND c.share < c.may) f
                ORDER BY 1, 2, 3 LIMIT 1
            ), cut AS (
                -- The first that the room for its kind, or another job with a last chance, forbids.
                SELECT min(u.place) AS place
                FROM (SELECT x.place, x.kind, x.alone, row_number() OVER (PARTITION BY x.kind ORDER BY x.place) AS of_kind,
                             row_number() OVER (PARTITION BY x.alone ORDER BY x.place) AS of_alone
                      FROM turn x WHERE is_tight) u
                WHERE u.of_kind > open_rooms[array_position(open_kinds, u.kind)] OR (u.alone AND u.of_alone > 1)
            ), chosen AS (
                SELECT u.* FROM turn u CROSS JOIN cut LEFT JOIN frontier f ON true
                WHERE u.place <= n AND (u.place < cut.place) IS NOT FALSE
                  AND (f.number IS NULL OR (u.begins, u.goes_on, u.number) < (f.begins, f.goes_on, f.number))
            ), gain AS (
                SELECT c.name, count(*) AS jobs, max(c.start + c.costs) AS finish FROM chosen c GROUP BY c.name
            )
            SELECT s.rows, s.ids, s.kinds, s.has_alone, s.v, (SELECT array_agg(DISTINCT c.name) FROM candidate c), g.gainers, g.gains, g.finishes
            INTO rows, ids, kinds, has_alone, next_v, used, gainers, gains, finishes
            FROM (SELECT array_agg(c.row ORDER BY c.place) AS rows, array_agg(c.id) AS ids, array_agg(c.kind) AS kinds, bool_or(c.alone) AS has_alone,
                         greatest(v, max(c.begins)) AS v
                  FROM chosen c) s,
                 (SELECT array_agg(g.name) AS gainers, array_agg(g.jobs) AS gains, array_agg(g.finish) AS finishes FROM gain g) g;
        END IF;

        -- What was read without locks is locked now. If not all of it can be had so, it is done again with care.
        IF queue IS NULL AND NOT is_careful THEN
            IF NOT is_odd AND rows IS NOT NULL THEN
                is_odd := cardinality(rows) > (SELECT count(*) FROM (SELECT FROM job j WHERE j.ctid = ANY (rows) AND j.stage = 'ready' FOR NO KEY UPDATE SKIP LOCKED) l);
            END IF;
            CONTINUE WHEN is_odd;
        END IF;

        -- Their rows are locked, so nobody has moved them. What became ready after this claim began does not start before that.
        RETURN QUERY
        UPDATE job j SET stage = 'running', attempt = j.attempt + 1, fence = j.fence + 1, node = to_node, started_at = greatest(t, j.since),
            since = greatest(t, j.since), expires_at = j.deadline
        FROM unnest(rows) AS c (row) WHERE j.ctid = c.row
        RETURNING j.*, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint;

        v := greatest(v, next_v);
        IF queue IS NOT NULL AND rows IS NOT NULL THEN
            SELECT ARRAY[j.order_at], ARRAY[j.seq] INTO next_at, next_seq FROM job j
            WHERE j.tenant = names[1] AND j.kind = queue AND (j.order_at, j.seq) >= (queue_at, queue_seq) AND j.stage = 'ready' ORDER BY j.order_at, j.seq LIMIT 1;
        END IF;

        -- What they were given, and where their ready jobs begin now. Those of which nothing could be had are not asked again in this
        -- claim.
        IF is_plain IS NOT NULL THEN
            UPDATE tenant p SET
                running = p.running + g.jobs, ready = p.ready - g.jobs, finish = g.finish,
                rate_next = CASE WHEN p.rate_gap IS NULL THEN p.rate_next ELSE greatest(p.rate_next, t_ns) + g.jobs * p.rate_gap END,
                kinds = CASE WHEN g.seq IS NULL THEN '{}' ELSE p.kinds END, first_at = array_remove(ARRAY[g.at], NULL), first_seq = array_remove(ARRAY[g.seq], NULL),
                has_work = g.seq IS NOT NULL
            FROM unnest(gainers, gains, finishes, is_plain, next_at, next_seq) AS g (name, jobs, finish, is_plain, at, seq) WHERE g.is_plain AND p.name = g.name;
        END IF;
        IF (cardinality(used) >= least(cardinality(names), served)) IS NOT TRUE THEN
            used := ARRAY(SELECT m FROM unnest(names) WITH ORDINALITY AS m (m, place) WHERE (m = ANY (used)) IS NOT TRUE AND place <= served);
            tried := tried || used;
            gainers := gainers || used;
        END IF;
        IF cardinality(gainers) > cardinality(is_plain) OR false = ANY (is_plain) OR is_plain IS NULL THEN
            UPDATE tenant p SET
                running = p.running + coalesce(g.jobs, 0), ready = p.ready - coalesce(g.jobs, 0), finish = coalesce(g.finish, p.finish),
                rate_next = CASE WHEN p.rate_gap IS NULL OR g.jobs IS NULL THEN p.rate_next ELSE greatest(p.rate_next, t_ns) + g.jobs * p.rate_gap END,
                (kinds, first_at, first_seq, has_work) = (
                    SELECT coalesce(array_agg(q.kind), '{}'), coalesce(array_agg(q.at), '{}'), coalesce(array_agg(q.seq), '{}'), count(*) > 0
                    FROM (SELECT q.kind, coalesce(f.order_at, q.at) AS at, coalesce(f.seq, q.seq) AS seq
                          FROM unnest(p.kinds, p.first_at, p.first_seq) AS q (kind, at, seq) LEFT JOIN LATERAL (
                              SELECT j.order_at, j.seq FROM job j
                              WHERE q.kind = ANY (open_kinds) AND j.tenant = p.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                              ORDER BY j.order_at, j.seq LIMIT 1) f ON true
                          WHERE q.kind <> ALL (open_kinds) OR f.seq IS NOT NULL) q)
            FROM unnest(gainers, gains, finishes, is_plain) AS g (name, jobs, finish, is_plain) WHERE g.is_plain IS NOT TRUE AND p.name = g.name;
        END IF;

        IF rows IS NOT NULL THEN
            got := got || ids;
            n := n - cardinality(rows);
            may_alone := may_alone AND NOT has_alone;
            IF n > 0 OR cardinality(rows) >= ANY (open_rooms) THEN
                SELECT coalesce(array_agg(r.kind), '{}'), array_agg(r.room) INTO open_kinds, open_rooms
                FROM (SELECT o.kind, o.room - (SELECT count(*) FROM unnest(kinds) AS k (kind) WHERE k.kind = o.kind) AS room
                      FROM unnest(open_kinds, open_rooms) AS o (kind, room)) r
                WHERE r.room > 0;
            END IF;
        END IF;
    END LOOP;
    -- Nothing more is ready for whom there is room.
    IF has_near AND max_ahead > cardinality(got) AND cardinality(open_kinds) > 0 THEN
        n := least(n, max_ahead - cardinality(got), (SELECT min(r.room) FROM unnest(open_rooms) AS r (room)));
        SELECT f.v, f.jobs INTO v, foreseen FROM foresee(to_node, n, open_kinds, t, t + ahead, v) f;
        got := got || ARRAY(SELECT f.id FROM unnest(foreseen) f);
        RETURN QUERY SELECT f.*, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint FROM unnest(foreseen) f;
    END IF;
    IF got <> '{}' THEN
        INSERT INTO run VALUES (to_node, got);
        -- From here to the commit its row is locked, which keeps the reaper away; who was reaped a moment ago gets nothing. Only now, so that a claim
        -- which finds nothing, or everything in other hands, has nothing to write and waits for no disk.
        UPDATE node SET turn = greatest(turn, v) WHERE id = to_node;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'the lease of the node has just ended';
        END IF;
    END IF;

    -- Whether there is more; when the next job falls due (what is due and still not ready, somebody else has in hand, and may have for
    -- long); of those whom only their rate holds back, when the first may start; and when there is something to tend.
    SELECT cardinality(open_kinds) > 0 AND (is_contended OR EXISTS (
               SELECT FROM tenant p
               WHERE p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
                 AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
                 AND (p.rate_next - p.rate_gap * (p.rate_burst - 1) <= t_ns) IS NOT FALSE
                 AND p.name <> ALL ((SELECT tried)::text[]))),
           (SELECT CASE WHEN s.due > t OR promoted > 0 THEN s.due ELSE t + 5000 END FROM sched s ORDER BY s.due, s.seq LIMIT 1),
           EXISTS (SELECT FROM tenant p WHERE p.has_work AND p.rate_gap IS NOT NULL),
           EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused), next_tend(t)
    INTO answer.more, answer.due_at, is_rated, has_ticks, answer.tend_at;
    IF is_rated THEN
        SELECT min((p.rate_next - p.rate_gap * (p.rate_burst - 1) + 999) / 1000) INTO answer.again_at
        FROM tenant p
        WHERE p.has_work AND p.rate_gap IS NOT NULL AND NOT p.paused
          AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
          AND p.rate_next - p.rate_gap * (p.rate_burst - 1) > t_ns
          AND EXISTS (SELECT FROM unnest(p.kinds, p.first_at, p.first_seq) AS q (kind, at, seq), job j
                      WHERE q.kind = ANY (open_kinds) AND j.tenant = p.name AND j.kind = q.kind AND (j.order_at, j.seq) >= (q.at, q.seq) AND j.stage = 'ready'
                        AND (j.expires_at > t) IS NOT FALSE
                        AND (NOT j.alone OR NOT EXISTS (SELECT FROM job o WHERE o.alone AND o.stage = 'running')));
    END IF;
    IF has_ticks AND EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused AND NOT EXISTS (SELECT FROM job j WHERE j.id = c.last)
                               AND NOT EXISTS (SELECT FROM sched s WHERE s.id = c.last)) THEN
        answer.tend_at := least(answer.tend_at, t);
    END IF;
    RETURN NEXT answer;
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
