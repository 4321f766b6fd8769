//! The first step of the road: may a job enter?

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Terms;
use crate::clock::{NEVER, Nanos, duration_to_nanos};
use crate::error::{Cause, Reason};
use crate::scheduler::after::After;
use crate::scheduler::event::Event;
use crate::scheduler::job::Record;
use crate::scheduler::repeat::Series;
use crate::scheduler::work::Work;
use crate::scheduler::{Shared, worker};
use crate::slab::SlabKey;

/// Why, and when to try again.
pub(super) type Refused = (Reason, Option<Duration>);

/// When it is first due, by the clock and as a date, and how it goes on from there.
pub(super) type Placed = ((Nanos, Option<SystemTime>), Option<Box<Series>>);

/// Takes a job in, or says why not.
pub(super) fn admit(
    shared: &Arc<Shared>,
    terms: &Terms,
    work: Arc<dyn Work>,
    future: bool,
    place: impl FnOnce(Nanos) -> Result<Placed, Reason>,
) -> Result<(), Refused> {
    let mut after = After::default();
    let admitted = try_admit(shared, terms, &work, future, place, &mut after);
    // The caller takes a rejected job apart: nobody else may hold it.
    drop(work);
    after.run(shared);
    match admitted {
        Ok(key) => {
            let unwanted = terms.parent.as_ref().map(|parent| parent.adopt(shared, key));
            for child in unwanted.unwrap_or_default() {
                shared.cancel(child, Cause::Parent);
            }
            Ok(())
        }
        Err(refused) => {
            let mut core = shared.core.lock();
            core.rejected += 1;
            let tenant = terms.tenant.unwrap_or(core.tenants.default);
            if let Some(tenant) = core.tenants.get_mut(tenant) {
                tenant.rejected += 1;
            }
            drop(core);
            if shared.is_listened_to() {
                shared.emit(&Event::Rejected { reason: refused.0.clone() });
            }
            Err(refused)
        }
    }
}

fn try_admit(
    shared: &Arc<Shared>,
    terms: &Terms,
    work: &Arc<dyn Work>,
    future: bool,
    place: impl FnOnce(Nanos) -> Result<Placed, Reason>,
    after: &mut After,
) -> Result<SlabKey, Refused> {
    let alone = |reason| (reason, None);
    let mut core = shared.core.lock();
    if !core.started && !core.phase.is_closing() {
        drop(core);
        worker::start_first(shared).map_err(|error| alone(Reason::NoThread(error.kind())))?;
        core = shared.core.lock();
    }
    if core.phase.is_closing() {
        return Err(alone(Reason::Closed));
    }
    let now = core.now(&shared.clock);
    let ((due, wall_due), series) = place(now).map_err(alone)?;
    let deadline = terms.deadline(&shared.clock, now);
    let no_time_to_start = terms.start_within.is_some_and(|wait| wait.is_zero());
    if (deadline != NEVER && deadline <= due.max(now)) || no_time_to_start {
        return Err(alone(Reason::Expired));
    }
    let tenant = terms.tenant.unwrap_or(core.tenants.default);
    core.tenants.admit(tenant, due <= now, now)?;
    let mut record = Record::new(Arc::clone(work), tenant, due, now);
    record.priority = terms.priority;
    record.cost = terms.cost.unwrap_or(1).max(1);
    record.wall_due = wall_due;
    record.start_within = terms.start_within.map_or(NEVER, duration_to_nanos);
    record.run_timeout = terms.run_timeout.map_or(NEVER, duration_to_nanos);
    record.deadline = deadline;
    record.series = series;
    record.future = future;
    record.away = future && shared.hooks.futures_on.is_some();
    record.permit = terms.permit;
    Ok(core.admit(record, &shared.clock, after))
}
