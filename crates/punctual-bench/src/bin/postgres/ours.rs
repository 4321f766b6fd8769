//! The works on `Jobs` over a database: those that any store can do, and those of many tenants, many nodes and a
//! server.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use punctual::Limits;
use punctual_bench::durable::Place;
use punctual_bench::durable::meter::Meter;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::wait::{in_parallel, wait};
use punctual_bench::durable::work::Work;
use punctual_bench::durable::works::{self, Load, ONLY, call_steadily, drain, fill, load};
use punctual_durable::{Jobs, Outcome};

use crate::nodes::{self, Node};
use crate::place::{Databases, connect};

const NODES: u64 = 4;
const TENANTS: u64 = 1_000;
const WINDOWS: u32 = 8;

pub(crate) fn measure(work: &Work, place: &mut Databases) -> Result<Sample> {
    match work.name {
        "enqueue-1" | "enqueue-16" | "enqueue-64" => works::enqueue(work, place),
        "bulk-1" | "bulk-4" => works::bulk(work, place),
        "drain-64" | "drain-256" | "tenants-64" | "tenants-256" => {
            let jobs = filled(work, place)?;
            drain(&jobs, place.server(), work.callers, work.jobs)
        }
        "crowd" => crowd(work, place),
        "nodes-64" | "nodes-256" | "nodes-tenants-64" | "nodes-tenants-256" => drain_by_many(work, place),
        "latency" => works::latency(work, place),
        "latency-far" => latency_far(work, place),
        "dense" | "sparse" => works::lateness(work, place),
        "fair" => works::fair(work, place),
        "parked" => works::parked(work, place),
        "free" | "held" => windows(work, place),
        "kill-2" | "kill-10" => kill(work, place),
        other => Err(anyhow!("{other} is unknown")),
    }
}

/// A store with the jobs of one tenant, or of a thousand: all with a limit, which a claim must count.
fn filled(work: &Work, place: &Databases) -> Result<Jobs> {
    let jobs = place.open(ONLY)?;
    if work.name.contains("tenants") {
        let each = work.jobs / TENANTS;
        in_parallel(8, |caller| {
            for number in (caller..TENANTS).step_by(8) {
                let tenant = jobs.tenant(format!("tenant-{number:04}"));
                wait(tenant.set_limits(Limits::new().running_max(4)))?;
                wait(tenant.now().enqueue_many((0..each).map(load))).into_iter().try_for_each(|new| new.map(drop))?;
            }
            Ok(0)
        })?;
    } else {
        wait(jobs.tenant("acme").set_limits(Limits::new().running_max(10_000)))?;
        fill(&jobs, "acme", work.jobs, Duration::ZERO)?;
    }
    Ok(jobs)
}

/// One job of each of very many tenants, who were never heard of before.
fn crowd(work: &Work, place: &Databases) -> Result<Sample> {
    const CALLERS: u64 = 64;
    let jobs = place.open(ONLY)?;
    in_parallel(CALLERS, |caller| {
        for number in (caller..work.jobs).step_by(CALLERS as usize) {
            wait(jobs.tenant(format!("tenant-{number:06}")).now().enqueue(load(number)))?;
        }
        Ok(0)
    })?;
    drain(&jobs, place.server(), work.callers, work.jobs)
}

/// Several processes run what there is.
fn drain_by_many(work: &Work, place: &Databases) -> Result<Sample> {
    let store = filled(work, place)?;
    let mut nodes = (0..NODES).map(|_| Node::start(work, place)).collect::<Result<Vec<_>>>()?;
    let meter = Meter::start(place.server())?;
    nodes.iter_mut().try_for_each(Node::tell)?;
    let (mut spent, mut jobs) = (Duration::ZERO, 0);
    for node in &mut nodes {
        ensure!(node.answer()? == "works");
        let told = nodes::told(&Sample::parse(&node.answer()?)?);
        (spent, jobs) = (spent + told.0, jobs + told.1);
    }
    // A node that found nothing to do has answered, and may have run some more since: those whose tenant was at its
    // limit by others.
    while jobs < work.jobs && meter.elapsed() < Duration::from_secs(300) {
        thread::sleep(Duration::from_millis(1));
        jobs = wait(store.totals())?.ended[&Outcome::Succeeded];
    }
    let sample = meter.rate_with(jobs, spent)?.into_iter().collect();
    ensure!(jobs == work.jobs, "{jobs} of {} jobs ran", work.jobs);
    Ok(sample)
}

/// One process enqueues, another runs.
fn latency_far(work: &Work, place: &Databases) -> Result<Sample> {
    let jobs = place.open(ONLY)?;
    let mut node = Node::start(work, place)?;
    node.tell()?;
    ensure!(node.answer()? == "works");
    call_steadily(&jobs, work)?;
    node.tell()?;
    Sample::parse(&node.answer()?)
}

/// How the rate changes, with jobs that come as others end, while somebody keeps a snapshot open: nothing that is dead
/// can be cleared away.
fn windows(work: &Work, place: &Databases) -> Result<Sample> {
    let jobs = filled(work, place)?;
    place.settle()?;
    let mut holder = connect(&place.url)?;
    if work.name == "held" {
        holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")?;
    }
    jobs.on(|_: Load, _| std::future::ready(Ok(())));
    let node = wait(jobs.node().workers(work.callers as usize).start())?;
    let began = Instant::now();
    let (window, mut filled) = (Duration::from_millis(work.millis) / WINDOWS, work.jobs);
    let (mut before, mut rates) = ((began, 0), Vec::new());
    for number in 1..=WINDOWS {
        while began.elapsed() < window * number {
            let missing = (node.snapshot().succeeded + work.jobs).saturating_sub(filled);
            if missing < work.jobs / 10 {
                thread::sleep(Duration::from_millis(1));
            } else {
                fill(&jobs, "acme", missing, Duration::ZERO)?;
                filled += missing;
            }
        }
        let (at, done) = (Instant::now(), node.snapshot().succeeded);
        rates.push((done - before.1) as f64 / (at - before.0).as_secs_f64());
        before = (at, done);
    }
    let (first, last) = (rates[0], rates[rates.len() - 1]);
    let sample = Sample::default().with("first", first).with("last", last).with("share", last / first);
    Ok(rates.iter().zip(1..).fold(sample, |sample, (rate, number)| sample.with(&format!("w{number}"), *rate)))
}

/// A node dies in the middle of a job, another waits.
fn kill(work: &Work, place: &mut Databases) -> Result<Sample> {
    place.query = format!("?lease={}s", work.jobs);
    let mut node = Node::start(work, place)?;
    let jobs = place.open(ONLY)?;
    node.tell()?;
    ensure!(node.answer()? == "works");
    wait(jobs.tenant("acme").now().enqueue(load(0)))?;
    ensure!(node.answer()? == "running");
    let (ran, runs) = mpsc::channel();
    jobs.on(move |_: Load, _| {
        let _ = ran.send(Instant::now());
        std::future::ready(Ok(()))
    });
    let _other = wait(jobs.start())?;
    // Somewhere between two of its heartbeats.
    thread::sleep(Duration::from_millis(u64::from(std::process::id()) * 37 % (work.jobs * 400)));
    drop(node);
    let killed = Instant::now();
    let again = runs.recv_timeout(Duration::from_secs(120)).context("it never ran again")?;
    Ok(Sample::default().with("seconds", again.duration_since(killed).as_secs_f64()))
}
