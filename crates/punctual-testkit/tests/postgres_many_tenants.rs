//! Claims for many tenants at a time, and for more than can be begun at once: who is served, and with how much.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::collections::BTreeMap;

use postgres::Client;
use punctual_durable::PostgresOptions;
use punctual_testkit::block_on;
use punctual_testkit::postgres::Schema;

/// A store with a node and so many jobs of each of so many tenants.
struct Store {
    client: Client,
    _schema: Schema,
}

impl Store {
    fn new(tenants: u32, each: u32) -> Self {
        let schema = Schema::new();
        drop(block_on(PostgresOptions::new().schema(schema.name()).pool_size(1).open(schema.url())).unwrap());
        let mut store = Self { client: schema.connect(), _schema: schema };
        store.run("SELECT join_node(1, 'n', '{k,other}', '{}', 99, 15000000)");
        store.run(&format!(
            "SELECT count(e.*) FROM generate_series(1, {each}) n, generate_series(1, {tenants}) t, LATERAL enqueue('k', to_json(n), 't' || lpad(t::text, 3, '0')) e"
        ));
        store
    }

    fn run(&mut self, sql: &str) {
        self.client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Limit, weight and rate (as a gap, and as a burst) of the tenants whose names begin so.
    fn set(&mut self, tenants: &str, running_max: &str, weight: &str, rate: &str) {
        self.run(&format!(
            "SELECT set_tenant(name, true, {running_max}, NULL, NULL, {weight}, {rate}, {rate}, NULL, NULL)
             FROM (SELECT name FROM tenant UNION SELECT tenant FROM ledger) t (name) WHERE name LIKE '{tenants}%'"
        ));
    }

    /// How many of each tenant a claim gives.
    fn claim(&mut self, max: u32, spare: u32) -> BTreeMap<String, u32> {
        let sql = format!(
            "SELECT tenant FROM claim(1, {max}, '{{k,other}}', '{{999,999}}', spare => {spare}) WHERE id IS NOT NULL"
        );
        let mut given = BTreeMap::new();
        for row in self.client.query(&sql, &[]).unwrap() {
            *given.entry(row.get(0)).or_default() += 1;
        }
        given
    }

    fn count(&mut self, max: u32, spare: u32) -> u32 {
        self.claim(max, spare).into_values().sum()
    }

    /// Ends everything that runs.
    fn finish(&mut self) {
        self.run(
            "SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(fence) AS fences, array_agg('succeeded'::text) AS verdicts, array_agg('1'::text) AS texts,
                                          array_agg(NULL::bigint) AS nothing FROM job WHERE stage = 'running') j,
             LATERAL finish(1, j.ids, j.fences, j.verdicts, j.texts, j.nothing, j.nothing)",
        );
    }
}

/// C31, C41: up to four jobs of a tenant go with a claim of many, and no two tenants differ by more, whatever their
/// order; a claim of few gives each one.
#[test]
fn of_many_tenants_each_gets_a_few_in_its_turn() {
    let mut store = Store::new(40, 10);
    assert_eq!(store.claim(15, 0).into_values().collect::<Vec<_>>(), [1; 15], "a small claim is exact");
    let mut total: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..5 {
        let given = store.claim(64, 0);
        assert_eq!((given.values().sum::<u32>(), given.values().max().copied()), (64, Some(4)), "{given:?}");
        given.into_iter().for_each(|(tenant, count)| *total.entry(tenant).or_default() += count);
        let most = total.values().max().copied().unwrap();
        let least = if total.len() < 40 { 0 } else { total.values().min().copied().unwrap() };
        assert!(most - least <= 5, "{total:?}");
    }
    assert_eq!(store.count(99, 0), 65, "nothing is forgotten");
    assert_eq!(store.count(99, 0), 0);
}

/// C31, C41: by weight.
#[test]
fn of_many_tenants_the_heavy_get_more() {
    let mut store = Store::new(40, 40);
    // The first nine.
    store.set("t00", "NULL", "4", "NULL");
    let mut total: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..6 {
        for (tenant, count) in store.claim(64, 0) {
            *total.entry(tenant).or_default() += count;
        }
    }
    // 384 jobs over weights of 9 * 4 + 31: between five and six for each.
    for (tenant, count) in &total {
        let weight = if tenant.as_str() < "t010" { 4 } else { 1 };
        assert!((3 * weight..=9 * weight).contains(count), "{tenant} had {count}: {total:?}");
    }
}

/// C31, C41: a newcomer is served by the next claim.
#[test]
fn a_newcomer_does_not_wait_for_the_many() {
    let mut store = Store::new(64, 10);
    // Each has had its turn.
    (0..4).for_each(|_| assert_eq!(store.count(64, 0), 64));
    store.run("SELECT FROM enqueue('other', '1', 'newcomer')");
    assert!(store.claim(64, 0).contains_key("newcomer"));
}

/// C40: limits hold, and whoever can run is found behind any number who cannot.
#[test]
fn who_can_run_is_found_behind_the_many_who_cannot() {
    let mut store = Store::new(60, 10);
    store.set("t", "3", "1", "NULL");
    store.set("t060", "NULL", "1", "NULL");
    // All but one are at their limits, and that one comes after all of them.
    store.run("UPDATE tenant SET paused = true WHERE name = 't060'");
    assert_eq!(store.count(999, 0), 3 * 59);
    store.run("UPDATE tenant SET paused = false, finish = (SELECT max(finish) + 1 FROM tenant) WHERE name = 't060'");
    assert_eq!(store.claim(2, 0), BTreeMap::from([("t060".to_owned(), 2)]));
    store.finish();
    let given = store.claim(999, 0);
    assert_eq!((given.len(), given.values().filter(|&&count| count > 3).count()), (60, 1), "{given:?}");
}

/// C40: more than can be begun at once is given only of tenants who do not miss it.
#[test]
fn what_is_spare_is_given_where_nobody_misses_it() {
    let mut store = Store::new(1, 100);
    assert_eq!(store.count(10, 8), 10, "it has no limit");
    store.set("t001", "30", "1", "NULL");
    assert_eq!(store.count(10, 8), 2, "more than half of its limit would be taken");
    store.finish();
    assert_eq!(store.count(10, 8), 10, "those before have ended");
    assert_eq!(store.count(10, 10), 0);
    store.finish();
    store.set("t001", "NULL", "1", "1000");
    assert_eq!(store.count(10, 8), 2, "its starts are counted");
    store.set("t001", "NULL", "1", "NULL");
    store.run("SELECT FROM enqueue('k', '1', 'small')");
    store.set("small", "4", "1", "NULL");
    assert_eq!(store.count(10, 8), 2, "somebody who is served would miss it");
    assert_eq!(store.count(10, 8), 10);
}

/// C31, C36: a tenant whose jobs have expired or were cancelled is found out by the claim that comes to it. It came to
/// them one by one, each time with a look at all: two thousand of them took it twelve seconds, in which all of them
/// were locked.
#[test]
fn many_who_have_nothing_any_more_cost_a_claim_little() {
    let mut store = Store::new(500, 1);
    store.run("SELECT take_news(false); UPDATE job SET expires_at = 1; SELECT expire(present(NULL), 999)");
    store.run("SELECT FROM enqueue('k', '1', 'last')");
    store.run("BEGIN");
    assert_eq!(store.claim(1, 0), BTreeMap::from([("last".to_owned(), 1)]));
    let read = "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0)) / 500 FROM pg_stat_xact_user_tables WHERE relid = 'tenant'::regclass";
    let times: i64 = store.client.query_one(read, &[]).unwrap().get(0);
    // Ten rounds, of which each reads all and looks at some again.
    assert!(times < 60, "each tenant was read {times} times");
    store.run("COMMIT");
}

/// C31: one job of each of many tenants takes a claim as many tenants as jobs, at once. It served a quarter of the rest,
/// in the hope of four jobs each, and a quarter of the rest of that: eight rounds, and looked at all of them each time.
#[test]
fn tenants_with_one_job_each_take_a_claim_few_rounds() {
    let mut store = Store::new(600, 1);
    store.run("BEGIN; SET LOCAL track_functions = 'all'");
    assert_eq!(store.count(256, 0), 256);
    let asked = "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'whose_turn'";
    let rounds: i64 = store.client.query_one(asked, &[]).unwrap().get(0);
    assert!((1..=3).contains(&rounds), "{rounds} rounds");
    store.run("COMMIT");
}

/// C42: new work of more tenants than a claim takes in at a time is not called nothing.
#[test]
fn news_of_very_many_tenants_is_taken_in_bit_by_bit() {
    let mut store = Store::new(0, 0);
    store.run("SELECT count(e.*) FROM generate_series(1, 2000) n, LATERAL enqueue('k', '1', 't' || n) e");
    store.run("SELECT FROM enqueue('other', '1', 'zzz')");
    let claim = "SELECT count(id), bool_or(more) FROM claim(1, 1, '{other}', '{9}')";
    let answer = |store: &mut Store| {
        let row = store.client.query_one(claim, &[]).unwrap();
        (row.get::<_, i64>(0), row.get::<_, Option<bool>>(1))
    };
    assert_eq!(answer(&mut store), (0, Some(true)), "there is more than it has seen");
    assert_eq!(answer(&mut store).0, 1);
}

/// The ledger of very many tenants is taken in for all of them. It was for those whose names come first, over and over;
/// the rows of the others grew in number.
#[test]
fn the_last_in_the_alphabet_are_taken_in_too() {
    let mut store = Store::new(2_100, 0);
    let rounds = 30;
    for _ in 0..rounds {
        store.run("INSERT INTO ledger (tenant, succeeded) SELECT 't' || lpad(n::text, 4, '0'), 1 FROM generate_series(1, 2100) n");
        store.run("SELECT take_news(false)");
    }
    let left: i64 = store.client.query_one("SELECT count(*) FROM ledger WHERE tenant = 't2100'", &[]).unwrap().get(0);
    assert!(left < rounds, "it was never taken in");
}
