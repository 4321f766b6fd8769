//! Who is next? Start-time fair queueing over the tenants that can run.
//!
//! Virtual time is service received divided by weight. The tenant with the least goes next; its tag moves on by the
//! cost of the job divided by its weight. Tags are set when a job is dispatched, not when it is queued, so cancelling
//! queued work needs no repair. A tenant that comes back starts at the present virtual time at least: no credit is
//! banked by being idle. Among equals one that comes back goes first, so that it waits for what is running and for
//! nothing else, however many tenants are in their turns; and of several that come back, the one that was served
//! longest ago. When nobody waits who could run, all that was received is settled.
//!
//! # Invariants
//! 1. A tenant is in `ready` if and only if it can run: it has work, is below its cap, within its rate and not paused.
//! 2. `now` never goes back, and no tag of a ready tenant is behind it.
//!
//! Costs O(log n) for n ready tenants; idle tenants cost nothing.

use std::collections::BTreeSet;

/// Virtual time per unit of cost at weight 1.
const UNIT: u128 = 1 << 32;

/// The order of the tenants that can run. `K` names a tenant.
///
/// # Example
/// ```
/// use punctual::decide::{Fair, Tag};
/// let mut fair = Fair::new();
/// let (mut heavy, mut light) = (Tag::default(), Tag::default());
/// fair.enter("heavy", &mut heavy);
/// fair.enter("light", &mut light);
/// fair.dispatch("heavy", &mut heavy, 1, 3); // A job of cost 1, for a tenant of weight 3.
/// fair.enter("heavy", &mut heavy);
/// assert_eq!(fair.first(), Some("light"));
/// ```
#[derive(Debug)]
pub struct Fair<K> {
    /// By start tag; among equals, those that come back first, by their finish tags.
    ready: BTreeSet<(u128, bool, u128, K)>,
    now: u128,
    /// The latest of all finish tags.
    latest: u128,
}

/// A tenant's place in virtual time.
///
/// # Example
/// ```
/// use punctual::decide::{Fair, Tag};
/// assert!(Fair::<char>::new().owes_nothing(&Tag::default()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tag {
    finish: u128,
    /// The start tag it waits with, while it is ready, and whether it goes on from where it was.
    waiting: Option<(u128, bool)>,
}

impl<K: Ord + Copy> Fair<K> {
    /// Nobody is ready.
    ///
    /// # Example
    /// ```
    /// assert!(punctual::decide::Fair::<char>::new().is_empty());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self { ready: BTreeSet::new(), now: 0, latest: 0 }
    }

    /// A tenant can run from now on.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// assert_eq!(fair.first(), Some('a'));
    /// ```
    pub fn enter(&mut self, tenant: K, tag: &mut Tag) {
        if tag.waiting.is_none() {
            let (start, goes_on) = (tag.finish.max(self.now), tag.finish >= self.now && tag.finish > 0);
            tag.waiting = Some((start, goes_on));
            self.ready.insert((start, goes_on, tag.finish, tenant));
        }
    }

    /// A tenant cannot run any more: no work, at its cap, beyond its rate, or paused.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// fair.leave('a', &mut tag);
    /// assert_eq!(fair.first(), None);
    /// ```
    pub fn leave(&mut self, tenant: K, tag: &mut Tag) {
        if let Some((start, goes_on)) = tag.waiting.take() {
            self.ready.remove(&(start, goes_on, tag.finish, tenant));
        }
    }

    /// Whose turn it is.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// assert_eq!(fair.first(), Some('a'));
    /// ```
    pub fn first(&self) -> Option<K> {
        self.ready.first().map(|&(.., tenant)| tenant)
    }

    /// All that can run, whose turn it is first.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// assert_eq!(fair.in_order().collect::<Vec<_>>(), ['a']);
    /// ```
    pub fn in_order(&self) -> impl Iterator<Item = K> + '_ {
        self.ready.iter().map(|&(.., tenant)| tenant)
    }

    /// The tenant runs a job of this cost. It leaves the ready set; whoever calls lets it enter again if it still can
    /// run.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// fair.dispatch('a', &mut tag, 1, 1);
    /// assert_eq!(fair.first(), None);
    /// ```
    pub fn dispatch(&mut self, tenant: K, tag: &mut Tag, cost: u32, weight: u32) {
        let Some((start, _)) = tag.waiting else { return };
        self.leave(tenant, tag);
        self.now = self.now.max(start);
        tag.finish = start + UNIT * u128::from(cost.max(1)) / u128::from(weight.max(1));
        self.latest = self.latest.max(tag.finish);
    }

    /// Nobody waits who could run, so nobody is behind: from here on all are equal.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// fair.dispatch('a', &mut tag, 1, 1);
    /// assert!(!fair.owes_nothing(&tag));
    /// fair.rest();
    /// assert!(fair.owes_nothing(&tag));
    /// ```
    pub fn rest(&mut self) {
        debug_assert!(self.ready.is_empty(), "somebody can run");
        self.now = self.now.max(self.latest + 1);
    }

    /// Whether forgetting a tenant would give it nothing.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// assert!(!fair.owes_nothing(&tag));
    /// ```
    pub fn owes_nothing(&self, tag: &Tag) -> bool {
        tag.waiting.is_none() && tag.finish < self.now.max(1)
    }

    /// Whether no tenant can run.
    ///
    /// # Example
    /// ```
    /// use punctual::decide::{Fair, Tag};
    /// let (mut fair, mut tag) = (Fair::new(), Tag::default());
    /// fair.enter('a', &mut tag);
    /// assert!(!fair.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

impl<K: Ord + Copy> Default for Fair<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves always-backlogged tenants `rounds` times.
    fn serve(weights: &[u32], costs: &[u32], rounds: usize) -> Vec<u64> {
        let mut fair = Fair::new();
        let mut tags = vec![Tag::default(); weights.len()];
        let mut served = vec![0; weights.len()];
        (0..weights.len()).for_each(|tenant| fair.enter(tenant, &mut tags[tenant]));
        for _ in 0..rounds {
            let tenant = fair.first().unwrap();
            fair.dispatch(tenant, &mut tags[tenant], costs[tenant], weights[tenant]);
            served[tenant] += u64::from(costs[tenant]);
            fair.enter(tenant, &mut tags[tenant]);
        }
        served
    }

    /// C31: with one job in service the bound is one cost of each.
    #[test]
    fn backlogged_tenants_share_by_weight() {
        let (weights, costs) = ([1, 2, 5, 10], [1, 3, 1, 7]);
        let served = serve(&weights, &costs, 10_000);
        for i in 0..4 {
            for j in 0..4 {
                let share = |n: usize| served[n] as f64 / f64::from(weights[n]);
                let step = |n: usize| f64::from(costs[n]) / f64::from(weights[n]);
                assert!((share(i) - share(j)).abs() <= step(i) + step(j) + 1e-6, "{served:?}");
            }
        }
    }

    /// C31
    #[test]
    fn an_idle_tenant_banks_no_credit() {
        let mut fair = Fair::new();
        let (mut busy, mut idle) = (Tag::default(), Tag::default());
        fair.enter('b', &mut busy);
        for _ in 0..1_000 {
            fair.dispatch('b', &mut busy, 1, 1);
            fair.enter('b', &mut busy);
        }
        fair.enter('i', &mut idle);
        let mut of_idle = 0;
        for _ in 0..100 {
            let tenant = fair.first().unwrap();
            let tag = if tenant == 'i' { &mut idle } else { &mut busy };
            fair.dispatch(tenant, tag, 1, 1);
            fair.enter(tenant, tag);
            of_idle += usize::from(tenant == 'i');
        }
        assert!((49..=51).contains(&of_idle), "{of_idle}");
    }
}
