use punctual_durable::{Backoff, DurableError, Failure, Gate, Outcome, Query, Redriven};

use crate::bed::{HOUR, Log, SECOND, Say, on_every_store, say, wait};

/// C46, C50
#[test]
fn attempts_are_used_up_and_the_letter_is_dead() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        bed.jobs.on(move |_: Say, ctx| {
            seen.add(format!("attempt {} fence {}", ctx.attempt(), ctx.fence()));
            std::future::ready(Err::<String, _>(Failure::retry("no")))
        });
        let node = wait(bed.jobs.start()).unwrap();
        let job = wait(bed.jobs.now().backoff(Backoff::new(SECOND, SECOND)).enqueue(say("x"))).unwrap();
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["attempt 1 fence 1", "attempt 2 fence 2", "attempt 3 fence 3"]);
        let id = job.id();
        let error = wait(async { job.await }).unwrap_err();
        assert_eq!(error, DurableError::Failed { attempts: 3, last_error: "no".into() });
        let dead = wait(bed.jobs.dead_letters(Query::default())).unwrap().jobs;
        assert_eq!(dead.iter().map(|letter| letter.job.id).collect::<Vec<_>>(), [id]);
        let snapshot = node.snapshot();
        assert_eq!((snapshot.retried, snapshot.failed), (2, 1));

        assert_eq!(wait(bed.jobs.redrive(id)).unwrap(), Redriven::Done);
        bed.settle();
        assert_eq!(log.lines().last().unwrap(), "attempt 1 fence 4");
        bed.advance(HOUR);
        assert_eq!(wait(bed.jobs.purge(vec![id])).unwrap(), 1);
        assert_eq!(wait(async { bed.jobs.handle::<String>(id).await }).unwrap_err(), DurableError::Gone);
    });
}

/// C46: each decision of a handler.
#[test]
fn a_handler_decides_what_becomes_of_its_failure() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        bed.jobs.on(move |say: Say, ctx| {
            seen.add(format!("{} {}", say.0, ctx.attempt()));
            let failure = match say.0.as_str() {
                "snooze" if ctx.fence() < 3 => Failure::snooze(HOUR),
                "later" if ctx.fence() < 2 => Failure::retry_after(HOUR, "busy"),
                "hopeless" => Failure::give_up("no such user"),
                "moot" => Failure::cancel("withdrawn"),
                _ => return std::future::ready(Ok(say.0)),
            };
            std::future::ready(Err(failure))
        });
        let node = wait(bed.jobs.start()).unwrap();
        let [snooze, later, hopeless, moot] =
            ["snooze", "later", "hopeless", "moot"].map(|word| wait(bed.jobs.now().enqueue(say(word))).unwrap());
        wait(node.drain());
        let gate = wait(bed.jobs.explain(later.id())).unwrap().unwrap().gate;
        assert!(matches!(&gate, Gate::Retry { error, .. } if error == "busy"), "{gate:?}");
        assert_eq!(
            wait(hopeless.result()).unwrap_err(),
            DurableError::Failed { attempts: 1, last_error: "no such user".into() }
        );
        assert_eq!(wait(moot.result()).unwrap_err(), DurableError::Cancelled { reason: "withdrawn".into() });
        bed.advance(HOUR);
        bed.advance(HOUR);
        assert_eq!((wait(snooze.result()).unwrap(), wait(later.result()).unwrap()), ("snooze".into(), "later".into()));
        let mut lines = log.lines();
        lines.sort();
        assert_eq!(lines, ["hopeless 1", "later 1", "later 2", "moot 1", "snooze 1", "snooze 1", "snooze 1"]);
    });
}

/// C46: `run_timeout` ends the attempt.
#[test]
fn an_attempt_that_runs_too_long_is_tried_again() {
    on_every_store(|bed| {
        bed.jobs.on(|say: Say, ctx| async move {
            if ctx.attempt() == 1 {
                std::future::pending::<()>().await;
            }
            Ok(say.0)
        });
        let _node = wait(bed.jobs.start()).unwrap();
        let job =
            wait(bed.jobs.now().run_timeout(SECOND).backoff(Backoff::new(SECOND, SECOND)).enqueue(say("x"))).unwrap();
        bed.advance(SECOND);
        let record = wait(bed.jobs.get(job.id())).unwrap().unwrap();
        assert_eq!(record.last_error.as_deref(), Some("ran longer than 1s"));
        bed.advance(SECOND);
        assert_eq!(wait(job.result()).unwrap(), "x");
    });
}

/// C46: `deadline` ends the job, running or waiting, and a retry that could not start before it is not made.
#[test]
fn a_deadline_ends_the_job() {
    on_every_store(|bed| {
        bed.jobs.on(|say: Say, _| async move {
            if say.0 == "fails" {
                return Err(Failure::retry_after(HOUR, "busy"));
            }
            std::future::pending::<()>().await;
            Ok(say.0)
        });
        let node = wait(bed.jobs.start()).unwrap();
        let runs = wait(bed.jobs.now().deadline(SECOND * 5).enqueue(say("runs"))).unwrap();
        let fails = wait(bed.jobs.now().deadline(SECOND * 5).enqueue(say("fails"))).unwrap();
        bed.settle();
        assert_eq!(wait(fails.result()).unwrap_err(), DurableError::Failed { attempts: 1, last_error: "busy".into() });
        bed.advance(SECOND * 5);
        assert!(matches!(wait(runs.result()), Err(DurableError::Expired { .. })));
        wait(node.drain());
        let totals = wait(bed.jobs.totals()).unwrap();
        assert_eq!((totals.running, totals.stopping, totals.ended[&Outcome::Expired]), (0, 0, 1));
    });
}

/// C30: what is not started in time never starts.
#[test]
fn what_is_not_started_in_time_expires() {
    on_every_store(|bed| {
        let log = Log::default();
        let job = wait(bed.jobs.now().start_within(SECOND).enqueue(say("stale"))).unwrap();
        bed.advance(SECOND);
        assert!(matches!(wait(job.result()), Err(DurableError::Expired { .. })));
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        wait(node.drain());
        assert!(log.lines().is_empty());
    });
}

/// Bad payload: a clear error naming kind and field, dead-lettered, not retried.
#[test]
fn a_payload_that_does_not_fit_is_a_dead_letter_at_once() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let job = wait(bed.jobs.after(SECOND).enqueue(say("x"))).unwrap();
        let edit = punctual_durable::Edit { payload: Some("{\"word\": 7}".into()), ..Default::default() };
        wait(bed.jobs.edit(job.id(), edit)).unwrap();
        let _node = wait(bed.jobs.start()).unwrap();
        bed.advance(SECOND);
        let Err(DurableError::Failed { attempts: 1, last_error }) = wait(job.result()) else { panic!("not failed") };
        assert!(last_error.starts_with("the payload of kind \"say\" does not fit at `.`: "), "{last_error}");
        assert!(log.lines().is_empty());
    });
}
