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
-- A node that did not hear the answer to a claim begins another era: what was asked `of_era` gives it nothing from then on.
-- There are several ways to choose. One tenant with one queue has nothing but its own order. Several are read without locks, one job
-- more of each than it may have, so that it is known where its queue goes on; then what is taken is locked. If that is not all to be had (somebody has locked one, one
-- has expired), or rooms are tight, it is done again with care: what is read is locked, and each queue is asked where it goes on. All these give the same. Of very many
-- tenants some get a few jobs each at once, which is as fair over time: a batch more or less.
CREATE OR REPLACE FUNCTION claim(to_node bigint, max_jobs bigint, asked text[], rooms bigint[], at bigint DEFAULT NULL,
                                 ahead bigint DEFAULT 0, max_ahead bigint DEFAULT 0, spare bigint DEFAULT 0, of_era bigint DEFAULT NULL)
RETURNS SETOF claimed
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t bigint := present(at);
    t_ns bigint := t * 1000;
    v numeric;
    n bigint := least(max_jobs, 1000000);
    -- How many tenants are served at a time.
    served bigint;
    -- Who can run is found out before all are put in order, and not after that.
    is_thorough boolean := false;
    far numeric;
    open_kinds text[] := asked;
    open_rooms bigint[] := rooms;
    names text[];
    full_names text[];
    -- Of whom nothing could be had: in this round, and at all.
    in_vain text[];
    tried text[] := '{}';
    may_alone boolean := false;
    -- Of the jobs that are still wanted; and whether somebody would miss them.
    n_spare bigint := spare;
    is_near boolean;
    -- For another claim that has everybody it could serve.
    may_wait boolean;
    is_contended boolean := false;
    is_tight boolean;
    -- Something that was chosen without locks could not be had.
    is_odd boolean := false;
    weights numeric;
    start numeric;
    may bigint;
    has_due boolean;
    has_near boolean;
    has_news boolean;
    has_chance boolean;
    promoted bigint := 0;
    foreseen job[];
    got uuid[] := '{}';
    chosen choice;
    -- The one queue of the one tenant there is, and where it begins.
    queue text;
    queue_at bigint;
    queue_seq bigint;
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
    FROM node WHERE id = to_node AND (era <= of_era) IS NOT FALSE;
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
        -- If those that were served had nothing after all (it had expired, or was cancelled), twice as many follow: so thousands of them are through in a few rounds.
        served := greatest(ceil(n / least(greatest(n / 16, 1), 4)::numeric), cardinality(tried));
        -- Sorted before they are locked, so that not all of them need be: the first, and some more in case others have those. Who is at its
        -- limit counts if the ledger knows of runs that have ended. That, and whether they have such work, is asked of the first ones only, and of all if those
        -- were not enough.
        -- (`SELECT` before a variable that is an array: otherwise it would be copied for each row.)
        SELECT coalesce(array_agg(p.name), '{}'), array_agg(p.name) FILTER (WHERE p.running + n > p.running_max), sum(p.weight),
               n_spare > 0 AND bool_or(p.rate_gap IS NOT NULL OR 2 * (p.running + n) > p.running_max)
        INTO names, full_names, weights, is_near
        FROM (
            SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight
            FROM (SELECT o.ctid AS row FROM tenant o
                  WHERE o.has_work AND NOT o.paused
                    AND (NOT is_thorough OR (o.kinds && (SELECT open_kinds)
                         AND (o.running_max IS NULL OR o.running < o.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = o.name AND l.running < 0))))
                    AND (o.rate_next - o.rate_tolerance <= t_ns) IS NOT FALSE
                    AND o.name <> ALL ((SELECT tried)::text[])
                  -- The same as by `greatest(finish, v)`, those that go on after those that come anew, and of these whoever has waited longest for a turn first; but small
                  -- numbers are compared.
                  ORDER BY CASE WHEN o.finish < v THEN -1 ELSE (least(o.finish, far) - v)::bigint END, CASE WHEN o.finish < v OR o.finish > far THEN o.finish END,
                           o.number LIMIT 4 * (served + 1)) o
            CROSS JOIN LATERAL (
                SELECT p.name, p.running, p.running_max, p.rate_gap, p.weight FROM tenant p
                WHERE p.ctid = o.row AND p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
                  AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
                  AND (p.rate_next - p.rate_tolerance <= t_ns) IS NOT FALSE
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
        -- Those whom their limit may stop in this claim: what has ended for them counts, or others would go before them.
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
        queue := NULL;
        chosen := NULL;
        IF cardinality(names) = 1 AND NOT is_tight THEN
            SELECT CASE WHEN cardinality(p.kinds) = 1 THEN p.kinds[1] END, p.first_at[1], p.first_seq[1], p.weight, greatest(p.finish, v), starts(n, p, t_ns)
            INTO queue, queue_at, queue_seq, weights, start, may
            FROM tenant p WHERE p.name = names[1];
        END IF;
        IF queue IS NOT NULL THEN
            -- One tenant with one queue: nothing but its order to go by.
            SELECT array_agg(c.row), array_agg(c.id), array_agg(c.kind), start + sum(c.own) - (array_agg(c.own))[count(*)], ARRAY[count(*)], ARRAY[start + sum(c.own)]
            INTO chosen.rows, chosen.ids, chosen.kinds, chosen.turn, chosen.gains, chosen.finishes
            FROM (SELECT j.ctid AS row, j.id, j.kind,
                         CASE WHEN j.cost > 2147483647 THEN div(4294967296 * j.cost::numeric, weights)
                              ELSE (4294967296 * greatest(j.cost, 1) / weights::bigint)::numeric END AS own
                  FROM job j
                  WHERE j.tenant = names[1] AND j.kind = queue AND (j.order_at, j.seq) >= (queue_at, queue_seq) AND j.stage = 'ready'
                    AND (j.expires_at > t) IS NOT FALSE AND NOT j.alone
                  ORDER BY j.order_at, j.seq LIMIT may FOR NO KEY UPDATE SKIP LOCKED) c;
            chosen.has_alone := false;
            IF chosen.rows IS NOT NULL THEN
                chosen.used := names;
                chosen.gainers := names;
                chosen.is_plain := '{true}';
            END IF;
        ELSIF is_tight OR is_odd THEN
            chosen := choose_with_care(names, served, n, open_kinds, open_rooms, is_tight, may_alone, v, t);
        ELSE
            IF served < n AND cardinality(names) > served THEN
                chosen := choose_a_few(names, served, n, weights, open_kinds, v, t);
            ELSE
                chosen := choose(names, served, n, weights, open_kinds, v, t);
            END IF;
            -- What was read without locks is locked now. If not all of it can be had so, it is done again with care.
            is_odd := chosen.is_odd;
            IF NOT is_odd AND chosen.rows IS NOT NULL THEN
                is_odd := cardinality(chosen.rows) > (SELECT count(*) FROM (SELECT FROM job j WHERE j.ctid = ANY (chosen.rows) AND j.stage = 'ready' FOR NO KEY UPDATE SKIP LOCKED) l);
            END IF;
            CONTINUE WHEN is_odd;
        END IF;

        -- Their rows are locked, so nobody has moved them. What became ready after this claim began does not start before that.
        RETURN QUERY
        UPDATE job j SET stage = 'running', attempt = j.attempt + 1, fence = j.fence + 1, node = to_node, started_at = greatest(t, j.since),
            since = greatest(t, j.since), expires_at = j.deadline
        FROM unnest(chosen.rows) AS c (row) WHERE j.ctid = c.row
        RETURNING j.*, NULL::boolean, NULL::bigint, NULL::bigint, NULL::bigint;

        v := greatest(v, chosen.turn);
        IF queue IS NOT NULL AND chosen.rows IS NOT NULL THEN
            SELECT ARRAY[j.order_at], ARRAY[j.seq] INTO chosen.next_at, chosen.next_seq FROM job j
            WHERE j.tenant = names[1] AND j.kind = queue AND (j.order_at, j.seq) >= (queue_at, queue_seq) AND j.stage = 'ready' ORDER BY j.order_at, j.seq LIMIT 1;
        END IF;

        -- What they were given, and where their ready jobs begin now. Those of which nothing could be had are not asked again in this
        -- claim.
        IF chosen.is_plain IS NOT NULL THEN
            UPDATE tenant p SET
                running = p.running + g.jobs, ready = p.ready - g.jobs, finish = g.finish,
                rate_next = CASE WHEN p.rate_gap IS NULL THEN p.rate_next ELSE greatest(p.rate_next, t_ns) + g.jobs * p.rate_gap END,
                kinds = CASE WHEN g.seq IS NULL THEN '{}' ELSE p.kinds END, first_at = array_remove(ARRAY[g.at], NULL), first_seq = array_remove(ARRAY[g.seq], NULL),
                has_work = g.seq IS NOT NULL
            FROM unnest(chosen.gainers, chosen.gains, chosen.finishes, chosen.is_plain, chosen.next_at, chosen.next_seq) AS g (name, jobs, finish, is_plain, at, seq) WHERE g.is_plain AND p.name = g.name;
        END IF;
        IF (cardinality(chosen.used) >= least(cardinality(names), served)) IS NOT TRUE THEN
            in_vain := ARRAY(SELECT m FROM unnest(names) WITH ORDINALITY AS m (m, place) WHERE (m = ANY (chosen.used)) IS NOT TRUE AND place <= served);
            tried := tried || in_vain;
            chosen.gainers := chosen.gainers || in_vain;
        END IF;
        IF cardinality(chosen.gainers) > cardinality(chosen.is_plain) OR false = ANY (chosen.is_plain) OR chosen.is_plain IS NULL THEN
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
            FROM unnest(chosen.gainers, chosen.gains, chosen.finishes, chosen.is_plain) AS g (name, jobs, finish, is_plain) WHERE g.is_plain IS NOT TRUE AND p.name = g.name;
        END IF;

        IF chosen.rows IS NOT NULL THEN
            got := got || chosen.ids;
            n := n - cardinality(chosen.rows);
            may_alone := may_alone AND NOT chosen.has_alone;
            IF n > 0 OR cardinality(chosen.rows) >= ANY (open_rooms) THEN
                SELECT coalesce(array_agg(r.kind), '{}'), array_agg(r.room) INTO open_kinds, open_rooms
                FROM (SELECT o.kind, o.room - (SELECT count(*) FROM unnest(chosen.kinds) AS k (kind) WHERE k.kind = o.kind) AS room
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
        -- From here to the commit its row is locked, which keeps the reaper and another era away; who was reaped a moment ago, or is in another era, gets nothing. Only now, so that a claim
        -- which finds nothing, or everything in other hands, has nothing to write and waits for no disk.
        UPDATE node SET turn = greatest(turn, v) WHERE id = to_node AND (era <= of_era) IS NOT FALSE;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'the lease of the node, or the era of the claim, has just ended';
        END IF;
    END IF;

    -- Whether there is more; when the next job falls due (what is due and still not ready, somebody else has in hand, and may have for
    -- long); of those whom only their rate holds back, when the first may start; and when there is something to tend.
    SELECT cardinality(open_kinds) > 0 AND (is_contended OR EXISTS (
               SELECT FROM tenant p
               WHERE p.has_work AND NOT p.paused AND p.kinds && (SELECT open_kinds)
                 AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
                 AND (p.rate_next - p.rate_tolerance <= t_ns) IS NOT FALSE
                 AND p.name <> ALL ((SELECT tried)::text[]))),
           (SELECT CASE WHEN s.due > t OR promoted > 0 THEN s.due ELSE t + 5000 END FROM sched s WHERE s.due <= 4000000000000000000 ORDER BY s.due, s.seq LIMIT 1),
           EXISTS (SELECT FROM tenant p WHERE p.has_work AND p.rate_gap IS NOT NULL),
           EXISTS (SELECT FROM schedule c WHERE c.next <= t AND NOT c.paused), next_tend(t)
    INTO answer.more, answer.due_at, is_rated, has_ticks, answer.tend_at;
    IF is_rated THEN
        SELECT min((p.rate_next - p.rate_tolerance + 999) / 1000) INTO answer.again_at
        FROM tenant p
        WHERE p.has_work AND p.rate_gap IS NOT NULL AND NOT p.paused
          AND (p.running_max IS NULL OR p.running < p.running_max OR EXISTS (SELECT FROM ledger l WHERE l.tenant = p.name AND l.running < 0))
          AND p.rate_next - p.rate_tolerance > t_ns
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
