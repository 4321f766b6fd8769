use std::time::Duration;

use punctual::{Cron, Missed};
use punctual_durable::{Failure, Outcome, Rule, Schedule};

use crate::bed::{Bed, HOUR, Log, SECOND, Say, Shout, on_every_store, say, wait, with_faults};

fn schedule(bed: &Bed) -> Schedule {
    wait(bed.jobs.schedules(None, 10)).unwrap().pop().unwrap()
}

/// C48
#[test]
fn a_schedule_fires_once_a_tick_on_its_grid() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        let start = bed.clock.wall();
        wait(bed.jobs.every("sweep", HOUR).first(start + SECOND).enqueue(say("sweep"))).unwrap();
        // Said again, as every start of a program does.
        wait(bed.jobs.every("sweep", HOUR).first(start + SECOND).enqueue(say("sweep"))).unwrap();
        bed.advance(SECOND);
        assert_eq!(log.lines().len(), 1);
        bed.advance(HOUR * 5);
        assert_eq!(log.lines().len(), 6);
        assert_eq!((schedule(&bed).fired, schedule(&bed).missed_count), (6, 0));
    });
}

/// C48: whoever is there fires it, and only one does.
#[test]
fn two_processes_fire_a_tick_once() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let other = bed.another();
        other.on(log.handler());
        let _nodes = [wait(bed.jobs.start()).unwrap(), wait(other.start()).unwrap()];
        wait(bed.jobs.every("sweep", HOUR).enqueue(say("sweep"))).unwrap();
        wait(other.every("sweep", HOUR).enqueue(say("sweep"))).unwrap();
        bed.advance(HOUR * 10);
        assert_eq!(log.lines().len(), 10);
    });
}

/// C48, C17: ticks that nobody was there for.
#[test]
fn missed_ticks_are_made_up_for_once() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        bed.jobs.on(move |say: Say, ctx| {
            seen.add(format!("{} missed", ctx.missed()));
            std::future::ready(Ok(say.0))
        });
        wait(bed.jobs.every("sweep", HOUR).missed(Missed::Once).enqueue(say("sweep"))).unwrap();
        bed.advance(HOUR * 5);
        let node = wait(bed.jobs.start()).unwrap();
        wait(node.drain());
        assert_eq!(log.lines(), ["4 missed"]);
        bed.advance(HOUR);
        assert_eq!(log.lines(), ["4 missed", "0 missed"]);
    });
}

/// C48, C17
#[test]
fn missed_ticks_are_made_up_for_one_by_one() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        bed.jobs.on(move |say: Say, ctx| {
            seen.add(ctx.due().to_string());
            std::future::ready(Ok(say.0))
        });
        wait(bed.jobs.every("sweep", HOUR).missed(Missed::All { max: 2 }).enqueue(say("sweep"))).unwrap();
        bed.advance(HOUR * 5);
        let node = wait(bed.jobs.start()).unwrap();
        wait(node.drain());
        assert_eq!(log.lines().len(), 3, "{:?}", log.lines());
        assert!(log.lines().is_sorted());
        assert_eq!((schedule(&bed).fired, schedule(&bed).missed_count), (3, 2));
    });
}

/// C48: a tick whose predecessor is still live is missed, and made up for by the policy.
#[test]
fn runs_of_one_schedule_do_not_overlap() {
    on_every_store(|bed| {
        let log = Log::default();
        let seen = log.clone();
        let (go, gate) = tokio::sync::watch::channel(false);
        bed.jobs.on(move |say: Say, ctx| {
            seen.add(format!("{} missed", ctx.missed()));
            let mut gate = gate.clone();
            async move {
                let _ = gate.wait_for(|open| *open).await;
                Ok(say.0)
            }
        });
        let _node = wait(bed.jobs.start()).unwrap();
        wait(bed.jobs.every("slow", HOUR).enqueue(say("slow"))).unwrap();
        bed.advance(HOUR * 4);
        assert_eq!(log.lines(), ["0 missed"]);
        go.send(true).unwrap();
        bed.settle();
        assert_eq!(log.lines(), ["0 missed", "2 missed"]);
        bed.advance(HOUR);
        assert_eq!(log.lines().len(), 3);
    });
}

/// C36, C49: the loop of a node waited for each tick that it fired, one after the other, and for nothing else: while
/// many came at once, no job began there and none was stopped.
#[test]
fn jobs_begin_and_stop_while_a_tick_is_fired() {
    let (bed, line) = with_faults();
    let log = Log::default();
    bed.jobs.on(log.handler());
    bed.jobs.on(|_: Shout, _| std::future::pending::<Result<String, Failure>>());
    let _node = wait(bed.jobs.start()).unwrap();
    let other = bed.another();
    let long = wait(other.now().enqueue(Shout("long".into()))).unwrap();
    wait(other.every("sweep", HOUR).enqueue(say("sweep"))).unwrap();
    line.hold_answers_of("fire");
    bed.advance(HOUR);
    wait(other.now().enqueue(say("meanwhile"))).unwrap().detach();
    wait(long.cancel()).unwrap();
    bed.settle();
    assert_eq!(log.lines(), ["sweep", "meanwhile"]);
    assert_eq!(wait(other.totals()).unwrap().running, 0);
    line.hold_answers(false);
    bed.advance(HOUR * 3);
    assert_eq!((schedule(&bed).fired, schedule(&bed).missed_count), (4, 0));
}

/// C48: however many come at one instant, each is fired once.
#[test]
fn many_schedules_tick_at_once() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let node = wait(bed.jobs.start()).unwrap();
        for number in 0..50 {
            wait(bed.jobs.every(&format!("sweep {number}"), HOUR).enqueue(say("sweep"))).unwrap();
        }
        bed.advance(HOUR * 2);
        wait(node.drain());
        assert_eq!(log.lines().len(), 100);
        assert_eq!(wait(bed.jobs.totals()).unwrap().ended[&Outcome::Succeeded], 100);
    });
}

#[test]
fn a_paused_schedule_fires_nothing() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        let _node = wait(bed.jobs.start()).unwrap();
        wait(bed.jobs.every("sweep", HOUR).missed(Missed::Skip).enqueue(say("sweep"))).unwrap();
        assert!(wait(bed.jobs.pause_schedule("sweep", true)).unwrap());
        bed.advance(HOUR * 3 + HOUR / 2);
        assert!(log.lines().is_empty());
        assert!(wait(bed.jobs.pause_schedule("sweep", false)).unwrap());
        bed.settle();
        assert!(log.lines().is_empty());
        bed.advance(HOUR);
        assert_eq!(log.lines().len(), 1);
        assert!(wait(bed.jobs.remove_schedule("sweep")).unwrap());
        bed.advance(HOUR * 3);
        assert_eq!(log.lines().len(), 1);
    });
}

/// C48, C18, and what `VirtualClock` is for: a year of an hourly cron, with the real engine.
#[test]
fn a_year_of_an_hourly_cron() {
    let clock = punctual::VirtualClock::new();
    let jobs = wait(punctual_durable::Jobs::builder().clock(&clock).open("memory:")).unwrap();
    let log = Log::default();
    jobs.on(log.handler());
    let _node = wait(jobs.start()).unwrap();
    let hourly = Cron::parse("0 * * * *").unwrap().in_zone("Europe/Paris").unwrap();
    wait(jobs.cron("hourly", hourly).enqueue(say("tick"))).unwrap();
    clock.advance(HOUR * 24 * 365).unwrap();
    assert_eq!(log.lines().len(), 24 * 365);
    assert_eq!(wait(jobs.totals()).unwrap().ended[&Outcome::Succeeded], 24 * 365);
}

#[test]
fn a_period_of_zero_is_refused() {
    on_every_store(|bed| {
        let error = wait(bed.jobs.every("never", Duration::ZERO).enqueue(say("x"))).unwrap_err();
        assert_eq!(error.to_string(), "a period of 0 s (the least is 1 ns)");
        assert_eq!(error.into_job(), say("x"));
    });
}

/// C48: a node that does not understand a rule, because it is older than the one that stated it, or knows fewer time
/// zones, fired its tick, and as it did not know when the next one is, there was none any more: on no node. Such a
/// schedule is left to those who understand it.
#[test]
fn a_schedule_whose_rule_is_not_understood_stays_where_it_is() {
    on_every_store(|bed| {
        let log = Log::default();
        bed.jobs.on(log.handler());
        wait(bed.jobs.every("a", HOUR).enqueue(say("sweep"))).unwrap();
        let known = schedule(&bed);
        let strange = [
            Rule::Cron { expression: "0 0 * * *".into(), zone: "Moon/Tycho".into() },
            Rule::Cron { expression: "at dawn".into(), zone: "UTC".into() },
            Rule::Every { period: Duration::ZERO, anchor: bed.store.now() },
        ];
        for (name, rule) in ["b", "c", "d"].into_iter().zip(strange) {
            wait(bed.store.put_schedule(Schedule { name: name.into(), rule, ..known.clone() })).unwrap();
        }
        let before = wait(bed.jobs.schedules(Some("a".into()), 10)).unwrap();
        let _node = wait(bed.jobs.start()).unwrap();
        bed.advance(HOUR * 3);
        assert_eq!(log.lines().len(), 3);
        assert_eq!(wait(bed.jobs.schedules(Some("a".into()), 10)).unwrap(), before);
    });
}
