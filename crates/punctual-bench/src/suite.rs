//! The experiments: which cases each runs, and which columns its table shows.

use crate::peer::{BARE_WAIT, BASELINE, TENANT, Traits};
use crate::report::{Column, Show};
use crate::workload::{Case, Workload};

/// One table.
#[derive(Debug)]
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) cases: Vec<Case>,
    pub(crate) columns: Vec<Column>,
    /// Which peers can do it.
    pub(crate) takes_part: fn(&Traits) -> bool,
    /// Whether a bare timed wait stands beside them.
    pub(crate) beside_bare_wait: bool,
}

/// Sizes of a full run, or of one that only shows that everything works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Full,
    Quick,
}

impl Scale {
    /// The size of a full run, or a twentieth of it.
    fn entries(self, full: usize) -> usize {
        match self {
            Self::Full => full,
            Self::Quick => full / 20,
        }
    }

    fn seconds(self, full: u64) -> u64 {
        match self {
            Self::Full => full,
            Self::Quick => 1,
        }
    }
}

/// All experiments, in the order they run.
pub(crate) fn experiments(scale: Scale) -> Vec<Experiment> {
    vec![
        insert(scale),
        cancel(scale),
        growth(scale),
        fire(scale),
        burst(scale),
        precision(scale),
        consumers(scale),
        idle(scale),
        tenants(scale),
        pick(scale),
        revoke(scale),
        overload(scale),
    ]
}

fn case(workload: Workload, threads: usize, entries: usize, seconds: u64) -> Case {
    Case { workload, threads, entries, seconds }
}

fn everybody(peer: &Traits) -> bool {
    peer.delays
}

fn fires(peer: &Traits) -> bool {
    peer.fires
}

fn takes(peer: &Traits) -> bool {
    peer.takes
}

fn insert(scale: Scale) -> Experiment {
    let entries = scale.entries(1_000_000);
    Experiment {
        name: "insert",
        title: format!("Insert {entries} entries due in 10..70 s, ns per entry"),
        cases: vec![case(Workload::Insert, 1, entries, 0), case(Workload::Insert, 2, entries, 0)],
        columns: vec![
            Column::new("1 thread", 0, "wall_ns", Show::Spread),
            Column::new("x", 0, "wall_ns", Show::Times(BASELINE)),
            Column::new("CPU", 0, "cpu_ns", Show::Median),
            Column::new("x", 0, "cpu_ns", Show::Times(BASELINE)),
            Column::new("2 threads", 1, "wall_ns", Show::Spread),
            Column::new("x", 1, "wall_ns", Show::Times(BASELINE)),
            Column::new("CPU", 1, "cpu_ns", Show::Median),
        ],
        takes_part: everybody,
        beside_bare_wait: false,
    }
}

fn cancel(scale: Scale) -> Experiment {
    let entries = scale.entries(1_000_000);
    Experiment {
        name: "cancel",
        title: format!("Insert, and cancel the entry inserted 1,000 earlier: {entries} pairs, ns per pair"),
        cases: vec![case(Workload::Cancel, 1, entries, 0), case(Workload::Cancel, 2, entries, 0)],
        columns: vec![
            Column::new("1 thread", 0, "wall_ns", Show::Spread),
            Column::new("x", 0, "wall_ns", Show::Times(BASELINE)),
            Column::new("CPU", 0, "cpu_ns", Show::Median),
            Column::new("2 threads", 1, "wall_ns", Show::Spread),
            Column::new("x", 1, "wall_ns", Show::Times(BASELINE)),
            Column::new("CPU", 1, "cpu_ns", Show::Median),
            Column::new("MB left", 0, "left_mb", Show::Median),
            Column::new("entries left", 0, "left_entries", Show::Median),
        ],
        takes_part: everybody,
        beside_bare_wait: false,
    }
}

fn growth(scale: Scale) -> Experiment {
    let sizes: &[usize] = match scale {
        Scale::Full => &[10_000, 100_000, 1_000_000, 10_000_000],
        Scale::Quick => &[1_000, 10_000, 50_000, 100_000],
    };
    Experiment {
        name: "growth",
        title: format!("Growth: insert {} to {} entries, 1 thread, ns per entry", sizes[0], sizes[3]),
        cases: sizes.iter().map(|&entries| case(Workload::Insert, 1, entries, 0)).collect(),
        columns: vec![
            Column::new("1/1000 of the largest", 0, "wall_ns", Show::Median),
            Column::new("1/100", 1, "wall_ns", Show::Median),
            Column::new("1/10", 2, "wall_ns", Show::Spread),
            Column::new("largest", 3, "wall_ns", Show::Spread),
            Column::new("x", 3, "wall_ns", Show::Times(BASELINE)),
            Column::new("largest CPU", 3, "cpu_ns", Show::Median),
            Column::new("largest / (1/10)", 3, "wall_ns", Show::TimesCase(2)),
        ],
        takes_part: everybody,
        beside_bare_wait: false,
    }
}

fn fire(scale: Scale) -> Experiment {
    let entries = scale.entries(1_000_000);
    Experiment {
        name: "fire",
        title: format!("Fire {entries} entries within one second"),
        cases: vec![case(Workload::Fire, 1, entries, 1)],
        columns: vec![
            Column::new("wall ms", 0, "wall_ms", Show::Spread),
            Column::new("CPU ms", 0, "cpu_ms", Show::Spread),
            Column::new("x", 0, "cpu_ms", Show::Times(BASELINE)),
            Column::new("p50 us", 0, "p50_us", Show::Median),
            Column::new("p99 us", 0, "p99_us", Show::Spread),
            Column::new("x", 0, "p99_us", Show::Times(BASELINE)),
            Column::new("max us", 0, "max_us", Show::Median),
            Column::new("early", 0, "early", Show::Median),
            Column::new("switches", 0, "switches", Show::Median),
        ],
        takes_part: fires,
        beside_bare_wait: false,
    }
}

fn burst(scale: Scale) -> Experiment {
    let entries = scale.entries(1_000_000);
    Experiment {
        name: "burst",
        title: format!("Fire {entries} entries due at one instant: from the instant to the last one"),
        cases: vec![case(Workload::Fire, 1, entries, 0)],
        columns: vec![
            Column::new("wall ms", 0, "wall_ms", Show::Spread),
            Column::new("x", 0, "wall_ms", Show::Times(BASELINE)),
            Column::new("CPU ms", 0, "cpu_ms", Show::Spread),
            Column::new("x", 0, "cpu_ms", Show::Times(BASELINE)),
            Column::new("early", 0, "early", Show::Median),
            Column::new("switches", 0, "switches", Show::Median),
        ],
        takes_part: fires,
        beside_bare_wait: false,
    }
}

fn precision(scale: Scale) -> Experiment {
    let seconds = scale.seconds(5);
    Experiment {
        name: "precision",
        title: format!("Precision: 10,000 entries a second for {seconds} s, delays of 1..500 ms, lateness in us"),
        cases: vec![case(Workload::Precision, 1, 10_000 * seconds as usize, seconds)],
        columns: vec![
            Column::new("p50", 0, "p50_us", Show::Spread),
            Column::new("x", 0, "p50_us", Show::Times(BASELINE)),
            Column::new("p99", 0, "p99_us", Show::Spread),
            Column::new("/ bare", 0, "p99_us", Show::Times(BARE_WAIT)),
            Column::new("p99.9", 0, "p999_us", Show::Median),
            Column::new("/ bare", 0, "p999_us", Show::Times(BARE_WAIT)),
            Column::new("max", 0, "max_us", Show::Median),
            Column::new("early", 0, "early", Show::Median),
            Column::new("CPU ms", 0, "cpu_ms", Show::Median),
            Column::new("switches", 0, "switches", Show::Median),
        ],
        takes_part: fires,
        beside_bare_wait: true,
    }
}

fn consumers(scale: Scale) -> Experiment {
    let seconds = scale.seconds(3);
    Experiment {
        name: "consumers",
        title: format!("Eight blocked consumers, 50,000 entries a second for {seconds} s, lateness in us"),
        cases: vec![case(Workload::Consumers, 2, 50_000 * seconds as usize, seconds)],
        columns: vec![
            Column::new("CPU ms", 0, "cpu_ms", Show::Spread),
            Column::new("x", 0, "cpu_ms", Show::Times(BASELINE)),
            Column::new("p50", 0, "p50_us", Show::Median),
            Column::new("p99", 0, "p99_us", Show::Spread),
            Column::new("x", 0, "p99_us", Show::Times(BASELINE)),
            Column::new("/ bare", 0, "p99_us", Show::Times(BARE_WAIT)),
            Column::new("max", 0, "max_us", Show::Median),
            Column::new("early", 0, "early", Show::Median),
            Column::new("switches", 0, "switches", Show::Median),
        ],
        takes_part: takes,
        beside_bare_wait: true,
    }
}

fn idle(scale: Scale) -> Experiment {
    let (entries, seconds) = (scale.entries(1_000_000), scale.seconds(10));
    Experiment {
        name: "idle",
        title: format!("Idle for {seconds} s with {entries} entries due in an hour"),
        cases: vec![case(Workload::Idle, 1, entries, seconds)],
        columns: vec![
            Column::new("bytes per entry", 0, "entry_bytes", Show::Spread),
            Column::new("x", 0, "entry_bytes", Show::Times(BASELINE)),
            Column::new("switches", 0, "switches", Show::Median),
            Column::new("CPU us", 0, "cpu_us", Show::Median),
        ],
        takes_part: everybody,
        beside_bare_wait: false,
    }
}

fn runs_jobs(peer: &Traits) -> bool {
    peer.jobs
}

fn is_tenant(peer: &Traits) -> bool {
    peer.name == TENANT
}

fn tenants(scale: Scale) -> Experiment {
    let jobs = scale.entries(1_000_000);
    Experiment {
        name: "tenants",
        title: format!("Submit and run {jobs} empty jobs on two workers, ns per job"),
        cases: vec![case(Workload::Tenants, 1, jobs, 0), case(Workload::Tenants, 2, jobs, 0)],
        columns: vec![
            Column::new("1 submitter", 0, "wall_ns", Show::Spread),
            Column::new("x", 0, "wall_ns", Show::Times(TENANT)),
            Column::new("CPU", 0, "cpu_ns", Show::Median),
            Column::new("jobs/s", 0, "jobs_per_s", Show::Median),
            Column::new("2 submitters", 1, "wall_ns", Show::Spread),
            Column::new("x", 1, "wall_ns", Show::Times(TENANT)),
            Column::new("CPU", 1, "cpu_ns", Show::Median),
            Column::new("jobs/s", 1, "jobs_per_s", Show::Median),
        ],
        takes_part: runs_jobs,
        beside_bare_wait: false,
    }
}

fn pick(scale: Scale) -> Experiment {
    Experiment {
        name: "pick",
        title: "Run jobs of 1, 1,000 and 100,000 tenants that all have work: pick, start, run, finish; ns per job"
            .to_owned(),
        cases: [1, 1_000, scale.entries(100_000)].map(|tenants| case(Workload::Pick, 1, tenants, 0)).to_vec(),
        columns: vec![
            Column::new("1 tenant", 0, "wall_ns", Show::Spread),
            Column::new("1,000", 1, "wall_ns", Show::Spread),
            Column::new("x", 1, "wall_ns", Show::TimesCase(0)),
            Column::new("100,000", 2, "wall_ns", Show::Spread),
            Column::new("x", 2, "wall_ns", Show::TimesCase(0)),
            Column::new("CPU, 1", 0, "cpu_ns", Show::Median),
            Column::new("1,000", 1, "cpu_ns", Show::Median),
            Column::new("100,000", 2, "cpu_ns", Show::Median),
        ],
        takes_part: is_tenant,
        beside_bare_wait: false,
    }
}

fn revoke(scale: Scale) -> Experiment {
    let (few, many) = (1_000, scale.entries(1_000_000));
    Experiment {
        name: "revoke",
        title: format!("Cancel {few} and {many} jobs that are due and wait, in no order, ns each"),
        cases: vec![case(Workload::Revoke, 1, few, 0), case(Workload::Revoke, 1, many, 0)],
        columns: vec![
            Column::new("few", 0, "wall_ns", Show::Spread),
            Column::new("many", 1, "wall_ns", Show::Spread),
            Column::new("x", 1, "wall_ns", Show::TimesCase(0)),
            Column::new("CPU", 1, "cpu_ns", Show::Median),
            Column::new("left", 1, "left_entries", Show::Median),
        ],
        takes_part: is_tenant,
        beside_bare_wait: false,
    }
}

fn overload(scale: Scale) -> Experiment {
    let seconds = scale.seconds(10);
    Experiment {
        name: "overload",
        title: format!("Ten times more jobs of a millisecond than two workers can do, for {seconds} s, 100 may wait"),
        cases: vec![case(Workload::Overload, 1, 0, seconds)],
        columns: vec![
            Column::new("ns per rejection", 0, "reject_ns", Show::Spread),
            Column::new("rejected", 0, "rejected", Show::Median),
            Column::new("accepted", 0, "accepted", Show::Median),
            Column::new("lateness p50 us", 0, "p50_us", Show::Median),
            Column::new("p99 us", 0, "p99_us", Show::Spread),
            Column::new("max us", 0, "max_us", Show::Median),
            Column::new("KB grown", 0, "grown_kb", Show::Spread),
        ],
        takes_part: is_tenant,
        beside_bare_wait: false,
    }
}
