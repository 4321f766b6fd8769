//! The scenes, one function each.

use std::error::Error;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use punctual::{Cron, DelayQueue, JobHandle, Limits, Missed, Scheduler, Tenant, VirtualClock};

use crate::timeline::Timeline;

pub(crate) type Scene = Result<(), Box<dyn Error>>;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A job that writes itself into the time line when it starts.
fn line(
    scheduler: &Scheduler,
    timeline: &Timeline,
    due: Instant,
    what: String,
) -> Result<JobHandle<()>, Box<dyn Error>> {
    let timeline = timeline.clone();
    Ok(scheduler.at(due).run(move |_| timeline.started(due, &what)).map_err(punctual::Rejected::without_job)?)
}

pub(crate) fn ten_callbacks() -> Scene {
    let timeline = Timeline::open(
        "1. Ten callbacks",
        "Ten threads register a callback each. Nobody polls: a worker sleeps exactly until the earliest.",
        ms(600),
    );
    let scheduler = Scheduler::new();
    let began = timeline.began();
    let (send, receive) = mpsc::channel();
    for n in 1..=10 {
        let (scheduler, timeline, send) = (scheduler.clone(), timeline.clone(), send.clone());
        thread::spawn(move || {
            let job = line(&scheduler, &timeline, began + ms(50) * n, format!("callback {n} of thread {n}"));
            send.send(job.ok()).expect("the scene waits for ten");
        });
    }
    for job in receive.iter().take(10) {
        job.ok_or("a callback was rejected")?.wait()?;
    }
    timeline.close("starts");
    Ok(())
}

pub(crate) fn late_then_early() -> Scene {
    let timeline = Timeline::open(
        "2. Late, then early",
        "A sleeper armed for the late callback is re-armed by an earlier one; a push that is not earlier wakes nobody.",
        ms(500),
    );
    let scheduler = Scheduler::new();
    let began = timeline.began();
    let mut late = line(&scheduler, &timeline, began + ms(400), "submitted first, due second".to_owned())?;
    let pause = scheduler.at(began + ms(150)).run(|_| ())?;
    pause.stopped().wait();
    timeline.note("a second callback is submitted, due before the first");
    let mut early = line(&scheduler, &timeline, began + ms(200), "submitted second, due first".to_owned())?;
    early.wait()?;
    late.wait()?;
    timeline.close("starts");
    Ok(())
}

pub(crate) fn leader_and_followers() -> Scene {
    let timeline = Timeline::open(
        "3. Leader and followers",
        "Four consumers block on one delay queue. One sleeps to the earliest entry, a deputy to the one after, the rest\nuntil they are needed. Equal dues leave in the order they went in.",
        ms(500),
    );
    let queue = DelayQueue::new();
    let consumers: Vec<_> = ["Ada", "Grace", "Edsger", "Barbara"]
        .map(|name| {
            let (queue, timeline) = (queue.clone(), timeline.clone());
            thread::spawn(move || {
                while let Some((due, entry)) = queue.take() {
                    timeline.started(due, &format!("{entry} taken by {name}"));
                }
            })
        })
        .into();
    for (entry, after) in [("e", 400), ("a", 100), ("c", 250), ("b", 100), ("d", 250), ("never", 450)] {
        let due = timeline.began() + ms(after);
        let key = queue.push((due, entry), due).map_err(|_| "the queue is open")?;
        if entry == "never" {
            queue.cancel(key);
        }
    }
    timeline.note("six entries pushed, one of them cancelled again: gone at once, in constant time");
    queue.close();
    for consumer in consumers {
        consumer.join().map_err(|_| "a consumer panicked")?;
    }
    timeline.close("starts");
    Ok(())
}

pub(crate) fn cancelled_work() -> Scene {
    let timeline = Timeline::open(
        "4. Cancelled work",
        "A handle is interest. Dropping it withdraws work that waits and tells work that runs; cancel has three answers.",
        ms(300),
    );
    let scheduler = Scheduler::new();
    let waiting = scheduler.after(ms(200)).run(|_| ())?;
    timeline.note(&format!("cancel of a job that waits: {:?}", waiting.cancel()));
    let (began, started) = mpsc::channel();
    let mut running = scheduler.now().run(move |ctx| {
        began.send(()).expect("the scene listens");
        let mut rounds = 0u64;
        while ctx.checkpoint().is_ok() {
            rounds += 1;
        }
        rounds
    })?;
    started.recv()?;
    timeline.note(&format!("cancel of a job that runs: {:?}", running.cancel()));
    timeline.note(&format!("its caller learns at once: {}", running.wait().expect_err("it was cancelled")));
    running.stopped().wait();
    timeline.note("and now it has truly stopped");
    let dropped = scheduler.after(ms(250)).run(|_| unreachable!("nobody wants it"))?;
    drop(dropped);
    timeline.note(&format!("a dropped handle leaves nothing behind: {} scheduled", scheduler.snapshot().scheduled));
    Ok(())
}

pub(crate) fn expired_work() -> Scene {
    let timeline = Timeline::open(
        "5. Expired work",
        "The only worker is blocked. Deadlines of queued work fire all the same, on time: the watch thread keeps them.",
        ms(300),
    );
    let scheduler = Scheduler::builder().workers(1).build()?;
    let (release, blocked) = mpsc::channel::<()>();
    let blocker = scheduler.now().run(move |_| blocked.recv().is_ok())?;
    let mut queued = Vec::new();
    for n in 1..=4 {
        queued.push(scheduler.now().deadline(ms(50) * n).run(|_| ())?);
    }
    for (mut job, n) in queued.into_iter().zip(1..) {
        let error = job.wait().expect_err("the worker is blocked");
        timeline.started(timeline.began() + ms(50) * n, &error.to_string());
    }
    release.send(())?;
    blocker.stopped().wait();
    timeline.close("deadlines");
    Ok(())
}

pub(crate) fn a_series_that_misses_ticks() -> Scene {
    let timeline = Timeline::open(
        "6. A series",
        "Every 100 ms on a fixed grid. The second run takes too long: one run makes up for what was missed, then the grid\ngoes on, without drift.",
        ms(1000),
    );
    let scheduler = Scheduler::new();
    let (ran, runs) = mpsc::channel();
    let lines = timeline.clone();
    let mut number = 0;
    let series = scheduler.every(ms(100)).missed(Missed::Once).run(move |ctx| {
        number += 1;
        let what = match ctx.missed() {
            0 => format!("run {number}"),
            missed => format!("run {number}, standing for the {missed} it missed as well"),
        };
        lines.started(ctx.due(), &what);
        if number == 2 {
            // Work that takes 250 ms.
            let clock = punctual::Clock::system();
            let end = clock.now() + ms(250);
            while clock.now() < end && !ctx.is_cancelled() {
                thread::yield_now();
            }
        }
        ran.send(number).expect("the scene listens");
    })?;
    runs.iter().find(|&run| run == 7);
    timeline.note(&format!("{} runs; {} tick missed, and made up for by run 3", 7, series.missed()));
    Ok(())
}

pub(crate) fn tenants() -> Scene {
    let timeline = Timeline::open(
        "7. Tenants",
        "One worker, three tenants. A big one has queued 10,000 jobs; a small one comes late and is served next. Weights\nshare what is left. What does not fit is refused at the door, with the work given back.",
        ms(300),
    );
    let scheduler = Scheduler::builder().workers(1).build()?;
    let (release, blocked) = mpsc::channel::<()>();
    let gate = scheduler.now().run(move |_| blocked.recv().is_ok())?;
    let served = Arc::new(Mutex::new(String::new()));
    let submit = |tenant: &Tenant, letter: char, jobs: usize| -> Scene {
        for _ in 0..jobs {
            let served = Arc::clone(&served);
            tenant.now().run(move |_| served.lock().expect("no job panics").push(letter))?.detach();
        }
        Ok(())
    };
    let big = scheduler.tenant("big", Limits::new().weight(1))?;
    let heavy = scheduler.tenant("heavy", Limits::new().weight(3))?;
    let small = scheduler.tenant("small", Limits::new().backlog_max(2))?;
    submit(&big, 'b', 10_000)?;
    submit(&heavy, 'H', 30)?;
    submit(&small, 's', 2)?;
    let refused = small.now().run(|_| ()).expect_err("two places are taken");
    timeline.note(&refused.to_string());
    let withdrawn = heavy.now().run(|_| unreachable!("nobody wants it"))?;
    drop(withdrawn);
    timeline.note("a queued job whose caller left is gone, and its place is free");
    release.send(())?;
    gate.stopped().wait();
    let report = scheduler.shutdown(Duration::from_secs(5));
    let order = served.lock().expect("no job panics");
    timeline.note(&format!("served in this order: {}...", &order[..44]));
    timeline.note(&format!("{report}"));
    Ok(())
}

pub(crate) fn a_year_in_a_moment() -> Scene {
    let timeline = Timeline::open(
        "8. A year in a moment",
        "The same code on a virtual clock: an hourly cron in Paris for a year, over both changes of the clocks.",
        ms(1000),
    );
    let clock = VirtualClock::new();
    let scheduler = Scheduler::builder().clock(&clock).build()?;
    let hourly = scheduler.cron(Cron::parse("0 * * * *")?.in_zone("Europe/Paris")?).run(|_| ())?;
    let nightly = scheduler.cron(Cron::parse("30 2 * * *")?.in_zone("Europe/Paris")?).run(|_| ())?;
    clock.advance(Duration::from_secs(365 * 24 * 3600))?;
    timeline.note(&format!(
        "{} hourly runs, and {} at 02:30, which one night has not and one has twice",
        hourly.runs(),
        nightly.runs()
    ));
    let nine = Cron::parse("0 9 * * MON-FRI")?.in_zone("Europe/Paris")?;
    println!("  and what `0 9 * * MON-FRI` means next:");
    for run in nine.next_runs(3) {
        println!("    {run}");
    }
    Ok(())
}
