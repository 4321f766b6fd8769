//! The judge: what a client was told, what handlers did and what is in the file must fit together, however often the
//! process died.
//!
//! It runs after a last process has finished everything undisturbed, so nothing may be left over, and it reads three
//! things only: the client's log, the handlers' ledger and the file, with SQL of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::child::{FILE, LEDGER, LOG, SCHEDULE};

/// What there was to judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Processes that worked on the file.
    pub boots: u64,
    /// Jobs in the file.
    pub jobs: usize,
    /// Runs in the ledger.
    pub runs: usize,
    /// Runs that a crash ended.
    pub cut_off: usize,
    /// Things asked for whose answer nobody heard.
    pub unanswered: usize,
    /// Jobs cancelled.
    pub cancelled: usize,
    /// Jobs given up because their process died too often.
    pub dead: usize,
    /// Jobs of the schedule.
    pub fired: usize,
}

/// Judges a folder.
///
/// # Errors
/// Every promise that was broken, in words.
pub fn check(folder: &Path) -> Result<Report, Vec<String>> {
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|error| vec![format!("{name}: {error}")]);
    let (log, ledger) = (read(LOG)?, read(LEDGER)?);
    let file = Found::read(&folder.join(FILE)).map_err(|error| vec![format!("the file cannot be read: {error}")])?;
    let (log, runs) = (Log::read(&log), Runs::read(&ledger));
    let mut judge = Judge { file: &file, log: &log, runs: &runs, broken: Vec::new() };
    judge.file_is_sound();
    judge.nothing_acknowledged_is_lost();
    judge.each_job_ended_once_and_as_it_should();
    judge.no_run_too_many();
    judge.limits_were_kept_and_can_be_used();
    judge.ticks_have_one_job_each();
    if judge.broken.is_empty() { Ok(judge.report()) } else { Err(judge.broken) }
}

struct Judge<'a> {
    file: &'a Found,
    log: &'a Log,
    runs: &'a Runs,
    broken: Vec<String>,
}

impl Judge<'_> {
    fn blame(&mut self, what: String) {
        self.broken.push(what);
    }

    fn file_is_sound(&mut self) {
        if self.file.integrity != "ok" {
            self.blame(format!("the file is damaged: {}", self.file.integrity));
        }
        for (what, count) in &self.file.leftovers {
            if *count > 0 {
                self.blame(format!("{count} {what}"));
            }
        }
        for (tenant, counted, found) in &self.file.totals {
            if counted != found {
                self.blame(format!("tenant {tenant:?} counts {counted:?} ended jobs, and has {found:?}"));
            }
        }
    }

    fn nothing_acknowledged_is_lost(&mut self) {
        for id in &self.log.stored {
            if !self.file.jobs.contains_key(id) {
                self.blame(format!("job {id} was acknowledged and is lost"));
            }
        }
        for id in self.log.refused.iter().filter(|id| !self.log.maybe.contains(*id)) {
            if self.file.jobs.contains_key(id) {
                self.blame(format!("job {id} was refused and is there"));
            }
        }
        for id in &self.log.cancelled {
            match self.file.jobs.get(id).map(|job| job.outcome.as_str()) {
                Some("cancelled") => {}
                other => self.blame(format!("job {id} was cancelled, as was acknowledged, and is {other:?}")),
            }
        }
    }

    fn each_job_ended_once_and_as_it_should(&mut self) {
        let file = self.file;
        for (id, job) in &file.jobs {
            let run = self.runs.of.get(id).and_then(|runs| runs.iter().find(|run| run.fence == job.fence));
            match (job.outcome.as_str(), run) {
                ("succeeded", Some(run)) if run.end.as_deref() == Some("ok") => {
                    if run.attempt != job.attempt {
                        self.blame(format!("job {id} succeeded at attempt {}, not {}", run.attempt, job.attempt));
                    }
                }
                ("succeeded", run) => self.blame(format!("job {id} succeeded, but its last run is {run:?}")),
                ("cancelled", _) => {
                    let is_let_go = self.log.wanted.contains_key(id);
                    if !job.is_unique && !is_let_go && !self.log.cancels.contains(id) {
                        self.blame(format!("job {id} is cancelled, and nobody cancelled it"));
                    }
                }
                ("failed", _) if job.crashes == job.max_crashes => {}
                (other, _) => self.blame(format!("job {id} is {other} ({job:?})")),
            }
            if job.fence < job.attempt + job.crashes {
                self.blame(format!("job {id} has too few claims: {job:?}"));
            }
            if job.crashes >= self.runs.boots {
                self.blame(format!("job {id} saw {} crashes in {} processes", job.crashes, self.runs.boots));
            }
        }
        for (id, &boot) in &self.log.wanted {
            if self.runs.of.get(id).is_some_and(|runs| runs.iter().any(|run| run.boot != boot)) {
                self.broken.push(format!("job {id} ran when the process that wanted it was gone"));
            }
        }
        for id in self.runs.of.keys().filter(|id| !file.jobs.contains_key(*id)) {
            self.broken.push(format!("job {id} ran and is not there"));
        }
    }

    /// A second run comes after a failed attempt, after a crash, or not at all.
    fn no_run_too_many(&mut self) {
        for (id, runs) in &self.runs.of {
            for pair in runs.windows(2) {
                let [first, second] = pair else { continue };
                let is_crash = first.boot < second.boot;
                let is_retry = first.end.as_deref() == Some("retry");
                if first.fence >= second.fence {
                    self.broken.push(format!("job {id}: fence {} follows {}", second.fence, first.fence));
                }
                if !is_crash && !is_retry {
                    self.broken.push(format!("job {id} ran twice without a crash: {first:?}, {second:?}"));
                }
                let is_counted = second.attempt == first.attempt + 1;
                let is_given_back = second.attempt == first.attempt && is_crash;
                if !(is_given_back || is_counted && is_retry) {
                    self.broken.push(format!("job {id} miscounts its attempts: {first:?}, {second:?}"));
                }
            }
        }
    }

    fn limits_were_kept_and_can_be_used(&mut self) {
        for (tenant, max) in &self.file.limits {
            let of_tenant = self.runs.most_at_once(|run| run.tenant == *tenant);
            if of_tenant > *max {
                self.blame(format!("{of_tenant} jobs of tenant {tenant:?} ran at once, of {max}"));
            }
            let last = self.runs.boots;
            let probes = self.runs.most_at_once(|run| run.tenant == *tenant && run.kind == "probe" && run.boot == last);
            if self.log.is_finished && probes != *max {
                self.blame(format!("tenant {tenant:?} can use {probes} of its {max} permits"));
            }
        }
        let keys: BTreeSet<&str> = self.runs.all().map(|run| run.key.as_str()).filter(|key| *key != "-").collect();
        for key in keys {
            if self.runs.most_at_once(|run| run.key == key) > 1 {
                self.broken.push(format!("two jobs with the key {key:?} ran at once"));
            }
        }
    }

    fn ticks_have_one_job_each(&mut self) {
        let ticks: Vec<&String> = self.file.jobs.values().filter_map(|job| job.tick.as_ref()).collect();
        let distinct: BTreeSet<_> = ticks.iter().collect();
        if distinct.len() != ticks.len() {
            self.blame(format!("{} jobs for {} ticks", ticks.len(), distinct.len()));
        }
        if self.file.fired.is_some_and(|fired| fired != ticks.len()) {
            self.blame(format!("the schedule fired {:?} times, and has {} jobs", self.file.fired, ticks.len()));
        }
        let file = self.file;
        if self.runs.most_at_once(|run| file.jobs.get(&run.id).is_some_and(|job| job.tick.is_some())) > 1 {
            self.blame("two jobs of the schedule ran at once".to_owned());
        }
    }

    fn report(&self) -> Report {
        let ended = |outcome| self.file.jobs.values().filter(|job| job.outcome == outcome).count();
        Report {
            boots: self.runs.boots,
            jobs: self.file.jobs.len(),
            runs: self.runs.all().count(),
            cut_off: self.runs.all().filter(|run| run.end.is_none()).count(),
            unanswered: self.log.unanswered,
            cancelled: ended("cancelled"),
            dead: ended("failed"),
            fired: self.file.jobs.values().filter(|job| job.tick.is_some()).count(),
        }
    }
}

/// What the client knows. Ids are hexadecimal, without hyphens, as the file shows them.
#[derive(Default)]
struct Log {
    /// Acknowledged.
    stored: BTreeSet<String>,
    refused: BTreeSet<String>,
    /// Tried at least once without a clear no.
    maybe: BTreeSet<String>,
    /// Asked to be cancelled, heard or not.
    cancels: BTreeSet<String>,
    /// Acknowledged as cancelled.
    cancelled: BTreeSet<String>,
    /// Wanted by one process only, and by which.
    wanted: BTreeMap<String, u64>,
    unanswered: usize,
    /// The last process was one that finishes everything, and it did.
    is_finished: bool,
}

impl Log {
    fn read(text: &str) -> Self {
        let mut log = Self::default();
        let mut open: HashMap<&str, Vec<&str>> = HashMap::new();
        let (mut boots, mut role, mut is_done) = (0, "", false);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["boot", what, ..] => (boots, role, is_done) = (boots + 1, what, false),
                ["done"] => is_done = true,
                ["try", number, what @ ..] => {
                    if let ["enqueue", id, "wanted"] = what {
                        log.wanted.insert(plain(id), boots);
                    }
                    open.insert(number, what.to_vec());
                }
                ["ok", number, answer @ ..] => log.heard(&open.remove(number).unwrap_or_default(), answer),
                ["refused", number, ..] => {
                    if let Some(["enqueue", id, _]) = open.remove(number).as_deref() {
                        log.refused.insert(plain(id));
                    }
                }
                _ => {}
            }
        }
        for what in open.values() {
            match what.as_slice() {
                ["enqueue", id, _] => drop(log.maybe.insert(plain(id))),
                ["cancel", id] => drop(log.cancels.insert(plain(id))),
                _ => {}
            }
        }
        (log.unanswered, log.is_finished) = (open.len(), role == "Finish" && is_done);
        log
    }

    fn heard(&mut self, asked: &[&str], answer: &[&str]) {
        match (asked, answer) {
            (["enqueue", id, _], ["new"]) => {
                self.stored.insert(plain(id));
                self.maybe.insert(plain(id));
            }
            (["enqueue", ..], ["joined", other]) => drop(self.stored.insert(plain(other))),
            (["bulk"], ["bulk", ids @ ..]) => self.stored.extend(ids.iter().map(|id| plain(id))),
            (["cancel", id], [answer, ..]) => {
                self.cancels.insert(plain(id));
                if *answer == "cancelled" {
                    self.cancelled.insert(plain(id));
                }
            }
            _ => {}
        }
    }
}

fn plain(id: &str) -> String {
    id.replace('-', "")
}

/// One run, from the ledger.
#[derive(Debug)]
struct Run {
    id: String,
    fence: u64,
    attempt: u64,
    tenant: String,
    kind: String,
    key: String,
    boot: u64,
    end: Option<String>,
    /// From which line to which.
    lines: (usize, usize),
}

#[derive(Default)]
struct Runs {
    of: BTreeMap<String, Vec<Run>>,
    boots: u64,
}

impl Runs {
    fn read(text: &str) -> Self {
        let mut runs = Self::default();
        let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
        let mut boots = vec![0];
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["boot"] => boots.push(at),
                ["start", id, fence, attempt, tenant, kind, key] => {
                    let boot = (boots.len() - 1) as u64;
                    let own = |word: &str| word.to_owned();
                    let (fence, attempt) = (number(fence), number(attempt));
                    let (tenant, kind, key) = (own(tenant), own(kind), own(key));
                    let (id, end, lines) = (plain(id), None, (at, usize::MAX));
                    let run = Run { id: id.clone(), fence, attempt, tenant, kind, key, boot, end, lines };
                    runs.of.entry(id).or_default().push(run);
                }
                ["end", id, fence, end] => {
                    let of = runs.of.entry(plain(id)).or_default();
                    if let Some(run) = of.iter_mut().find(|run| run.fence == number(fence) && run.end.is_none()) {
                        (run.end, run.lines.1) = (Some((*end).to_owned()), at);
                    }
                }
                _ => {}
            }
        }
        runs.boots = (boots.len() - 1) as u64;
        // What a crash cut off ended with its process.
        for run in runs.of.values_mut().flatten().filter(|run| run.end.is_none()) {
            run.lines.1 = boots.get(usize::try_from(run.boot).unwrap_or(0) + 1).copied().unwrap_or(usize::MAX);
        }
        runs
    }

    fn all(&self) -> impl Iterator<Item = &Run> {
        self.of.values().flatten()
    }

    /// How many of these runs there were at the same time at most.
    fn most_at_once(&self, is_one: impl Fn(&Run) -> bool) -> u64 {
        let mut moments: Vec<(usize, i64)> =
            self.all().filter(|run| is_one(run)).flat_map(|run| [(run.lines.0, 1), (run.lines.1, -1)]).collect();
        moments.sort_unstable();
        let mut now = 0;
        let most = moments.iter().map(|(_, step)| {
            now += step;
            now
        });
        most.max().unwrap_or(0).cast_unsigned()
    }
}

/// What is in the file.
struct Found {
    integrity: String,
    jobs: BTreeMap<String, Ended>,
    /// What should not be there when all is finished, and how much of it is.
    leftovers: Vec<(&'static str, u64)>,
    /// Tenants with the most that may run.
    limits: Vec<(String, u64)>,
    /// What each tenant counted of each outcome, and kept, and what there is.
    totals: Vec<(String, [u64; 5], [u64; 5])>,
    fired: Option<usize>,
}

#[derive(Debug)]
struct Ended {
    outcome: String,
    attempt: u64,
    fence: u64,
    crashes: u64,
    max_crashes: u64,
    is_unique: bool,
    /// The instant of the schedule it was made for.
    tick: Option<String>,
}

impl Found {
    fn read(path: &Path) -> rusqlite::Result<Self> {
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
        let leftovers = [
            ("jobs are not finished", "SELECT count(*) FROM job"),
            ("ids are in two places", "SELECT count(*) FROM job JOIN history USING (id)"),
            ("ids are there twice", "SELECT count(*) - count(DISTINCT id) FROM history"),
            ("unique keys are taken by nobody", "SELECT count(*) FROM live_key"),
            ("interests have no job", "SELECT count(*) FROM interest"),
        ];
        let mut found = Self {
            integrity: db.query_row("PRAGMA integrity_check", [], |row| row.get(0))?,
            jobs: BTreeMap::new(),
            leftovers: Vec::new(),
            limits: Vec::new(),
            totals: Vec::new(),
            fired: None,
        };
        for (what, sql) in leftovers {
            found.leftovers.push((what, count(sql)?));
        }
        let jobs = "SELECT lower(hex(id)), outcome, attempt, fence, crashes, max_crashes, unique_key IS NOT NULL, \
                    CASE WHEN schedule IS NOT NULL THEN CAST(asked_due AS TEXT) END FROM history";
        let mut statement = db.prepare(jobs)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
            let ended = Ended {
                outcome: row.get(1)?,
                attempt: number(2)?,
                fence: number(3)?,
                crashes: number(4)?,
                max_crashes: number(5)?,
                is_unique: row.get(6)?,
                tick: row.get(7)?,
            };
            found.jobs.insert(row.get(0)?, ended);
        }
        found.read_tenants(&db)?;
        let fired = format!("SELECT max(fired) FROM schedule WHERE name = '{SCHEDULE}'");
        found.fired =
            db.query_row(&fired, [], |row| row.get::<_, Option<i64>>(0))?.and_then(|n| usize::try_from(n).ok());
        Ok(found)
    }

    fn read_tenants(&mut self, db: &Connection) -> rusqlite::Result<()> {
        const TENANTS: &str = "SELECT name, running_max, succeeded, failed, cancelled, expired, kept, \
             (SELECT count(*) FROM history WHERE tenant = name AND outcome = 'succeeded'), \
             (SELECT count(*) FROM history WHERE tenant = name AND outcome = 'failed'), \
             (SELECT count(*) FROM history WHERE tenant = name AND outcome = 'cancelled'), \
             (SELECT count(*) FROM history WHERE tenant = name AND outcome = 'expired'), \
             (SELECT count(*) FROM history WHERE tenant = name) FROM tenant";
        let mut statement = db.prepare(TENANTS)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            if let Some(max) = row.get::<_, Option<i64>>(1)? {
                self.limits.push((name.clone(), max.cast_unsigned()));
            }
            let five = |from: usize| -> rusqlite::Result<[u64; 5]> {
                let mut five = [0; 5];
                for (at, number) in five.iter_mut().enumerate() {
                    *number = row.get::<_, i64>(from + at)?.cast_unsigned();
                }
                Ok(five)
            };
            self.totals.push((name, five(2)?, five(7)?));
        }
        Ok(())
    }
}
