//! A cluster of simulated nodes keeps its promises whatever goes wrong. `PUNCTUAL_SEEDS` says how many clusters (100 by
//! default), `PUNCTUAL_SEED` replays one.

use punctual_testkit::sim::{Summary, simulate};

/// C37, C38, C39, C40
#[test]
fn a_cluster_keeps_its_promises_in_every_kind_of_trouble() {
    let mut all = Summary::default();
    let seeds = punctual_testkit::seeds(100);
    for seed in &seeds {
        match simulate(*seed, 150) {
            Ok(one) => {
                all.jobs += one.jobs;
                all.runs += one.runs;
                all.lost += one.lost;
                all.stale += one.stale;
                all.unheard += one.unheard;
            }
            Err(broken) => panic!("replay with PUNCTUAL_SEED={seed}: {broken}"),
        }
    }
    // A quiet simulation would prove nothing.
    if seeds.len() > 50 {
        let Summary { jobs, runs, lost, stale, unheard } = all;
        assert!(runs > jobs && [lost, stale, unheard].iter().all(|&count| count > seeds.len()), "{all:?}");
    }
}

/// The same seed is the same story, or a failure could not be replayed.
#[test]
fn a_seed_replays() {
    assert_eq!(simulate(7, 300), simulate(7, 300));
}
