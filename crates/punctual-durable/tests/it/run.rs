use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use punctual_durable::{Gate, Jobs, Outcome};

use crate::bed::{Log, SECOND, Say, Shout, on_every_store, say, wait};

/// C37, C50
#[test]
fn a_job_runs_and_its_result_can_be_awaited() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        let handle = wait(bed.jobs.now().enqueue(say("hello"))).unwrap();
        let again = bed.another().handle::<String>(handle.id());
        assert_eq!(wait(async { handle.await }).unwrap(), "hello");
        assert_eq!(wait(async { again.await }).unwrap(), "hello");
        assert_eq!(log.lines(), ["hello"]);
    });
}

/// C42, C43: never early, and exactly on time on a clock that stands still in between.
#[test]
fn a_delayed_job_runs_at_its_due_instant() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        for (word, delay) in [("third", 30), ("first", 10), ("second", 20)] {
            wait(bed.jobs.after(SECOND * delay).enqueue(say(word))).unwrap();
        }
        bed.advance(SECOND * 10 - Duration::from_micros(1));
        assert!(log.lines().is_empty());
        bed.advance(Duration::from_micros(1));
        assert_eq!(log.lines(), ["first"]);
        bed.advance(SECOND * 20);
        assert_eq!(log.lines(), ["first", "second", "third"]);
        assert_eq!(node.snapshot().lateness.max(), Duration::ZERO);
    });
}

#[test]
fn a_date_in_the_past_is_due_at_once() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        wait(bed.jobs.at(std::time::UNIX_EPOCH).enqueue(say("late"))).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["late"]);
    });
}

/// C52
#[test]
fn a_kind_nobody_handles_waits_visibly_and_holds_nobody_back() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        let stranger = wait(bed.jobs.now().enqueue(Shout("?".into()))).unwrap();
        wait(bed.jobs.now().enqueue(say("hello"))).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["hello"]);
        assert_eq!(wait(bed.jobs.explain(stranger.id())).unwrap().unwrap().gate, Gate::NoWorker);

        let seen = log.clone();
        bed.jobs.on(move |shout: Shout, _| {
            seen.add(shout.0.clone());
            std::future::ready(Ok(shout.0))
        });
        assert_eq!(wait(async { stranger.await }).unwrap(), "?");
        assert_eq!(log.lines(), ["hello", "?"]);
    });
}

/// A pause of a kind on a node, and its end.
#[test]
fn a_paused_kind_waits_until_it_is_resumed() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        node.pause("say");
        let held = wait(bed.jobs.now().enqueue(say("later"))).unwrap();
        wait(node.drain());
        assert!(log.lines().is_empty());
        assert_eq!(wait(bed.jobs.explain(held.id())).unwrap().unwrap().gate, Gate::KindPaused);
        node.resume("say");
        assert_eq!(wait(async { held.await }).unwrap(), "later");
    });
}

/// C42: a node that handled another kind meanwhile, and so had asked and found nothing, did not ask for the kind that
/// was resumed: the job waited for the next thing to happen there, over a network for the poll.
#[test]
fn what_waits_for_a_kind_begins_when_it_is_resumed_also_beside_others() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        bed.jobs.on(|shout: Shout, _| std::future::ready(Ok(shout.0)));
        let node = wait(bed.jobs.start()).unwrap();
        node.pause("say");
        wait(bed.jobs.now().enqueue(say("x"))).unwrap().detach();
        bed.settle();
        assert!(log.lines().is_empty());
        node.resume("say");
        bed.settle();
        assert_eq!(log.lines(), ["x"]);
    });
}

/// No more jobs at once than there are workers, and no more of a kind than it may have.
#[test]
fn workers_and_concurrency_are_bounds() {
    on_every_store(|bed| {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (running, peak, clock) = (now.clone(), most.clone(), bed.clock.clone());
        bed.jobs.on_blocking(move |say: Say, _| {
            let here = running.fetch_add(1, Ordering::SeqCst) + 1;
            peak.fetch_max(here, Ordering::SeqCst);
            let _ = &clock;
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(say.0)
        });
        let node = wait(bed.jobs.node().workers(4).concurrency("say", 2).start()).unwrap();
        let answers = wait(bed.jobs.now().enqueue_many((0..50).map(|n| say(&n.to_string()))));
        assert!(answers.iter().all(Result::is_ok));
        wait(node.drain());
        assert_eq!(node.snapshot().succeeded, 50);
        assert!(most.load(Ordering::SeqCst) <= 2, "{most:?}");
        assert_eq!(wait(bed.jobs.totals()).unwrap().ended[&Outcome::Succeeded], 50);
    });
}

/// C46, C36: a panic is a failed attempt, and nothing else is disturbed.
#[test]
fn a_panic_is_a_failed_attempt() {
    on_every_store(|bed| {
        bed.jobs.on(|say: Say, ctx| async move {
            assert!(ctx.attempt() > 1, "out of paper");
            Ok(say.0)
        });
        let _node = wait(bed.jobs.start()).unwrap();
        let handle = wait(bed.jobs.now().enqueue(say("hello"))).unwrap();
        bed.settle();
        let record = wait(bed.jobs.get(handle.id())).unwrap().unwrap();
        assert_eq!(record.last_error.as_deref(), Some("panicked: out of paper"));
        bed.advance(SECOND);
        assert_eq!(wait(async { handle.await }).unwrap(), "hello");
    });
}

/// The engine runs without any runtime, and within one its handlers can use it.
#[test]
fn handlers_run_inside_the_runtime_that_opened_the_jobs() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let jobs = Jobs::open("memory:").await.unwrap();
        jobs.on(|say: Say, _| async move {
            let inner = tokio::spawn(async move { say.0 }).await?;
            Ok(inner)
        });
        let _node = jobs.start().await.unwrap();
        jobs.now().enqueue(say("from tokio")).await.unwrap().await
    });
    assert_eq!(answer.unwrap(), "from tokio");
}

/// A handler enqueues more; `drain` waits for all of it.
#[test]
fn a_handler_may_enqueue_more() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        bed.jobs.on(move |say: Say, ctx| {
            seen.add(say.0.clone());
            async move {
                let left: u32 = say.0.parse()?;
                if left > 0 {
                    ctx.jobs().tenant(ctx.tenant()).now().enqueue(Say((left - 1).to_string())).await?;
                }
                Ok(say.0)
            }
        });
        let node = wait(bed.jobs.start()).unwrap();
        wait(bed.jobs.tenant("acme").now().enqueue(say("5"))).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["5", "4", "3", "2", "1", "0"]);
        assert_eq!(wait(bed.jobs.tenant("acme").record()).unwrap().totals.ended[&Outcome::Succeeded], 6);
    });
}

/// C44: what has ended is forgotten when its time is over, dead letters later than the rest, and the numbers stay.
#[test]
fn what_has_ended_is_forgotten_after_a_while() {
    let clock = punctual::VirtualClock::new();
    let hour = Duration::from_secs(3600);
    let retention = punctual_durable::Retention { succeeded: hour, failed: hour * 48, ..Default::default() };
    let jobs = wait(Jobs::builder().clock(&clock).retention(retention).open("memory:")).unwrap();
    jobs.on(|say: Say, _| async move {
        if say.0 == "bad" { Err(punctual_durable::Failure::give_up("no")) } else { Ok(say.0) }
    });
    let node = wait(jobs.start()).unwrap();
    let [good, bad] = ["good", "bad"].map(|word| wait(jobs.now().enqueue(say(word))).unwrap().id());
    wait(node.drain());
    let is_kept = |id| wait(jobs.get(id)).unwrap().is_some();
    assert!(is_kept(good) && is_kept(bad));
    clock.advance(hour * 3).unwrap();
    assert!(!is_kept(good) && is_kept(bad));
    clock.advance(hour * 48).unwrap();
    assert!(!is_kept(bad));
    assert_eq!(wait(jobs.totals()).unwrap().ended.values().sum::<u64>(), 2);
}
