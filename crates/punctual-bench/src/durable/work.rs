//! What is to be measured, and how the parent tells its children.

use anyhow::{Context, Result, bail};

/// One thing to measure.
#[derive(Debug, Clone)]
pub struct Work {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it is called in the table.
    pub title: &'static str,
    /// Callers that enqueue, or jobs that run at once.
    pub callers: u64,
    /// How many jobs.
    pub jobs: u64,
    /// How long it goes on, where that is given.
    pub millis: u64,
    /// The peers that can do it.
    pub peers: &'static [&'static str],
    /// The numbers that go into the table.
    pub metrics: &'static [Metric],
}

/// One number of a sample.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// What it is called in a sample.
    pub name: &'static str,
    /// What it is called in the table.
    pub unit: &'static str,
    /// The target, as it is written in the table.
    pub wanted: &'static str,
}

/// One number of a sample.
#[must_use]
pub const fn metric(name: &'static str, unit: &'static str, wanted: &'static str) -> Metric {
    Metric { name, unit, wanted }
}

impl Work {
    /// One that is smaller by this factor, to see whether it works.
    #[must_use]
    pub fn divided(mut self, divisor: u64) -> Self {
        if self.jobs > 1_000 {
            self.jobs /= divisor;
        }
        if self.millis > 1_000 {
            self.millis /= divisor.min(10);
        }
        self
    }

    /// As arguments of a child process.
    #[must_use]
    pub fn to_args(&self) -> [String; 4] {
        [self.name.to_owned(), self.callers.to_string(), self.jobs.to_string(), self.millis.to_string()]
    }

    /// One of those known, with the sizes that the parent gave, and the arguments that follow.
    ///
    /// # Errors
    /// If there is no such work.
    pub fn from_args(args: &[String], known: impl IntoIterator<Item = Self>) -> Result<(Self, &[String])> {
        let [name, callers, jobs, millis, rest @ ..] = args else {
            bail!("a child has four arguments at least, not {}", args.len())
        };
        let known = known.into_iter().find(|work| work.name == name);
        let known = known.with_context(|| format!("no work is called {name:?}"))?;
        let (callers, jobs, millis) = (callers.parse()?, jobs.parse()?, millis.parse()?);
        Ok((Self { callers, jobs, millis, ..known }, rest))
    }
}
