//! How fast the store in a file is, by itself. Beside each rate the CPU time of the whole process for each job, callers
//! included: what is left where others use the machine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use punctual::Clock;
use punctual_bench::durable::meter::Meter;
use punctual_bench::durable::table::Sample;
use punctual_bench::durable::wait::{in_parallel, wait};
use punctual_durable::{Beat, Claim, Finish, JobId, Moment, NewJob, NodeId, Query, SqliteStore, Store, Verdict};

const NODE: NodeId = NodeId::from_u64(1);

/// Measures it in this folder and prints a table.
pub(crate) fn measure(folder: PathBuf, relaxed: bool, divisor: u64) -> Result<()> {
    std::fs::create_dir_all(&folder)?;
    Bench { folder, relaxed, divisor }.measure()
}

struct Bench {
    folder: PathBuf,
    relaxed: bool,
    divisor: u64,
}

impl Bench {
    fn measure(&self) -> Result<()> {
        println!("| store in a file | per second | CPU us per job |\n|---|---|---|");
        for callers in [1, 16, 64] {
            let store = self.open(&format!("enqueue-{callers}"))?;
            row(&format!("enqueue, {callers} callers"), || self.enqueue(&store, callers))?;
        }
        let store = self.open("bulk")?;
        row("enqueue in bulk of 1,000", || bulk(&store, 200_000 / self.divisor, Moment::NOW))?;
        for (callers, batch) in [(1, 1), (1, 50), (1, 500), (4, 50), (4, 500), (64, 1)] {
            let store = self.open(&format!("run-{callers}-{batch}"))?;
            bulk(&store, if batch == 1 { 1_500 * callers } else { 100_000 } / self.divisor, Moment::NOW)?;
            row(&format!("claim + finish, {callers} callers, {batch} at a time"), || run(&store, callers, batch))?;
        }
        let parked = 1_000_000 / self.divisor;
        let store = self.open("parked")?;
        let far = Moment::After(Duration::from_secs(86_400));
        row(&format!("enqueue {parked} parked jobs"), || bulk(&store, parked, far))?;
        bulk(&store, 100_000 / self.divisor, Moment::NOW)?;
        row("claim + finish beside them, 1 caller, 500 at a time", || run(&store, 1, 500))?;
        drop(store);
        let began = Instant::now();
        let store = self.open("parked")?;
        println!("\nreopened with {parked} jobs in {:?}: {:?}", began.elapsed(), wait(store.totals())?);
        self.enqueue_beside_queries(&store)
    }

    /// One caller, while another looks again and again for what is not there: each time through all jobs.
    fn enqueue_beside_queries(&self, store: &SqliteStore) -> Result<()> {
        let (began, until) = (Instant::now(), Duration::from_millis(3_000 / self.divisor));
        let (mut count, mut longest, mut queries) = (0, Duration::ZERO, 0);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut looks = 0;
                while began.elapsed() < until {
                    let nobodys = Query { kind: Some("nobody".into()), ..Query::default() };
                    ensure!(wait(store.query(nobodys))?.jobs.is_empty());
                    looks += 1;
                }
                Ok::<u64, anyhow::Error>(looks)
            });
            while began.elapsed() < until {
                let asked = Instant::now();
                ensure!(wait(store.enqueue(vec![job(count, Moment::NOW)]))?[0].is_ok());
                longest = longest.max(asked.elapsed());
                count += 1;
            }
            queries = looks.join().map_err(|_| anyhow!("a query panicked"))??;
            Ok::<(), anyhow::Error>(())
        })?;
        println!(
            "beside {queries} queries that read them all: {count} enqueues by one caller, the longest {longest:?}"
        );
        Ok(())
    }

    fn open(&self, name: &str) -> Result<SqliteStore> {
        let options = SqliteStore::options();
        let options = if self.relaxed { options.relaxed() } else { options };
        Ok(options.open(self.folder.join(format!("{name}.db")), Clock::system())?)
    }

    /// Each caller waits for its one job before it asks for the next.
    fn enqueue(&self, store: &SqliteStore, callers: u64) -> Result<u64> {
        let (next, began) = (AtomicU64::new(0), Instant::now());
        let until = Duration::from_millis(3_000 / self.divisor);
        in_parallel(callers, |_| {
            let mut count = 0;
            while began.elapsed() < until {
                let number = next.fetch_add(1, Ordering::Relaxed);
                ensure!(wait(store.enqueue(vec![job(number, Moment::NOW)]))?[0].is_ok());
                count += 1;
            }
            Ok(count)
        })
    }
}

/// One line of the table: how many jobs were done, in what time, with how much CPU.
fn row(name: &str, work: impl FnOnce() -> Result<u64>) -> Result<()> {
    let meter = Meter::start(None)?;
    let jobs = work()?;
    let sample: Sample = meter.rate(jobs)?.into_iter().collect();
    let get = |metric| sample.get(metric).unwrap_or_default();
    println!("| {name} | {:.0} | {:.1} |", get("rate"), get("cpu_us"));
    Ok(())
}

fn bulk(store: &SqliteStore, jobs: u64, due: Moment) -> Result<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    let batches = jobs.div_ceil(1_000);
    for _ in 0..batches {
        let batch = (0..1_000).map(|_| job(NEXT.fetch_add(1, Ordering::Relaxed), due)).collect();
        wait(store.enqueue(batch))?;
    }
    Ok(batches * 1_000)
}

/// Runs until nothing is left; the handlers do nothing.
fn run(store: &SqliteStore, callers: u64, batch: usize) -> Result<u64> {
    let beat =
        Beat { node: NODE, name: String::new(), kinds: vec!["bench".into()], paused: vec![], workers: batch, era: 0 };
    wait(store.join(beat))?;
    in_parallel(callers, |_| {
        let mut count = 0;
        loop {
            let claim = Claim {
                node: NODE,
                max: batch,
                kinds: [("bench".to_owned(), batch)].into(),
                ahead: 0,
                spare: 0,
                era: 0,
            };
            let jobs = wait(store.claim(claim))?.jobs;
            if jobs.is_empty() {
                return Ok(count);
            }
            count += jobs.len() as u64;
            let finish = |record: punctual_durable::Record| Finish {
                id: record.job.id,
                fence: record.fence,
                verdict: Verdict::Succeeded("null".into()),
            };
            wait(store.finish(NODE, jobs.into_iter().map(finish).collect()))?;
        }
    })
}

/// 100 bytes of payload, and an id that rises with time as real ones do.
fn job(number: u64, due: Moment) -> NewJob {
    let id = JobId::from_u128(u128::from(number) << 64 | u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    NewJob {
        tenant: "acme".into(),
        payload: format!("\"{number:098}\""),
        due,
        max_attempts: 3,
        ..NewJob::new(id, "bench")
    }
}
