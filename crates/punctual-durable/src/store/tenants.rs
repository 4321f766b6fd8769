//! What a store knows about tenants.

use std::collections::BTreeMap;

use punctual::Limits;

use crate::state::Outcome;

/// What a tenant may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantPolicy {
    /// Its limits; none by default.
    pub limits: Limits,
    /// Nothing of it starts.
    pub paused: bool,
    /// Nothing of it is taken in.
    pub closed: bool,
}

/// Changes to what a tenant may do; `None` leaves a thing as it is.
///
/// # Example
/// ```
/// use punctual_durable::{TenantChange, TenantPolicy};
/// let mut policy = TenantPolicy { closed: true, ..TenantPolicy::default() };
/// TenantChange { paused: Some(true), ..TenantChange::default() }.apply(&mut policy);
/// assert!(policy.paused && policy.closed);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantChange {
    /// Its limits.
    pub limits: Option<Limits>,
    /// Whether nothing of it starts.
    pub paused: Option<bool>,
    /// Whether nothing of it is taken in.
    pub closed: Option<bool>,
}

impl TenantChange {
    /// Makes the change.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{TenantChange, TenantPolicy};
    /// let mut policy = TenantPolicy::default();
    /// TenantChange::default().apply(&mut policy);
    /// assert_eq!(policy, TenantPolicy::default());
    /// ```
    pub fn apply(self, policy: &mut TenantPolicy) {
        policy.limits = self.limits.unwrap_or(policy.limits);
        policy.paused = self.paused.unwrap_or(policy.paused);
        policy.closed = self.closed.unwrap_or(policy.closed);
    }
}

impl From<TenantPolicy> for TenantChange {
    /// Everything as the policy says.
    fn from(policy: TenantPolicy) -> Self {
        Self { limits: Some(policy.limits), paused: Some(policy.paused), closed: Some(policy.closed) }
    }
}

/// A tenant's policy and numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TenantRecord {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub policy: TenantPolicy,
    /// What it has and had.
    pub totals: Totals,
}

/// How many jobs there are in each stage, and how many have ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Waiting for their due instant.
    pub scheduled: usize,
    /// Due, and waiting for a node.
    pub ready: usize,
    /// Running, also those in `stopping`.
    pub running: usize,
    /// Their outcome is settled and their handlers have yet to stop.
    pub stopping: usize,
    /// How many have ever ended, by outcome; does not fall when they are pruned. An outcome that no job has had is not
    /// in it: see [`Totals::ended`].
    pub ended: BTreeMap<Outcome, u64>,
}

impl Totals {
    /// How many have ever ended so.
    ///
    /// # Example
    /// ```
    /// use punctual_durable::{Outcome, Totals};
    /// assert_eq!(Totals::default().ended(Outcome::Failed), 0);
    /// ```
    #[must_use]
    pub fn ended(&self, outcome: Outcome) -> u64 {
        self.ended.get(&outcome).copied().unwrap_or(0)
    }
}

/// What an erasure did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Erased {
    /// Jobs forgotten.
    pub removed: usize,
    /// Jobs that will be, when they stop.
    pub stopping: usize,
}
