//! Series: the grid they keep, what they do about missed ticks and failures, and how they end. On the virtual clock,
//! with the wall clock stepped where dates and zones are concerned.

#![allow(clippy::unwrap_used, reason = "these are tests, their helpers included")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual::{Cancel, Cron, Ctx, Missed, OnFailure, Reason, SeriesHandle, VirtualClock};

use crate::jobs::{Gate, Log, SOON, block_a_worker, in_time, on_virtual_clock, panic_with, secs, witness, yield_once};
use crate::queue::{DAY, block_on, ms};

/// Notes when it ran, counted from `start`, and how many ticks it was told it missed.
fn noting(clock: &VirtualClock, log: &Log<(Duration, u64)>) -> impl FnMut(Ctx) + Send + use<> {
    let (clock, log, start) = (clock.clone(), log.clone(), clock.now());
    move |ctx| log.add((clock.now() - start, ctx.missed()))
}

fn at(seconds: &[u64]) -> Vec<(Duration, u64)> {
    seconds.iter().map(|&second| (secs(second), 0)).collect()
}

/// C17
#[test]
fn a_fixed_rate_never_drifts() {
    let (clock, scheduler) = on_virtual_clock(2);
    let dues = Log::new();
    let (log, own) = (dues.clone(), clock.clone());
    let series = scheduler.every(ms(1_000)).run(move |ctx| {
        log.add((ctx.due(), own.now()));
        // Each run takes a while, which must not move the next.
        let mut pause = ctx.after(ms(137)).run(|_| ()).unwrap();
        pause.wait().unwrap();
    });
    let start = clock.now();
    clock.advance(secs(1_000)).unwrap();
    let expected: Vec<(Instant, Instant)> = (1..=1_000).map(|n| (start + secs(n), start + secs(n))).collect();
    assert_eq!(dues.all(), expected);
    let series = series.unwrap();
    assert_eq!((series.missed(), series.failures()), (0, 0));
}

/// C17
#[test]
fn a_fixed_delay_counts_from_the_end_of_each_run() {
    let (clock, scheduler) = on_virtual_clock(2);
    let log = Log::new();
    let mut note = noting(&clock, &log);
    let run = move |ctx: Ctx| {
        let mut pause = ctx.after(secs(3)).run(|_| ()).unwrap();
        note(ctx);
        pause.wait().unwrap();
    };
    let series = scheduler.every(secs(1)).fixed_delay().run(run).unwrap();
    clock.advance(secs(17)).unwrap();
    assert_eq!(log.all(), at(&[1, 5, 9, 13, 17]));
    assert_eq!((series.runs(), series.missed()), (4, 0), "nothing is missed, for there is no grid");
}

/// C17
#[test]
fn the_first_run_may_be_at_any_time() {
    let (clock, scheduler) = on_virtual_clock(1);
    let logs = [(); 3].map(|()| Log::new());
    let _now = scheduler.every(secs(10)).first(Duration::ZERO).run(noting(&clock, &logs[0])).unwrap();
    let _later = scheduler.every(secs(10)).first(clock.now() + secs(3)).run(noting(&clock, &logs[1])).unwrap();
    let _dated = scheduler.every(secs(10)).first(clock.wall() + secs(4)).run(noting(&clock, &logs[2])).unwrap();
    clock.advance(secs(25)).unwrap();
    assert_eq!(logs[0].all(), at(&[0, 10, 20]));
    assert_eq!(logs[1].all(), at(&[3, 13, 23]));
    assert_eq!(logs[2].all(), at(&[4, 14, 24]));
}

/// Runs a series of one second whose first run takes 4.5 s.
fn with_a_long_first_run(missed: Missed) -> (Vec<(Duration, u64)>, u64, u64) {
    let (clock, scheduler) = on_virtual_clock(2);
    let log = Log::new();
    let mut note = noting(&clock, &log);
    let mut first = true;
    let run = move |ctx: Ctx| {
        let pause = std::mem::take(&mut first).then(|| ctx.after(ms(4_500)).run(|_| ()).unwrap());
        note(ctx);
        pause.into_iter().for_each(|mut pause| pause.wait().unwrap());
    };
    let series = scheduler.every(secs(1)).missed(missed).run(run).unwrap();
    clock.advance(secs(8)).unwrap();
    assert_eq!(scheduler.snapshot().missed, series.missed());
    (log.all(), series.runs(), series.missed())
}

/// C17
#[test]
fn missed_ticks_are_made_up_for_by_one_run_that_knows_their_number() {
    let (runs, count, missed) = with_a_long_first_run(Missed::Once);
    let mut expected = at(&[1, 6, 7, 8]);
    expected.insert(1, (ms(5_500), 3));
    assert_eq!(runs, expected, "ticks 2, 3, 4 and 5 passed; 5 runs at once and stands for all");
    assert_eq!((count, missed), (5, 3));
}

/// C17
#[test]
fn missed_ticks_can_be_skipped() {
    let (runs, count, missed) = with_a_long_first_run(Missed::Skip);
    let mut expected = at(&[1, 6, 7, 8]);
    expected[1].1 = 4;
    assert_eq!(runs, expected);
    assert_eq!((count, missed), (4, 4));
}

/// C17
#[test]
fn missed_ticks_can_all_be_made_up_for() {
    let (runs, count, missed) = with_a_long_first_run(Missed::All { max: 10 });
    let times: Vec<_> = runs.iter().map(|(time, _)| *time).collect();
    let late = ms(5_500);
    assert_eq!(times, [secs(1), late, late, late, late, secs(6), secs(7), secs(8)]);
    assert_eq!((count, missed), (8, 0));
}

/// C17
#[test]
fn making_up_for_all_missed_ticks_is_capped() {
    let (runs, count, missed) = with_a_long_first_run(Missed::All { max: 2 });
    let late = ms(5_500);
    assert_eq!(runs[1], (late, 2), "the oldest two are left out");
    assert_eq!(runs[2], (late, 0));
    assert_eq!((runs[3].0, runs.len()), (secs(6), 6));
    assert_eq!((count, missed), (6, 2));
}

/// C17: a cap is a cap also when a billion ticks passed; they are counted, not walked.
#[test]
fn a_fast_series_that_stood_still_for_long_catches_up_at_once() {
    in_time(|| {
        for missed in [Missed::Once, Missed::Skip, Missed::All { max: 2 }] {
            let (clock, scheduler) = on_virtual_clock(2);
            let mut first = true;
            let run = move |ctx: Ctx| {
                if std::mem::take(&mut first) {
                    ctx.after(DAY).run(|_| ()).unwrap().wait().unwrap();
                }
            };
            let series = scheduler.every(Duration::from_micros(1)).missed(missed).run(run).unwrap();
            clock.advance(DAY + Duration::from_micros(3)).unwrap();
            assert!((3..=6).contains(&series.runs()), "{missed:?}: {} runs", series.runs());
            let ticks = (DAY.as_micros() + 3) as u64;
            assert_eq!(series.runs() + series.missed(), ticks, "{missed:?}: every tick is run or missed, once");
        }
    });
}

/// C17: ticks that pass while the series waits for a worker are missed as well.
#[test]
fn ticks_that_pass_in_the_queue_are_missed_too() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let log = Log::new();
    let series = scheduler.every(secs(1)).run(noting(&clock, &log)).unwrap();
    clock.advance(ms(4_500)).unwrap();
    gate.open();
    clock.advance(ms(1_500)).unwrap();
    let mut expected = at(&[5, 6]);
    expected.insert(0, (ms(4_500), 3));
    assert_eq!(log.all(), expected);
    assert_eq!((series.runs(), series.missed()), (3, 3));
}

/// C17
#[test]
fn runs_of_one_series_never_overlap() {
    let (clock, scheduler) = on_virtual_clock(4);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&inside), Arc::clone(&most));
    let run = move |ctx: Ctx| {
        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        ctx.after(ms(2_500)).run(|_| ()).unwrap().wait().unwrap();
        now.fetch_sub(1, Ordering::SeqCst);
    };
    let series = scheduler.every(secs(1)).missed(Missed::All { max: 5 }).run(run).unwrap();
    clock.advance(secs(100)).unwrap();
    assert_eq!((most.load(Ordering::SeqCst), series.runs()), (1, 39));
}

/// C17
#[test]
fn a_failure_does_not_end_a_series() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut run = 0;
    let series = scheduler.every(secs(1)).run(move |_| {
        run += 1;
        match run % 3 {
            0 => panic_with("third"),
            1 => Err("first"),
            _ => Ok(()),
        }
    });
    clock.advance(secs(9)).unwrap();
    let series = series.unwrap();
    assert_eq!((series.runs(), series.failures()), (9, 6));
    let finished = scheduler.snapshot().finished;
    assert_eq!((finished.succeeded, finished.failed, finished.panicked), (3, 3, 3));
}

/// C17
#[test]
fn a_failure_can_end_a_series() {
    for panics in [false, true] {
        let (clock, scheduler) = on_virtual_clock(1);
        let dropped_on = Log::new();
        let mut left = 2;
        let captured = witness(&dropped_on);
        let run = move |_: Ctx| {
            let _captured = &captured;
            left -= 1;
            match left {
                0 if panics => panic_with("enough"),
                0 => Err("enough"),
                _ => Ok(()),
            }
        };
        let series = scheduler.every(secs(1)).on_failure(OnFailure::Stop).run(run).unwrap();
        clock.advance(secs(9)).unwrap();
        assert_eq!((series.runs(), series.failures(), series.next_due()), (2, 1, None));
        series.stopped().wait();
        assert_eq!(series.cancel(), Cancel::TooLate);
        assert_eq!(dropped_on.all(), ["punctual-worker"], "its code goes with it");
        assert_eq!(scheduler.snapshot().scheduled, 0);
    }
}

/// C17
#[test]
fn a_series_that_fails_can_back_off_and_recovers() {
    let (clock, scheduler) = on_virtual_clock(1);
    let log = Log::new();
    let mut note = noting(&clock, &log);
    let mut run = 0;
    let backoff = OnFailure::Backoff { first: secs(2), max: secs(5) };
    let series = scheduler.every(secs(1)).on_failure(backoff).run(move |ctx| {
        note(ctx);
        run += 1;
        if run <= 4 { Err("still down") } else { Ok(()) }
    });
    clock.advance(secs(23)).unwrap();
    assert_eq!(log.all(), at(&[1, 4, 9, 15, 21, 22, 23]), "pauses of 2, 4, 5 and 5, then the grid again");
    assert_eq!(series.unwrap().missed(), 0, "what is left out on purpose is not missed");
}

/// C17: of an async series, too.
#[test]
fn a_series_of_futures_keeps_the_same_promises() {
    let (clock, scheduler) = on_virtual_clock(1);
    let log = Log::new();
    let own = scheduler.clone();
    let (runs, own_clock, start) = (log.clone(), clock.clone(), clock.now());
    let series = scheduler.every(secs(2)).spawn(move |ctx| {
        let (own, runs, clock) = (own.clone(), runs.clone(), own_clock.clone());
        async move {
            runs.add((clock.now() - start, ctx.missed()));
            yield_once().await;
            own.after(secs(3)).run(|_| ()).unwrap().await.map_err(|error| error.to_string())
        }
    });
    clock.advance(secs(12)).unwrap();
    let series = series.unwrap();
    let expected = [(secs(2), 0), (secs(5), 0), (secs(8), 1), (secs(11), 0)];
    assert_eq!(log.all(), expected, "4 runs at 5, 8 runs at 8 and stands for 6, 10 runs at 11");
    assert_eq!((series.runs(), series.failures(), series.missed()), (3, 0, 1));
}

/// C30: per run.
#[test]
fn start_within_gives_up_a_run_and_not_the_series() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let log = Log::new();
    let series = scheduler.every(secs(1)).start_within(ms(100)).run(noting(&clock, &log)).unwrap();
    clock.advance(ms(3_500)).unwrap();
    assert_eq!((series.runs(), series.missed(), scheduler.snapshot().finished.expired), (0, 3, 3));
    assert_eq!(series.next_due(), Some(clock.now() + ms(500)));
    gate.open();
    clock.advance(secs(2)).unwrap();
    assert_eq!(log.all(), [(secs(4), 3), (secs(5), 0)]);
    assert_eq!((series.runs(), series.missed()), (2, 3));
}

/// C30: per run, and the next run waits for the zombie.
#[test]
fn a_run_timeout_ends_a_run_and_not_the_series() {
    let (clock, scheduler) = on_virtual_clock(2);
    let (gate, log) = (Gate::on(&clock), Log::new());
    let (inner, mut note) = (gate.clone(), noting(&clock, &log));
    let series = scheduler.every(secs(1)).run_timeout(ms(300)).run(move |ctx| {
        note(ctx);
        inner.pass();
    });
    clock.advance(ms(2_500)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!(
        (now.finished.expired, now.zombies, log.len()),
        (1, 1, 1),
        "runs do not overlap, also not with a zombie"
    );
    gate.open();
    clock.advance(secs(1)).unwrap();
    let now = scheduler.snapshot();
    assert_eq!((now.finished.expired, now.finished.succeeded, now.zombies), (1, 2, 0));
    assert_eq!(log.all(), [(secs(1), 0), (ms(2_500), 0), (secs(3), 0)]);
    drop(series);
}

/// C30
#[test]
fn a_deadline_ends_the_series_also_while_it_runs() {
    let (clock, scheduler) = on_virtual_clock(2);
    let between = scheduler.every(secs(2)).deadline(secs(5)).run(|_| ()).unwrap();
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let (said, heard) = mpsc::channel();
    let during = scheduler.every(secs(4)).deadline(clock.now() + secs(5)).run(move |ctx| {
        inner.pass();
        said.send(ctx.is_cancelled()).unwrap();
    });
    let during = during.unwrap();
    clock.advance(secs(60)).unwrap();
    assert_eq!((between.runs(), between.next_due()), (2, None));
    between.stopped().wait();
    assert_eq!(scheduler.snapshot().zombies, 1);
    gate.open();
    assert!(heard.recv_timeout(SOON).unwrap(), "the run was told");
    during.stopped().wait();
    clock.advance(secs(60)).unwrap();
    assert_eq!(during.runs(), 1);
    assert_eq!(scheduler.snapshot().finished.expired, 2);
}

/// C14
#[test]
fn a_series_can_be_cancelled_at_each_stage() {
    let (clock, scheduler) = on_virtual_clock(1);
    let scheduled = scheduler.every(secs(1)).run(|_| ()).unwrap();
    clock.advance(secs(3)).unwrap();
    assert_eq!(scheduled.cancel(), Cancel::Prevented);
    assert_eq!((scheduled.cancel(), scheduled.runs(), scheduled.next_due()), (Cancel::TooLate, 3, None));
    scheduled.stopped().wait();
    let (gate, blocker) = block_a_worker(&clock, &scheduler);
    let ready = scheduler.every(secs(1)).run(|_| ()).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(scheduler.snapshot().ready, 1);
    assert_eq!(ready.cancel(), Cancel::Prevented);
    assert_eq!((ready.runs(), scheduler.snapshot().ready), (0, 0));
    gate.open();
    clock.settle().unwrap();
    let gate = Gate::on(&clock);
    let inner = gate.clone();
    let running = scheduler.every(secs(1)).run(move |_| inner.pass()).unwrap();
    clock.advance(secs(1)).unwrap();
    assert_eq!(running.next_due(), None, "while it runs");
    assert_eq!((running.cancel(), running.cancel()), (Cancel::Requested, Cancel::TooLate));
    assert!(!running.stopped().wait_timeout(Duration::ZERO));
    gate.open();
    running.stopped().wait();
    clock.advance(secs(5)).unwrap();
    assert_eq!(running.runs(), 1);
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.running, now.finished.cancelled), (0, 0, 3));
    drop(blocker);
}

/// C14, C15
#[test]
fn a_series_can_be_cancelled_from_inside() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (give, own) = mpsc::channel::<SeriesHandle>();
    let (said, heard) = mpsc::channel();
    let mut runs = 0;
    let series = scheduler.every(secs(1)).run(move |ctx| {
        runs += 1;
        if runs == 3 {
            let own = own.recv().unwrap();
            own.stopped().wait();
            block_on(own.stopped());
            said.send((own.cancel(), own.cancel(), ctx.is_cancelled())).unwrap();
        }
    });
    give.send(series.unwrap()).unwrap();
    clock.advance(secs(10)).unwrap();
    assert_eq!(heard.recv_timeout(SOON).unwrap(), (Cancel::Requested, Cancel::TooLate, true));
    let now = scheduler.snapshot();
    assert_eq!((now.scheduled, now.lateness.count(), now.finished.cancelled), (0, 3, 1));
}

/// C15
#[test]
fn a_dropped_series_ends_and_a_detached_one_goes_on() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (one, two) = (Log::new(), Log::new());
    let dropped = scheduler.every(secs(1)).run(noting(&clock, &one)).unwrap();
    scheduler.every(secs(1)).run(noting(&clock, &two)).unwrap().detach();
    clock.advance(secs(3)).unwrap();
    drop(dropped);
    clock.advance(secs(3)).unwrap();
    assert_eq!((one.len(), two.len()), (3, 6));
}

/// C17: the numbers of a series and those of its scheduler tell the same story.
#[test]
fn the_counts_of_a_series_add_up() {
    let (clock, scheduler) = on_virtual_clock(2);
    let mut n = 0;
    let series = scheduler.every(ms(10)).run(move |ctx| {
        n += 1;
        if n % 7 == 0 && n < 600 {
            ctx.after(ms(35)).run(|_| ()).unwrap().wait().unwrap();
        }
        if n % 5 == 0 { Err("fifth") } else { Ok(()) }
    });
    clock.advance(secs(10)).unwrap();
    let series = series.unwrap();
    let now = scheduler.snapshot();
    assert_eq!(series.runs() + series.missed(), 1_000, "every tick is run or missed, once");
    assert_eq!(series.failures(), now.finished.failed);
    assert_eq!((series.missed(), series.runs() / 5), (now.missed, series.failures()));
}

/// A date in UTC, as a wall clock shows it.
fn date(text: &str) -> SystemTime {
    // Counted in whole days from a day that everybody knows, so that nothing here depends on the code under test.
    let (day, time) = text.split_once(' ').unwrap();
    let numbers = |text: &str, by: char| text.split(by).map(|n| n.parse::<i64>().unwrap()).collect::<Vec<_>>();
    let (ymd, hm) = (numbers(day, '-'), numbers(time, ':'));
    let (year, month) = if ymd[1] > 2 { (ymd[0], ymd[1] - 3) } else { (ymd[0] - 1, ymd[1] + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (month * 306 + 5) / 10 + ymd[2] - 1 - 719_468;
    UNIX_EPOCH + secs((days * 86_400 + hm[0] * 3_600 + hm[1] * 60) as u64)
}

/// Notes the wall clock at each run.
fn dating(clock: &VirtualClock, log: &Log<(SystemTime, u64)>) -> impl FnMut(Ctx) + Send + use<> {
    let (clock, log) = (clock.clone(), log.clone());
    move |ctx| log.add((clock.wall(), ctx.missed()))
}

fn paris(expression: &str) -> Cron {
    Cron::parse(expression).unwrap().in_zone("Europe/Paris").unwrap()
}

fn wall_runs(expression: &str, from: &str, days: u32) -> Vec<SystemTime> {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.step_wall(date(from)).unwrap();
    let log = Log::new();
    let series = scheduler.cron(paris(expression)).run(dating(&clock, &log)).unwrap();
    clock.advance(DAY * days).unwrap();
    assert_eq!(series.missed(), 0);
    log.all().into_iter().map(|(wall, _)| wall).collect()
}

/// C18
#[test]
fn a_cron_runs_once_at_the_end_of_a_gap() {
    // On 2024-03-31 Paris goes from 02:00 to 03:00, which is 01:00 UTC.
    let runs = wall_runs("30 2 * * *", "2024-03-30 00:00", 3);
    assert_eq!(runs, ["2024-03-30 01:30", "2024-03-31 01:00", "2024-04-01 00:30"].map(date));
}

/// C18
#[test]
fn a_cron_with_a_fixed_time_runs_once_in_an_overlap() {
    // On 2024-10-27 Paris goes from 03:00 back to 02:00, which is 01:00 UTC.
    let runs = wall_runs("30 2 * * *", "2024-10-26 00:00", 3);
    assert_eq!(runs, ["2024-10-26 00:30", "2024-10-27 00:30", "2024-10-28 01:30"].map(date));
}

/// C18
#[test]
fn a_cron_with_a_step_runs_in_both_hours_of_an_overlap() {
    let runs = wall_runs("*/30 2 * * *", "2024-10-26 12:00", 1);
    let expected = ["2024-10-27 00:00", "2024-10-27 00:30", "2024-10-27 01:00", "2024-10-27 01:30"];
    assert_eq!(runs, expected.map(date));
}

/// C18
#[test]
fn an_hourly_cron_never_pauses_and_never_doubles_over_a_change() {
    for from in ["2024-03-30 12:30", "2024-10-26 12:30"] {
        let runs = wall_runs("0 * * * *", from, 2);
        assert_eq!(runs.len(), 48);
        assert!(runs.windows(2).all(|pair| pair[1].duration_since(pair[0]).unwrap() == secs(3_600)));
    }
}

/// C12
#[test]
fn a_step_of_the_wall_clock_moves_dates_and_crons_and_nothing_else() {
    for ahead in [true, false] {
        let (clock, scheduler) = on_virtual_clock(1);
        clock.step_wall(date("2024-01-01 12:00")).unwrap();
        let start = clock.now();
        let order = Log::new();
        let note = |text: &'static str| {
            let (order, clock) = (order.clone(), clock.clone());
            move |_: Ctx| order.add((text, clock.now() - start))
        };
        let hour = secs(3_600);
        let _delay = scheduler.after(hour * 2).run(note("delay")).unwrap();
        let _instant = scheduler.at(start + hour * 2).run(note("instant")).unwrap();
        let _date = scheduler.at(clock.wall() + hour * 2).run(note("date")).unwrap();
        let _every = scheduler.every(hour * 2).deadline(hour * 3).run(note("every")).unwrap();
        let _cron = scheduler.cron(Cron::parse("0 14 * * *").unwrap()).run(note("cron")).unwrap();
        let to = if ahead { date("2024-01-01 13:00") } else { date("2024-01-01 11:00") };
        clock.step_wall(to).unwrap();
        assert_eq!(order.len(), 0);
        clock.advance(hour * 5).unwrap();
        let moved = if ahead { hour } else { hour * 3 };
        let at = |wanted: &str| {
            order.all().iter().filter(|(text, _)| *text == wanted).map(|(_, at)| *at).collect::<Vec<_>>()
        };
        assert_eq!((at("date"), at("cron")), (vec![moved], vec![moved]), "ahead: {ahead}");
        assert_eq!((at("delay"), at("instant"), at("every")), (vec![hour * 2], vec![hour * 2], vec![hour * 2]));
    }
}

/// C12: at once, not when the clock is next looked at.
#[test]
fn a_step_past_a_date_makes_it_due_at_once() {
    let (clock, scheduler) = on_virtual_clock(1);
    let mut job = scheduler.at(clock.wall() + DAY).run(|_| "due").unwrap();
    clock.step_wall(clock.wall() + DAY * 2).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), Some(Ok("due")));
}

/// C12: with every worker busy, too.
#[test]
fn a_step_is_noticed_while_every_worker_is_busy() {
    let (clock, scheduler) = on_virtual_clock(1);
    let (gate, _blocker) = block_a_worker(&clock, &scheduler);
    let mut job = scheduler.at(clock.wall() + DAY).start_within(secs(5)).run(|_| ()).unwrap();
    clock.step_wall(clock.wall() + DAY * 2).unwrap();
    assert_eq!((scheduler.snapshot().scheduled, scheduler.snapshot().ready), (0, 1));
    clock.advance(secs(5)).unwrap();
    assert!(job.wait_timeout(Duration::ZERO).is_some_and(|outcome| outcome.is_err()), "it expired in the queue");
    gate.open();
}

/// C12: there and back again.
#[test]
fn a_date_follows_every_step() {
    let (clock, scheduler) = on_virtual_clock(1);
    let start = clock.now();
    let mut job = scheduler.at(clock.wall() + secs(100)).run(|ctx| ctx.due()).unwrap();
    for step in [50u64, 10, 90, 1] {
        let wall = clock.wall();
        clock.step_wall(wall + secs(step)).unwrap();
        clock.step_wall(wall).unwrap();
        clock.step_wall(wall - secs(step)).unwrap();
        clock.step_wall(wall).unwrap();
    }
    clock.step_wall(clock.wall() - secs(100)).unwrap();
    clock.advance(secs(199)).unwrap();
    assert_eq!(job.wait_timeout(Duration::ZERO), None);
    clock.advance(secs(1)).unwrap();
    assert_eq!(job.wait(), Ok(start + secs(200)));
}

/// C17, C18: a step ahead over many ticks is one catch-up.
#[test]
fn a_cron_makes_up_for_a_step_ahead_once() {
    let (clock, scheduler) = on_virtual_clock(1);
    clock.step_wall(date("2024-01-01 12:30")).unwrap();
    let log = Log::new();
    let series = scheduler.cron(Cron::parse("0 * * * *").unwrap()).run(dating(&clock, &log)).unwrap();
    clock.step_wall(date("2024-01-02 12:30")).unwrap();
    clock.settle().unwrap();
    assert_eq!(log.all(), [(date("2024-01-02 12:30"), 23)]);
    clock.advance(secs(3_600)).unwrap();
    assert_eq!(log.all()[1..], [(date("2024-01-02 13:00"), 0)]);
    assert_eq!((series.runs(), series.missed()), (2, 23));
}

/// C17: "one catch-up", however many ticks passed; and the next tick of `Skip` is always after now.
#[test]
fn a_cron_makes_up_for_a_very_long_step_once_too() {
    in_time(|| {
        for missed in [Missed::Once, Missed::Skip] {
            let (clock, scheduler) = on_virtual_clock(1);
            let series = scheduler.cron(Cron::parse("* * * * * *").unwrap()).missed(missed).run(|_| ()).unwrap();
            clock.step_wall(clock.wall() + secs(250_000)).unwrap();
            clock.settle().unwrap();
            let next = series.next_due().expect("it goes on");
            assert!(next > clock.now() && next <= clock.now() + secs(1), "{missed:?}");
            assert_eq!(series.runs(), 1, "{missed:?}: one run at the step, and the next at the next second");
        }
    });
}

/// C12: a grid that begins at a date begins there, wherever the date is moved.
#[test]
fn a_grid_that_begins_at_a_date_follows_that_date() {
    let (clock, scheduler) = on_virtual_clock(1);
    let log = Log::new();
    let series = scheduler.every(secs(600)).first(clock.wall() + secs(3_600)).run(noting(&clock, &log)).unwrap();
    clock.step_wall(clock.wall() - secs(3_000)).unwrap();
    clock.advance(secs(7_800)).unwrap();
    assert_eq!(log.all(), at(&[6_600, 7_200, 7_800]), "an hour by the wall clock is 6,600 s now");
    assert_eq!(series.missed(), 0, "nothing was missed: the first tick had not come");
}

/// C12: ahead, too.
#[test]
fn a_grid_that_begins_at_a_date_follows_that_date_ahead() {
    let (clock, scheduler) = on_virtual_clock(1);
    let log = Log::new();
    let _series = scheduler.every(secs(600)).first(clock.wall() + secs(3_600)).run(noting(&clock, &log)).unwrap();
    clock.step_wall(clock.wall() + secs(3_300)).unwrap();
    clock.advance(secs(1_500)).unwrap();
    assert_eq!(log.all(), at(&[300, 900, 1_500]));
}

/// C18: "computed from the scheduled time and always after now".
#[test]
fn a_slow_cron_misses_ticks_and_stays_on_its_grid() {
    let (clock, scheduler) = on_virtual_clock(2);
    clock.step_wall(date("2024-01-01 12:00")).unwrap();
    let log = Log::new();
    let mut note = dating(&clock, &log);
    let run = move |ctx: Ctx| {
        let mut pause = ctx.after(secs(150)).run(|_| ()).unwrap();
        note(ctx);
        pause.wait().unwrap();
    };
    let series = scheduler.cron(Cron::parse("* * * * *").unwrap()).missed(Missed::Skip).run(run).unwrap();
    clock.advance(secs(600)).unwrap();
    let expected = [(1, 0), (4, 2), (7, 2), (10, 2)]
        .map(|(minute, missed)| (date("2024-01-01 12:00") + secs(minute * 60), missed));
    assert_eq!(log.all(), expected);
    assert_eq!((series.runs(), series.missed()), (3, 6));
}

/// C17
#[test]
fn a_period_of_zero_is_refused_and_the_closure_given_back() {
    let (clock, scheduler) = on_virtual_clock(1);
    let ran = Log::new();
    let log = ran.clone();
    let rejected = scheduler.every(Duration::ZERO).run(move |_| log.add(())).unwrap_err();
    assert_eq!(rejected.reason(), &Reason::ZeroPeriod);
    assert_eq!(
        scheduler.every(Duration::ZERO).fixed_delay().spawn(|_| async {}).unwrap_err().reason(),
        &Reason::ZeroPeriod
    );
    let series = scheduler.every(Duration::from_nanos(1)).run(rejected.into_job()).unwrap();
    clock.advance(Duration::from_nanos(100)).unwrap();
    assert_eq!((series.runs(), ran.len()), (100, 100), "one nanosecond is fine");
}

/// C19, C21: a series needs no handle and no help to go on for years.
#[test]
fn a_series_goes_on_for_years() {
    let (clock, scheduler) = on_virtual_clock(1);
    let series = scheduler.every(DAY).run(|_| ()).unwrap();
    clock.advance(DAY * 3_650).unwrap();
    assert_eq!((series.runs(), series.missed()), (3_650, 0));
    let next = series.next_due().unwrap();
    assert_eq!(next - clock.now(), DAY);
}
