//! Names of jobs and of nodes.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use uuid::Uuid;

use crate::time::Timestamp;

/// The name of a durable job: a UUID of version 7, made by whoever enqueues it, so that an enqueue repeated after a
/// lost answer is the same job. Ids of one process rise with time.
///
/// # Example
/// ```
/// use punctual_durable::JobId;
/// let id: JobId = "01890a5d-ac96-774b-bcce-b302099a8057".parse()?;
/// assert_eq!(id.to_string(), "01890a5d-ac96-774b-bcce-b302099a8057");
/// # Ok::<(), punctual_durable::BadJobId>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

impl JobId {
    /// From the 128 bits of a UUID.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::JobId;
    /// assert_eq!(JobId::from_u128(7).to_u128(), 7);
    /// ```
    #[must_use]
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The 128 bits of the UUID.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::JobId;
    /// assert_eq!(JobId::from_u128(7).to_u128(), 7);
    /// ```
    #[must_use]
    pub const fn to_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_u128(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for JobId {
    type Err = BadJobId;

    fn from_str(text: &str) -> Result<Self, BadJobId> {
        Uuid::parse_str(text).map(|uuid| Self(uuid.as_u128())).map_err(|_| BadJobId(text.chars().take(64).collect()))
    }
}

/// A text that is no job id.
///
/// # Example
/// ```
/// use punctual_durable::JobId;
/// assert_eq!("seven".parse::<JobId>().unwrap_err().to_string(), "\"seven\" is no job id (a UUID is expected)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJobId(String);

impl fmt::Display for BadJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no job id (a UUID is expected)", self.0)
    }
}

impl std::error::Error for BadJobId {}

/// One opening of a store by one process: it holds leases on the jobs it runs and interest in the jobs it waits for.
/// Never used twice, so a restarted process is not taken for the one that crashed.
///
/// # Example
/// ```
/// use punctual_durable::NodeId;
/// assert_eq!(NodeId::from_u64(255).to_string(), "00000000000000ff");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

impl NodeId {
    /// From its 64 bits.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual_durable::NodeId::from_u64(7).to_u64(), 7);
    /// ```
    #[must_use]
    pub const fn from_u64(bits: u64) -> Self {
        Self(bits)
    }

    /// Its 64 bits.
    ///
    /// # Example
    /// ```
    /// assert_eq!(punctual_durable::NodeId::from_u64(7).to_u64(), 7);
    /// ```
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where ids come from: random, or the same ones again from a seed.
#[derive(Debug)]
pub(crate) struct Ids(Mutex<Source>);

#[derive(Debug)]
struct Source {
    random: fastrand::Rng,
    last: u128,
}

impl Ids {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        let random = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self(Mutex::new(Source { random, last: 0 }))
    }

    /// An id later than all before it, also within a millisecond and when the clock is set back.
    pub(crate) fn job(&self, now: Timestamp) -> JobId {
        let mut source = self.lock();
        let millis = u64::try_from(now.micros() / 1_000).unwrap_or(0);
        let mut random = [0; 10];
        source.random.fill(&mut random);
        let fresh = uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid().as_u128();
        // The next one after the last keeps version and variant: the random part is far from overflowing.
        source.last = if fresh > source.last { fresh } else { source.last + 1 };
        JobId(source.last)
    }

    pub(crate) fn node(&self) -> NodeId {
        NodeId(self.lock().random.u64(1..))
    }

    /// A number below 1, for jitter.
    pub(crate) fn fraction(&self) -> f64 {
        self.lock().random.f64()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Source> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_within_a_millisecond_and_when_the_clock_is_set_back() {
        let ids = Ids::new(Some(1));
        let times = [5_000, 5_000, 5_001, 9_000, 4_000, 4_000].map(Timestamp::from_micros);
        let made: Vec<JobId> = times.iter().map(|&now| ids.job(now)).collect();
        assert!(made.windows(2).all(|pair| pair[0] < pair[1]), "{made:?}");
        assert!(made.iter().all(|id| Uuid::from_u128(id.to_u128()).get_version_num() == 7));
    }

    #[test]
    fn one_seed_gives_the_same_ids_again() {
        let [one, two] = [Ids::new(Some(7)), Ids::new(Some(7))];
        assert_eq!(one.job(Timestamp::from_micros(1)), two.job(Timestamp::from_micros(1)));
        assert_eq!(one.node(), two.node());
    }
}
