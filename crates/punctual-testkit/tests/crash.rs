//! Processes that die with a store open, and what must be true of what they leave.
//!
//! Real processes, so real time; nothing sleeps: everybody waits for a line or for an end. `PUNCTUAL_CRASH_POINTS` says
//! at how many points each sweep strikes, `PUNCTUAL_SEEDS` how many stories of kills there are, `PUNCTUAL_SEED` replays
//! one. A failure names what replays it by hand: `crash_child FOLDER STEPS SEED FAULT`, `crash_child FOLDER finish 0`,
//! `crash_check FOLDER`.

#![allow(clippy::unwrap_used, reason = "tests panic when they fail")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use punctual_testkit::crash::child::{CLOSED, FILE, LEDGER, LOG};
use punctual_testkit::crash::{Fault, Loss, Point, Transition, What, When};

/// How many things each client of a child asks for.
const STEPS: &str = "20";
/// No line takes as long as this, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder that processes come and go in.
struct Place(tempfile::TempDir);

/// How a child ended, and what it said.
#[derive(Debug)]
struct Gone {
    /// In good order; otherwise by a crash, or because it could not open the file.
    is_done: bool,
    lines: Vec<String>,
}

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).unwrap_or_default()
    }

    /// Starts a child, and kills it when it has said so many lines.
    fn child(&self, role: &str, seed: u64, fault: Option<Fault>, kill_after: usize) -> Gone {
        let errors = fs::File::options().create(true).append(true).open(self.path().join("stderr.log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_crash_child"));
        command.arg(self.path()).args([role, &seed.to_string()]).args(fault.map(|fault| fault.to_string()));
        // Where the system may leave the memory of a process that aborted, to go with the folder.
        command.current_dir(self.path());
        let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
        let said = listen(&mut child);
        let mut lines = Vec::new();
        loop {
            match said.recv_timeout(PATIENCE) {
                Ok(line) => lines.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    child.kill().unwrap();
                    panic!("{role} {seed} {fault:?} hangs after {:?}\n{}", lines.last(), self.text("stderr.log"));
                }
            }
            if lines.len() == kill_after {
                child.kill().unwrap();
            }
        }
        let status = child.wait().unwrap();
        // It exits with a code only if it came to its end; a crash is a signal.
        assert!(
            status.code().is_none_or(|code| code == 0 || code == CLOSED),
            "{role} {seed} {fault:?}: {status}, {:?}\n{}",
            lines.last(),
            self.text("stderr.log")
        );
        Gone { is_done: status.success(), lines }
    }

    fn work(&self, seed: u64, fault: Fault) -> Gone {
        self.child(STEPS, seed, Some(fault), usize::MAX)
    }

    fn finish(&self) {
        let gone = self.child("finish", 0, None, usize::MAX);
        assert!(gone.is_done, "{:?}\n{}", gone.lines.last(), self.text("stderr.log"));
    }

    /// Asks the judge, which is a program of its own.
    fn judge(&self) -> Result<Report, String> {
        let judged = Command::new(env!("CARGO_BIN_EXE_crash_check")).arg(self.path()).output().unwrap();
        let text = String::from_utf8_lossy(&judged.stdout).into_owned();
        if judged.status.success() { Ok(Report::parse(&text)) } else { Err(text) }
    }

    fn approve(&self, story: &str) -> Report {
        self.judge().unwrap_or_else(|broken| panic!("{story}: {broken}\n{}", self.text("stderr.log")))
    }
}

fn listen(child: &mut Child) -> Receiver<String> {
    let (tell, told) = channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
    told
}

/// The numbers of a report, by name.
#[derive(Debug)]
struct Report(Vec<(String, usize)>);

impl Report {
    /// "Report { boots: 2, jobs: 46 }"
    fn parse(text: &str) -> Self {
        let words = text.trim().trim_start_matches("Report {").trim_end_matches('}').split(',');
        let pairs = words.filter_map(|pair| pair.split_once(':'));
        Self(pairs.map(|(name, count)| (name.trim().to_owned(), count.trim().parse().unwrap())).collect())
    }

    fn get(&self, name: &str) -> usize {
        self.0.iter().find(|(other, _)| other == name).unwrap().1
    }
}

/// At how many points a sweep strikes.
fn points(usual: u64) -> u64 {
    std::env::var("PUNCTUAL_CRASH_POINTS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// How many calls the work makes.
fn calls() -> u64 {
    let place = Place::new();
    let gone = place.work(0, Fault::new(What::Abort, When::Call(u64::MAX)));
    let seen = gone.lines.iter().find_map(|line| line.strip_prefix("seen ")).expect("it comes to its end");
    let numbers: Vec<u64> = seen.split(' ').take(2).map(|word| word.parse().unwrap()).collect();
    assert!(numbers[1] > 3, "SQLite has moved its log into the file {} times only", numbers[1]);
    numbers[0]
}

/// C37, C38, C40, C47, C48, C49: whatever the moment, a process that is killed loses nothing that was acknowledged, and
/// nothing runs twice without reason.
#[test]
fn a_store_survives_being_killed_at_any_moment() {
    let (mut cut_off, mut unanswered) = (0, 0);
    for seed in punctual_testkit::seeds(4) {
        let place = Place::new();
        let mut dice = fastrand::Rng::with_seed(seed);
        for round in 0..8 {
            place.child(STEPS, seed * 1_000 + round, None, dice.usize(1..160));
        }
        place.finish();
        let report = place.approve(&format!("PUNCTUAL_SEED={seed}"));
        cut_off += report.get("cut_off");
        unanswered += report.get("unanswered");
    }
    // A story without an accident would prove nothing.
    assert!(cut_off > 0 && unanswered > 0, "{cut_off} runs cut off, {unanswered} answers not heard");
}

/// C37, C38: the three points of each durable transition, each named: before it is written, before it is committed,
/// before anybody is told.
#[test]
fn a_store_survives_an_abort_at_each_point_of_each_transition() {
    each_point(|_| What::Abort);
}

/// C37: the same points, and what was not synced is gone as well.
#[test]
fn a_store_survives_a_power_cut_at_each_point_of_each_transition() {
    each_point(|seed| What::Cut(Loss::ALL[usize::try_from(seed % 3).unwrap()], seed));
}

fn each_point(what: impl Fn(u64) -> What) {
    let mut seed = 0;
    for transition in Transition::ALL {
        for point in Point::ALL {
            let mut struck = 0;
            for (nth, is_needed) in [(1, true), (2, true), (4, true), (1, false), (1, false), (1, false), (1, false)] {
                // Some are not met in every run: a job may have ended before it is cancelled.
                if struck > 0 && !is_needed {
                    break;
                }
                seed += 1;
                let place = Place::new();
                let fault = Fault::new(what(seed), When::At(point, transition, nth));
                struck += usize::from(!place.work(seed, fault).is_done);
                place.finish();
                place.approve(&format!("crash_child {STEPS} {seed} {:?}", fault.to_string()));
            }
            assert!(struck > 0, "{point:?} of {transition:?} was never met");
        }
    }
}

/// C37, C38: not only at points with a name.
#[test]
fn a_store_survives_an_abort_at_any_call() {
    sweep(points(30), |_| What::Abort);
}

/// C37: an answer means that it is on disk: the power may go at any call, and take all, some or parts of what was not
/// synced.
#[test]
fn a_store_survives_a_power_cut_at_any_call() {
    sweep(points(45), |seed| What::Cut(Loss::ALL[usize::try_from(seed % 3).unwrap()], seed));
}

fn sweep(points: u64, what: impl Fn(u64) -> What) {
    let calls = calls();
    let mut struck = 0;
    for point in 0..points.min(calls) {
        // Spread over all calls; two accidents in a row on each file, the second somewhere else.
        let call = 1 + point * calls / points.min(calls);
        let other = 1 + (call * 7) % calls;
        let place = Place::new();
        for (seed, call) in [(2 * point, call), (2 * point + 1, other)] {
            struck += u64::from(!place.work(seed, Fault::new(what(seed), When::Call(call))).is_done);
        }
        place.finish();
        place.approve(&format!("calls {call} and {other}, seeds {} and {}", 2 * point, 2 * point + 1));
    }
    // Threads make no two runs alike, so the last calls are not always reached.
    assert!(struck >= points.min(calls), "only {struck} of {} were met", 2 * points);
}

/// The tests above can fail: on a disk that only says that it has synced, acknowledged work is lost, and the judge sees
/// it.
#[test]
fn a_disk_that_lies_is_found_out() {
    for (seed, call) in [(1, 250), (2, 350), (3, 450)] {
        let place = Place::new();
        let fault = Fault { what: What::Cut(Loss::All, seed), when: When::Call(call), deaf: true };
        assert!(!place.work(seed, fault).is_done);
        place.finish();
        let broken = place.judge().expect_err("a disk that lies loses work");
        assert!(broken.contains("was acknowledged and is lost"), "{broken}");
    }
}

/// C51: a full disk is an error that says so; nothing is lost or damaged, and when there is room again the same process
/// goes on.
#[test]
fn work_goes_on_when_a_full_disk_has_room_again() {
    let transitions = Transition::ALL.map(|transition| When::At(Point::BeforeWrite, transition, 2));
    let calls = calls();
    // Not while it opens the file, which is refused as a whole.
    let any = (0..points(6).min(calls)).map(|point| When::Call(150 + point * (calls - 150) / points(6).min(calls)));
    let mut told = 0;
    for (seed, when) in (0..).zip(transitions.into_iter().chain(any)) {
        let place = Place::new();
        let fault = Fault::new(What::Full(6), when);
        let story = format!("crash_child {STEPS} {seed} {:?}", fault.to_string());
        assert!(place.work(seed, fault).is_done, "{story}");
        let log = place.text(LOG);
        let lines: Vec<&str> = log.lines().collect();
        for failed in lines.iter().filter(|line| line.starts_with("failed ")) {
            assert!(failed.ends_with("the disk is full"), "{story}: {failed}");
        }
        if let Some(last) = lines.iter().rposition(|line| line.starts_with("failed ")) {
            let after = |word: &str| lines[last..].iter().any(|line| line.starts_with(word));
            // Unless it was the last thing that was tried: ticks come when they come.
            assert!(after("ok ") || !after("try "), "{story}: nothing went on\n{log}");
            told += 1;
        }
        place.finish();
        place.approve(&story);
    }
    // Sometimes only the node hears of it.
    assert!(told > 3, "only {told} clients were told");
}

/// A disk that is full when the store is opened: refused with a word that says why, and nothing is spoilt for the next
/// time.
#[test]
fn a_full_disk_at_the_door_is_said_and_spoils_nothing() {
    for (seed, call) in (0..).zip([1, 2, 3, 5, 8, 13, 21]) {
        let place = Place::new();
        let full = Fault::new(What::Full(u64::MAX), When::Call(call));
        assert!(!place.work(seed, full).is_done, "call {call}");
        let log = place.text(LOG);
        let said = log.lines().rfind(|line| line.starts_with("closed ")).expect("it says so");
        assert!(said.contains(FILE) && said.ends_with("the disk is full"), "call {call}: {said}");
        assert!(place.work(seed, Fault::new(What::Abort, When::Call(u64::MAX))).is_done);
        place.finish();
        place.approve(&format!("full at call {call}"));
    }
}

/// C39: a job that kills its process is given up after `max_crashes`; those that ran beside it each time are not.
#[test]
fn a_poison_job_is_a_dead_letter_and_its_neighbours_are_not() {
    let place = Place::new();
    let crashes = (0..20).take_while(|_| !place.child("poison", 0, None, usize::MAX).is_done).count();
    assert_eq!(crashes, 3);
    let report = place.approve("poison");
    assert_eq!((report.get("jobs"), report.get("dead"), report.get("boots")), (4, 1, 4), "{report:?}");
    // The first two times it took all three neighbours with it.
    assert!(report.get("cut_off") > 2 * 4, "{report:?}");
}

/// The judge is judged: each kind of damage, done by hand to what is in order, is found.
#[test]
fn the_judge_sees_each_kind_of_damage() {
    let sound = Place::new();
    sound.child(STEPS, 5, None, usize::MAX);
    sound.finish();
    sound.approve("nothing happened");
    let sql = |statement: &'static str| {
        move |place: &Place| {
            let db = rusqlite::Connection::open(place.path().join(FILE)).unwrap();
            assert!(db.execute(statement, []).unwrap() > 0, "{statement}");
        }
    };
    let a_job = "(SELECT id FROM history WHERE outcome = 'succeeded' AND kind = 'work' AND schedule IS NULL LIMIT 1)";
    let lost: &'static str = format!("DELETE FROM history WHERE id = {a_job}").leak();
    let unfinished: &'static str = format!("UPDATE history SET outcome = 'failed' WHERE id = {a_job}").leak();
    let cancelled: &'static str = format!("UPDATE history SET outcome = 'cancelled' WHERE id = {a_job}").leak();
    let ran_on: &'static str = format!("UPDATE history SET fence = fence + 1 WHERE id = {a_job}").leak();
    damage(&sound, "is lost", sql(lost));
    damage(&sound, "is failed", sql(unfinished));
    damage(&sound, "nobody cancelled it", sql(cancelled));
    damage(&sound, "but its last run is None", sql(ran_on));
    damage(
        &sound,
        "is Some(\"succeeded\")",
        sql("UPDATE history SET outcome = 'succeeded' WHERE outcome = 'cancelled'"),
    );
    damage(&sound, "ended jobs, and has", sql("UPDATE tenant SET succeeded = succeeded + 1"));
    damage(&sound, "keys are taken by nobody", sql("INSERT INTO live_key VALUES ('free', 'k', x'00', NULL)"));
    damage(&sound, "the schedule fired", sql("UPDATE schedule SET fired = fired + 1"));
    damage(&sound, "jobs for", sql("UPDATE history SET asked_due = 'at 1' WHERE schedule IS NOT NULL"));
    damage(&sound, "permits", sql("UPDATE tenant SET running_max = 3 WHERE name = 'two'"));
    damage(&sound, "ran at once, of 1", sql("UPDATE tenant SET running_max = 1 WHERE name = 'two'"));
    damage(&sound, "the process that wanted it was gone", |place| {
        let log = place.text(LOG).replacen("boot ", "boot Work(0) 0\nboot ", 1);
        fs::write(place.path().join(LOG), log).unwrap();
    });
    damage(&sound, "ran twice without a crash", |place| {
        // The last run once more, as if it had been given out again.
        let ledger = place.text(LEDGER);
        let again = ledger.lines().rfind(|line| line.starts_with("start ")).unwrap();
        let words: Vec<&str> = again.split(' ').collect();
        let again = format!("start {} 2 {}\nend {} 2 ok\n", words[1], words[3..].join(" "), words[1]);
        fs::write(place.path().join(LEDGER), ledger + &again).unwrap();
    });
}

/// Damages a copy, and expects these words from the judge.
fn damage(sound: &Place, words: &str, harm: impl FnOnce(&Place)) {
    let place = Place::new();
    let names: BTreeSet<_> = fs::read_dir(sound.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in names {
        fs::copy(sound.path().join(&name), place.path().join(&name)).unwrap();
    }
    harm(&place);
    let broken = place.judge().expect_err(words);
    assert!(broken.contains(words), "{words:?} is not in {broken}");
}
