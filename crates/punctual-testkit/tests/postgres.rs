//! The store in PostgreSQL passes the suite, each case in a schema of its own.

use std::sync::Arc;
use std::time::Duration;

use punctual::VirtualClock;
use punctual_durable::{PostgresOptions, PostgresStore, Store};
use punctual_testkit::postgres::Schema;
use punctual_testkit::{Bed, block_on};

fn open_at(schema: &Schema, clock: &VirtualClock) -> PostgresStore {
    let options = PostgresOptions::new().schema(schema.name()).clock(clock).lease(Duration::from_secs(10)).pool_size(2);
    // Histories claim ahead, nobody else in the suite does.
    let options = options.foresight(Duration::from_secs(1));
    block_on(options.open(schema.url())).expect("the store")
}

fn open(clock: &VirtualClock) -> Bed {
    let schema = Arc::new(Schema::new());
    let store = open_at(&schema, clock);
    let (clock_again, schema_again) = (clock.clone(), Arc::clone(&schema));
    Bed::new(clock, store).keeping(schema).reopening(move |old: Arc<dyn Store>| {
        drop(old);
        Arc::new(open_at(&schema_again, &clock_again))
    })
}

punctual_testkit::store_suite_tests!(open, 40);
