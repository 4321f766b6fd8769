-- Gives ready jobs to a node: tenants in fair order, within a tenant by (order_at, seq), as far as limits, rates and
-- the room for each kind allow. docs/design/postgres.md proves what it promises; in short:
-- Rows of tenants are locked in the order of their turn, those that others have are skipped, so claims do not wait for
-- each other.
-- Who holds a tenant's row is the only one who starts its jobs, and sees in a snapshot taken after the lock every run
-- that ended: so no limit is ever exceeded.
-- Turns are start-time fair queueing: the k-th job of a tenant starts, in virtual time, where the one before ends. All
-- candidates get their start at once and the least go; what is taken lies before the frontier, the first start that was
-- not looked at. Usually one round is enough; another follows when a tenant has less than its share, or the room for a
-- kind is used up.
-- `asked` names each kind once, and `rooms` how many of it there may be: at least one. `max_ahead` may fall due up to
-- `ahead` microseconds from now.
-- `spare` of the jobs wait at the node until a worker is free, in a moment. They are given only if nobody misses them
-- meanwhile: no tenant that is served has a rate, or would be nearer to its limit than half of it.
-- A node that did not hear the answer to a claim begins another era: what was asked `of_era` gives it nothing from then
-- on.
-- There are several ways to choose. One tenant with one queue has nothing but its own order. Several are read without
-- locks, one job more of each than it may have, so that it is known where its queue goes on; then what is taken is
-- locked. If that is not all to be had (somebody has locked one, one has expired), or rooms are tight, it is done again
-- with care: what is read is locked, and each queue is asked where it goes on. All these give the same. Of very many
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
    -- How many tenants are served at a time, and how many jobs of each are hoped for.
    served bigint;
    each bigint := 4;
    -- Who can run is found out before all are put in order, and not after that.
    is_thorough boolean := false;
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
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a claim needs a new snapshot for each statement: read committed, not %', current_setting('transaction_isolation');
    END IF;
    -- Only a node that has joined can hold a lease. As much as can be in one statement: making one ready costs more
    -- than all that this one does.
    SELECT EXISTS (SELECT FROM sched WHERE due <= t), EXISTS (SELECT FROM sched WHERE due > t AND due <= t + ahead), EXISTS (SELECT FROM ledger WHERE kind IS NOT NULL),
           EXISTS (SELECT FROM tenant p WHERE p.has_work), EXISTS (SELECT FROM job WHERE alone AND stage = 'ready'),
           greatest((SELECT max(o.turn) FROM node o), (SELECT g.at FROM turn g))
    INTO has_due, has_near, has_news, may_wait, has_chance, v
    FROM node WHERE id = to_node AND (era <= of_era) IS NOT FALSE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT (NULL::job).*, false, NULL::bigint, NULL::bigint, NULL::bigint;
        RETURN;
    END IF;
    IF has_due THEN
        promoted := promote(t, 500);
        has_chance := EXISTS (SELECT FROM job WHERE alone AND stage = 'ready');
    END IF;

    -- Only new work is looked for here. That runs have ended is taken in when it counts, below, or at leisure, by
    -- `tend`.
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
        -- A visit costs more than a job: so of many tenants up to four jobs each are taken, if those are a small part
        -- of what is wanted. But each round looks at all who have work: if they have less, as many are served as that
        -- takes.
        -- If those that were served had nothing after all (it had expired, or was cancelled), twice as many follow: so
        -- thousands of them are through in a few rounds.
        served := greatest(ceil(n / least(greatest(n / 16, 1), each)::numeric), cardinality(tried));
        SELECT * INTO names, full_names, weights, is_near FROM whose_turn(served, is_thorough, open_kinds, tried, n, n_spare, t_ns);
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
        -- Those whom their limit may stop in this claim: what has ended for them counts, or others would go before
        -- them.
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

        -- Their rows are locked, so nobody has moved them. What became ready after this claim began does not start
        -- before that.
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

        -- Those of which nothing could be had are not asked again in this claim.
        IF (cardinality(chosen.used) >= least(cardinality(names), served)) IS NOT TRUE THEN
            in_vain := ARRAY(SELECT m FROM unnest(names) WITH ORDINALITY AS m (m, place) WHERE (m = ANY (chosen.used)) IS NOT TRUE AND place <= served);
            tried := tried || in_vain;
            chosen.gainers := chosen.gainers || in_vain;
        END IF;
        PERFORM charge(chosen, open_kinds, t_ns);

        IF chosen.rows IS NOT NULL THEN
            got := got || chosen.ids;
            n := n - cardinality(chosen.rows);
            each := least(each, greatest(cardinality(chosen.rows) / served, 1));
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
        -- From here to the commit its row is locked, which keeps the reaper and another era away; who was reaped a
        -- moment ago, or is in another era, gets nothing. Only now, so that a claim which finds nothing, or everything
        -- in other hands, has nothing to write and waits for no disk.
        UPDATE node SET turn = greatest(turn, v) WHERE id = to_node AND (era <= of_era) IS NOT FALSE;
        IF NOT FOUND THEN
            RAISE serialization_failure USING MESSAGE = 'the lease of the node, or the era of the claim, has just ended';
        END IF;
    END IF;

    RETURN NEXT outlook(open_kinds, tried, is_contended, promoted > 0, t);
END $$ SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_hashjoin = off SET enable_sort = off
SET jit = off SET plan_cache_mode = force_generic_plan;
