use punctual::{Limits, Reason};
use punctual_durable::{Edited, Jobs, OnConflict, Outcome, Problem, Query, Refused};

use crate::bed::{HOUR, Log, SECOND, Say, on_every_store, say, wait};

#[test]
fn a_payload_that_is_too_large_is_given_back() {
    on_every_store(|bed| {
        let error = wait(bed.jobs.now().enqueue(Say("x".repeat(70_000)))).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("the payload of kind \"say\" has 70002 bytes (at most 65536)"), "{said}");
        assert_eq!(error.into_job().0.len(), 70_000);
    });
}

/// C37: an enqueue repeated after a lost answer is the same job.
#[test]
fn an_id_makes_one_job() {
    on_every_store(|bed| {
        let first = wait(bed.jobs.after(HOUR).enqueue(say("once"))).unwrap();
        let second = wait(bed.jobs.after(HOUR).id(first.id()).enqueue(say("once"))).unwrap();
        assert_eq!(first.id(), second.id());
        assert_eq!(wait(bed.jobs.totals()).unwrap().scheduled, 1);
    });
}

/// C23, C25, C41: each of a batch has its own answer.
#[test]
fn a_batch_takes_what_there_is_room_for_and_gives_the_rest_back() {
    on_every_store(|bed| {
        let acme = bed.jobs.tenant("acme");
        wait(acme.set_limits(Limits::new().scheduled_max(3))).unwrap();
        let mut words = vec![say("a"), Say("x".repeat(70_000))];
        words.extend(["b", "c", "d", "e"].map(say));
        let answers = wait(acme.after(HOUR).enqueue_many(words));
        let taken: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(taken, [true, false, true, true, false, false]);
        let last = answers.into_iter().next_back().unwrap().unwrap_err();
        assert!(matches!(
            last.problem(),
            Problem::Refused(Refused::Rejected { reason: Reason::ScheduledFull { count: 3, max: 3, .. }, .. })
        ));
        assert_eq!(last.into_job(), say("e"));
    });
}

/// C47
#[test]
fn a_unique_key_rejects_joins_or_replaces() {
    on_every_store(|bed| {
        let keyed = |on_conflict| bed.jobs.after(HOUR).unique("key", on_conflict);
        let first = wait(keyed(OnConflict::Reject).enqueue(say("first"))).unwrap();
        let refused = wait(keyed(OnConflict::Reject).enqueue(say("second"))).unwrap_err();
        assert_eq!(refused.problem(), &Problem::Refused(Refused::Conflict(first.id())));
        let joined = wait(keyed(OnConflict::Join).enqueue(say("third"))).unwrap();
        assert_eq!(joined.id(), first.id());
        let replaced = wait(keyed(OnConflict::Replace).enqueue(say("fourth"))).unwrap();
        assert_ne!(replaced.id(), first.id());
        let old = wait(bed.jobs.get(first.id())).unwrap().unwrap();
        assert_eq!(old.state.outcome, Some(Outcome::Cancelled));
        // Another tenant's keys are its own.
        wait(bed.jobs.tenant("other").now().unique("key", OnConflict::Reject).enqueue(say("mine"))).unwrap();
    });
}

/// C47
#[test]
fn a_key_with_a_period_outlives_its_job() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        let digest = || bed.jobs.now().unique("digest", OnConflict::Reject).unique_for(HOUR).enqueue(say("digest"));
        wait(digest()).unwrap();
        wait(node.drain());
        assert!(wait(digest()).is_err());
        bed.advance(HOUR);
        wait(digest()).unwrap();
        wait(node.drain());
        assert_eq!(log.lines().len(), 2);
    });
}

/// Reschedule and edit of a waiting job.
#[test]
fn a_waiting_job_can_be_moved_and_changed() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.after(HOUR).enqueue(say("typo"))).unwrap();
        let edit = punctual_durable::Edit { payload: Some("\"fixed\"".into()), ..Default::default() };
        assert_eq!(wait(bed.jobs.edit(job.id(), edit)).unwrap(), Edited::Done);
        assert_eq!(wait(bed.jobs.reschedule(job.id(), SECOND)).unwrap(), Edited::Done);
        bed.advance(SECOND);
        assert_eq!(log.lines(), ["fixed"]);
        wait(node.drain());
        assert!(matches!(wait(bed.jobs.reschedule(job.id(), SECOND)).unwrap(), Edited::NotWaiting(_)));
    });
}

#[test]
fn jobs_are_found_page_by_page() {
    on_every_store(|bed| {
        let acme = bed.jobs.tenant("acme");
        let made: Vec<_> = wait(acme.after(HOUR).tag("import").enqueue_many((0..25).map(|n| say(&n.to_string()))))
            .into_iter()
            .map(|answer| answer.unwrap().id())
            .collect();
        wait(bed.jobs.after(HOUR).enqueue(say("other"))).unwrap();
        let mut found = Vec::new();
        let mut query = Query { tag: Some("import".into()), max: 10, ..Query::default() };
        loop {
            let page = wait(bed.jobs.find(query.clone())).unwrap();
            found.extend(page.jobs.iter().map(|record| record.job.id));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        assert_eq!(found, made);
    });
}

#[test]
fn a_url_that_names_no_store_is_an_error() {
    for url in ["", "memory", "postgres:", "sqlite:", "file.db"] {
        let said = wait(Jobs::open(url)).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{url:?} names no store")), "{said}");
    }
}

#[test]
fn what_is_wrong_with_a_url_is_told_without_its_password() {
    let said = wait(Jobs::open("postgres://ann:secret@127.0.0.1:1/app?colour=red")).unwrap_err().to_string();
    let expected = if cfg!(feature = "postgres") { "\"colour\"" } else { "feature \"postgres\"" };
    assert!(said.contains(expected) && !said.contains("secret"), "{said}");
}
