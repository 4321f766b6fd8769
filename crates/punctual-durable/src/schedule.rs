//! Stored series: when their ticks are, and what becomes of those that nobody was there for. The store fires each tick
//! once.

use std::collections::HashMap;
use std::time::Duration;

use punctual::{Cron, CronError, Missed};

use crate::error::{EnqueueError, Problem};
use crate::id::JobId;
use crate::job::Job;
use crate::jobs::Jobs;
use crate::plan::{Own, When};
use crate::store::{Fire, Moment, Rule, Schedule};
use crate::time::Timestamp;

/// A tick is on time for so long, if no later one has come: a node that starts a little late does not count it as
/// missed.
const ON_TIME: Duration = Duration::from_secs(60);

/// So many missed ticks are counted one by one; beyond that a cron schedule just goes on from now.
const COUNTED_MAX: u64 = 100_000;

/// A schedule about to be stored; ends in [`enqueue`](Self::enqueue), which gives the job of its ticks.
///
/// # Example
/// ```
/// # use punctual_durable::{EnqueueError, Job, Jobs};
/// # use punctual::{Cron, Missed};
/// async fn nightly<J: Job>(jobs: &Jobs, report: J) -> Result<(), EnqueueError<J>> {
///     let three = Cron::parse("0 3 * * *").unwrap().in_zone("Europe/Paris").unwrap();
///     jobs.cron("nightly-report", three).missed(Missed::Once).enqueue(report).await
/// }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a schedule does nothing until its job is enqueued"]
pub struct SchedulePlan {
    jobs: Jobs,
    tenant: String,
    name: String,
    rule: Rule,
    missed: Missed,
    own: Own,
}

impl SchedulePlan {
    pub(crate) fn every(jobs: Jobs, tenant: String, name: String, period: Duration) -> Self {
        let rule = Rule::Every { period, anchor: Timestamp::from_micros(0) };
        Self { jobs, tenant, name, rule, missed: Missed::default(), own: Own::default() }
    }

    pub(crate) fn cron(jobs: Jobs, tenant: String, name: String, cron: &Cron) -> Self {
        let rule = Rule::Cron { expression: cron.expression().to_owned(), zone: cron.zone().to_owned() };
        Self { jobs, tenant, name, rule, missed: Missed::default(), own: Own::default() }
    }

    /// What becomes of ticks that nobody was there for, or whose predecessor was still at work.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// # use punctual::Missed;
    /// fn every_one(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.missed(Missed::All { max: 24 })
    /// }
    /// ```
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// How many attempts each job of it has; 0 counts as 1.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// fn once(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.max_attempts(1)
    /// }
    /// ```
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.own.max_attempts = Some(attempts.max(1));
        self
    }

    /// Earlier (negative) or later (positive) than others of its tenant.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// fn when_there_is_time(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.priority(10)
    /// }
    /// ```
    pub fn priority(mut self, priority: i8) -> Self {
        self.own.priority = Some(priority);
        self
    }

    /// How long after its tick each job of it may still start.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// # use std::time::Duration;
    /// fn fresh(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.start_within(Duration::from_secs(600))
    /// }
    /// ```
    pub fn start_within(mut self, wait: Duration) -> Self {
        self.own.start_within = Some(wait);
        self
    }

    /// How long each attempt may run.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// # use std::time::Duration;
    /// fn quick(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.run_timeout(Duration::from_secs(600))
    /// }
    /// ```
    pub fn run_timeout(mut self, timeout: Duration) -> Self {
        self.own.run_timeout = Some(timeout);
        self
    }

    /// A word to find its jobs by; may be given several times.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// fn tagged(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.tag("report")
    /// }
    /// ```
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.own.tags.push(tag.into());
        self
    }

    /// Where the grid of an [`every`](Jobs::every) schedule begins; by default in 1970, so that it is the same at every
    /// start of the program. For a schedule that is to survive restarts give a date: a delay is another grid each time.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::SchedulePlan;
    /// # use std::time::Duration;
    /// fn at_once(plan: SchedulePlan) -> SchedulePlan {
    ///     plan.first(Duration::ZERO)
    /// }
    /// ```
    pub fn first(mut self, when: impl Into<When>) -> Self {
        let first = when.into().0.from(self.jobs.store().now());
        if let Rule::Every { anchor, .. } = &mut self.rule {
            *anchor = first;
        }
        self
    }

    /// Stores the schedule: this job is enqueued at each tick, once, whatever the number of nodes and restarts. Said
    /// again with the same name and rule, as every start of a program does, it goes on where it was.
    ///
    /// # Errors
    /// The job is given back with the reason.
    ///
    /// # Example
    /// ```
    /// # use punctual_durable::{EnqueueError, Job, Jobs};
    /// # use std::time::Duration;
    /// async fn sweep_hourly<J: Job>(jobs: &Jobs, sweep: J) -> Result<(), EnqueueError<J>> {
    ///     jobs.every("sweep", Duration::from_secs(3600)).enqueue(sweep).await
    /// }
    /// ```
    pub async fn enqueue<J: Job>(self, job: J) -> Result<(), EnqueueError<J>> {
        match self.schedule(&job) {
            Ok(schedule) => {
                let id = schedule.template.id;
                let stored = self.jobs.store().put_schedule(schedule).await;
                stored.map_err(|error| EnqueueError::new(job, Problem::Store { error, id }))
            }
            Err(problem) => Err(EnqueueError::new(job, problem)),
        }
    }

    fn schedule<J: Job>(&self, job: &J) -> Result<Schedule, Problem> {
        let now = self.jobs.store().now();
        let payload = self.jobs.payload_of(job)?;
        let unusable = |reason| Problem::Refused(crate::store::Refused::Rejected { reason, retry_after: None });
        if matches!(&self.rule, Rule::Every { period, .. } if period.as_micros() == 0) {
            return Err(unusable(punctual::Reason::ZeroPeriod));
        }
        // A tick at this very instant is still to come.
        let first = Ticks::default().next(&self.rule, Timestamp::from_micros(now.micros() - 1));
        let first = first.ok_or_else(|| unusable(punctual::Reason::NoNextRun))?;
        let mut template = self.own.job(self.jobs.new_id(), J::KIND, &J::TERMS, self.tenant.clone(), payload);
        template.schedule = Some(self.name.clone());
        template.check().map_err(Problem::Refused)?;
        Ok(Schedule {
            name: self.name.clone(),
            rule: self.rule.clone(),
            missed: self.missed,
            template,
            next: Some(first),
            paused: false,
            last: None,
            fired: 0,
            missed_count: 0,
        })
    }
}

/// When ticks are. Remembers the cron expressions it has read, which took at least a seventh of the CPU time of a tick,
/// and how many ticks of them it has counted: counted anew for each, those that are made up for one by one would take
/// the square of the time.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    crons: HashMap<Rule, Result<Cron, CronError>>,
    counts: HashMap<Rule, Count>,
}

/// How many expressions, and counts, are remembered.
const REMEMBERED_MAX: usize = 1_000;

/// From one tick that has come to a later one, so many further on.
#[derive(Debug, Clone, Copy)]
struct Count {
    from: Timestamp,
    to: Timestamp,
    later: u64,
}

impl Ticks {
    /// Whether a rule is understood here; somebody else may know a zone or a word that this process does not.
    pub(crate) fn understand(&mut self, rule: &Rule) -> Result<(), String> {
        match rule {
            Rule::Cron { expression, zone } => {
                self.cron(rule, expression, zone).map_or_else(|error| Err(error.to_string()), |_| Ok(()))
            }
            Rule::Every { period, .. } if period.as_micros() == 0 => Err("its period is zero".to_owned()),
            Rule::Every { .. } => Ok(()),
        }
    }

    fn cron(&mut self, rule: &Rule, expression: &str, zone: &str) -> Result<&Cron, &CronError> {
        if !self.crons.contains_key(rule) {
            if self.crons.len() >= REMEMBERED_MAX {
                self.crons.clear();
            }
            let cron = Cron::parse(expression).and_then(|cron| cron.in_zone(zone));
            self.crons.insert(rule.clone(), cron);
        }
        self.crons[rule].as_ref()
    }

    /// The first tick after an instant.
    fn next(&mut self, rule: &Rule, after: Timestamp) -> Option<Timestamp> {
        match rule {
            Rule::Cron { expression, zone } => {
                let cron = self.cron(rule, expression, zone).ok()?;
                cron.next_after(after.to_wall()).map(Timestamp::not_before)
            }
            Rule::Every { period, anchor } => {
                let period = i64::try_from(period.as_micros()).ok().filter(|&period| period > 0)?;
                let ahead = anchor.micros().checked_sub(after.micros())?;
                if ahead > 0 {
                    return Some(*anchor);
                }
                let passed = ahead.checked_neg()? / period + 1;
                anchor.micros().checked_add(passed.checked_mul(period)?).map(Timestamp::from_micros)
            }
        }
    }

    /// The last tick that has come, from one that has, and how many that is further on.
    fn last(&mut self, rule: &Rule, tick: Timestamp, now: Timestamp) -> (Timestamp, u64) {
        if let Rule::Every { period, .. } = rule {
            let period = i64::try_from(period.as_micros()).unwrap_or(i64::MAX).max(1);
            let later = (now.micros() - tick.micros()) / period;
            return (Timestamp::from_micros(tick.micros() + later * period), u64::try_from(later).unwrap_or(0));
        }
        let mut count = self.counted(rule, tick, now).unwrap_or(Count { from: tick, to: tick, later: 0 });
        while count.later < COUNTED_MAX
            && let Some(next) = self.next(rule, count.to).filter(|&next| next <= now)
        {
            (count.to, count.later) = (next, count.later + 1);
        }
        if count.later > 0 {
            if self.counts.len() >= REMEMBERED_MAX {
                self.counts.clear();
            }
            self.counts.insert(rule.clone(), count);
        }
        (if count.later == COUNTED_MAX { now } else { count.to }, count.later)
    }

    /// What was counted the last time, from this tick on.
    fn counted(&mut self, rule: &Rule, tick: Timestamp, now: Timestamp) -> Option<Count> {
        let holds = |count: &Count| count.from <= tick && tick <= count.to && count.to <= now;
        let mut count = self.counts.remove(rule).filter(holds)?;
        while count.from < tick {
            (count.from, count.later) = (self.next(rule, count.from)?, count.later.checked_sub(1)?);
        }
        (count.from == tick).then_some(count)
    }

    /// The tick that is so many further on.
    fn later(&mut self, rule: &Rule, tick: Timestamp, count: u64) -> Option<Timestamp> {
        if let Rule::Every { period, .. } = rule {
            let (period, count) = (i64::try_from(period.as_micros()).ok()?, i64::try_from(count).ok()?);
            return tick.micros().checked_add(period.checked_mul(count)?).map(Timestamp::from_micros);
        }
        (0..count).try_fold(tick, |tick, _| self.next(rule, tick))
    }
}

/// What to do about a schedule whose next tick has come: this tick, or, by its policy, the ones missed since.
pub(crate) fn fire(ticks: &mut Ticks, schedule: &Schedule, now: Timestamp, id: JobId) -> Option<Fire> {
    let tick = schedule.next.filter(|&tick| tick <= now)?;
    let (last, later) = ticks.last(&schedule.rule, tick, now);
    let next = ticks.next(&schedule.rule, last);
    let job = |due: Timestamp, missed: u64| {
        let mut job = schedule.template.clone();
        (job.id, job.due, job.missed) = (id, Moment::At(due), missed);
        Some(job)
    };
    let schedule_name = schedule.name.clone();
    let fire = |next, missed, job| Fire { schedule: schedule_name, tick, next, missed, job };
    Some(match schedule.missed {
        Missed::Skip if now.since(last) > ON_TIME => fire(next, later, None),
        Missed::Skip => fire(next, later, job(last, 0)),
        // Of too many the oldest are skipped, this one and more, in one step.
        Missed::All { max } if later > u64::from(max) => {
            let skipped = later - u64::from(max);
            fire(ticks.later(&schedule.rule, tick, skipped), skipped - 1, None)
        }
        // The others one after the other, since a schedule rests while its job is live.
        Missed::All { .. } => fire(ticks.next(&schedule.rule, tick), 0, job(tick, 0)),
        // `Once`, and what may come after it.
        _ => fire(next, later, job(last, later)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hourly(missed: Missed, next: i64) -> Schedule {
        let own = Own::default();
        let template = own.job(JobId::from_u128(1), "sweep", &crate::job::Terms::new(), String::new(), "{}".into());
        let rule = Rule::Every { period: Duration::from_secs(3600), anchor: hour(1) };
        Schedule {
            name: "sweep".into(),
            rule,
            missed,
            template,
            next: Some(hour(next)),
            paused: false,
            last: None,
            fired: 0,
            missed_count: 0,
        }
    }

    fn hour(hour: i64) -> Timestamp {
        Timestamp::from_micros(hour * 3_600_000_000)
    }

    fn fired(missed: Missed, now: Timestamp) -> (Option<Timestamp>, Option<(Moment, u64)>, u64) {
        let fire = fire(&mut Ticks::default(), &hourly(missed, 3), now, JobId::from_u128(2)).unwrap();
        assert_eq!(fire.tick, hour(3));
        (fire.next, fire.job.map(|job| (job.due, job.missed)), fire.missed)
    }

    /// C48, C17
    #[test]
    fn a_tick_on_time_is_fired_for_itself() {
        for missed in [Missed::Once, Missed::Skip, Missed::All { max: 9 }] {
            assert_eq!(fired(missed, hour(3)), (Some(hour(4)), Some((Moment::At(hour(3)), 0)), 0));
        }
        assert_eq!(fire(&mut Ticks::default(), &hourly(Missed::Once, 3), hour(2), JobId::from_u128(2)), None);
    }

    /// C48, C17
    #[test]
    fn missed_ticks_are_made_up_for_by_the_policy() {
        let now = hour(6).after(Duration::from_secs(1800));
        assert_eq!(fired(Missed::Once, now), (Some(hour(7)), Some((Moment::At(hour(6)), 3)), 3));
        assert_eq!(fired(Missed::Skip, now), (Some(hour(7)), None, 3));
        assert_eq!(fired(Missed::Skip, hour(6)), (Some(hour(7)), Some((Moment::At(hour(6)), 0)), 3));
        assert_eq!(fired(Missed::All { max: 3 }, now), (Some(hour(4)), Some((Moment::At(hour(3)), 0)), 0));
        assert_eq!(fired(Missed::All { max: 2 }, now), (Some(hour(4)), None, 0));
    }

    /// C17, C36: of ticks that are too many to be made up for, each was skipped by a step of its own, and for each the
    /// rest was counted again: a node that came back after an hour of an every-second schedule did nothing else for
    /// half a minute. They are skipped in one step, and what was counted is remembered.
    #[test]
    fn what_is_too_much_is_skipped_in_one_step() {
        let now = hour(6).after(Duration::from_secs(1800));
        assert_eq!(fired(Missed::All { max: 1 }, now), (Some(hour(5)), None, 1));
        assert_eq!(fired(Missed::All { max: 0 }, now), (Some(hour(6)), None, 2));
        let rule = Rule::Cron { expression: "*/2 * * * *".into(), zone: "Europe/Paris".into() };
        let mut schedule = Schedule { rule, ..hourly(Missed::All { max: 3 }, 3) };
        let mut ticks = Ticks::default();
        let skip = fire(&mut ticks, &schedule, now, JobId::from_u128(2)).unwrap();
        assert_eq!((skip.next, skip.missed, skip.job), (Some(now.before(Duration::from_secs(360))), 101, None));
        let mut fired = Vec::new();
        schedule.next = skip.next;
        while let Some(fire) = fire(&mut ticks, &schedule, now, JobId::from_u128(2)) {
            assert_eq!(Some(&fire), self::fire(&mut Ticks::default(), &schedule, now, JobId::from_u128(2)).as_ref());
            fired.push((fire.tick, fire.missed));
            schedule.next = fire.next;
        }
        let kept = [6, 4, 2, 0].map(|minutes| (now.before(Duration::from_secs(minutes * 60)), 0));
        assert_eq!(fired, kept);
    }

    #[test]
    fn the_grid_does_not_drift() {
        let rule = Rule::Every { period: Duration::from_secs(3600), anchor: hour(1) };
        let mut ticks = Ticks::default();
        assert_eq!(ticks.next(&rule, hour(0)), Some(hour(1)));
        assert_eq!(ticks.next(&rule, hour(1)), Some(hour(2)));
        assert_eq!(ticks.next(&rule, hour(5).after(Duration::from_secs(1))), Some(hour(6)));
        assert_eq!(ticks.next(&rule, Timestamp::NEVER), None);
    }

    /// C48: what is remembered of one rule is not taken for another, nor is a rule that cannot be read.
    #[test]
    fn remembered_rules_are_told_apart() {
        let daily = |zone: &str| Rule::Cron { expression: "0 12 * * *".into(), zone: zone.into() };
        let mut ticks = Ticks::default();
        for _ in 0..2 {
            assert_eq!(ticks.next(&daily("UTC"), hour(0)), Some(hour(12)));
            assert_eq!(ticks.next(&daily("Asia/Tokyo"), hour(0)), Some(hour(3)));
            assert_eq!(ticks.next(&daily("Nowhere"), hour(0)), None);
        }
        assert_eq!(ticks.crons.len(), 3);
    }
}
