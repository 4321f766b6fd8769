//! Runs one small body under every checker there is: plainly, under loom, under shuttle.
//!
//! ```text
//! RUSTFLAGS="--cfg loom"    cargo test -p punctual --lib --release loom_                (PUNCTUAL_LOOM_PREEMPTIONS=2)
//! RUSTFLAGS="--cfg shuttle" cargo test -p punctual --lib --release -- loom_ shuttle_    (PUNCTUAL_SHUTTLE_ITERATIONS=3000)
//! ```

/// Runs `body` at the default bound.
pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
    model_with_fewer(0, body);
}

/// Runs `body` plainly, many times.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn model_with_fewer(_preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    (0..number("PUNCTUAL_PLAIN_ITERATIONS", 300)).for_each(|_| body());
}

/// Runs `body` in every interleaving with at most so many preemptions as the environment says, less the ones given.
#[cfg(loom)]
pub(crate) fn model_with_fewer(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(number("PUNCTUAL_LOOM_PREEMPTIONS", 2).saturating_sub(preemptions));
    builder.max_branches = 10_000;
    builder.check(body);
}

/// Runs `body` in random interleavings, and in those that a few well placed preemptions give (PCT).
#[cfg(shuttle)]
pub(crate) fn model_with_fewer(_preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    let iterations = number("PUNCTUAL_SHUTTLE_ITERATIONS", 3_000);
    shuttle::Runner::new(RandomScheduler::new(iterations), shuttle::Config::new()).run(move || body());
    shuttle::Runner::new(PctScheduler::new(3, iterations), shuttle::Config::new()).run(move || again());
}

/// A number from the environment.
pub(crate) fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// So many cases of a property, or as many as `PROPTEST_CASES` says.
pub(crate) fn cases(default: u32) -> proptest::test_runner::Config {
    use proptest::test_runner::Config;
    if std::env::var_os("PROPTEST_CASES").is_some() { Config::default() } else { Config::with_cases(default) }
}
