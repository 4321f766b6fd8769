//! A node of a cluster, in a process of its own: `cluster_node URL SCHEMA LEASE_MS SKEW_S`. For
//! `tests/postgres_cluster`, and by hand.
//!
//! It opens the store, says `ready`, and does what it is told on its input, one order a line (`orders.rs`). When its
//! input ends it dies, as if killed: so no node outlives the test that started it. Its clock is wrong by so many
//! seconds (`skew.rs`).

mod handlers;
mod orders;
mod scribe;
mod skew;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use punctual_durable::{Jobs, PostgresOptions};

use orders::Desk;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, schema, lease, seconds] = arguments.as_slice() else { panic!("cluster_node URL SCHEMA LEASE_MS SKEW_S") };
    skew::set_wrong_by(seconds.parse().expect("seconds"));
    let complaints = count_complaints();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads").block_on(async {
        let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
        let options = PostgresOptions::new().schema(schema).lease(lease).pool_size(4).timeout(Duration::from_secs(5));
        // The name that the store knows the node by, so that it is seen who took which lease.
        let separator = if url.contains('?') { '&' } else { '?' };
        let named = format!("{url}{separator}application_name=process%20{}", std::process::id());
        let store = options.open(&named).await.expect("the store");
        let jobs = Jobs::builder().over(Arc::new(store.clone())).await.expect("the store");
        Desk::new(jobs, store, &scribe::start(url, schema), complaints).obey().await;
    });
}

/// Counts what went wrong, also what is not worth a warning again, and writes it to the standard error.
fn count_complaints() -> Arc<AtomicU64> {
    let count = Arc::<AtomicU64>::default();
    let counted = count.clone();
    punctual_testkit::warnings::hear_from(tracing::Level::DEBUG, move |words| {
        if words.contains_key("error") {
            counted.fetch_add(1, Ordering::Relaxed);
            eprintln!("complaint: {words:?}");
        }
    });
    count
}
