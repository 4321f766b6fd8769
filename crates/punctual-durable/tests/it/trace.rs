use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use punctual_durable::{Failure, Jobs};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::bed::{HOUR, SECOND, Say, say, wait, with_faults};

type Lines = Arc<Mutex<Vec<BTreeMap<String, String>>>>;

/// Writes down the spans of runs, and what is told by everybody, with its level.
#[derive(Clone, Default)]
struct Told {
    spans: Lines,
    events: Lines,
}

// Runs are on threads of their own, so the subscriber is everybody's.
static TOLD: LazyLock<Told> = LazyLock::new(|| {
    let told = Told::default();
    tracing::subscriber::set_global_default(told.clone()).unwrap();
    told
});

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "punctual" && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(BTreeMap::new());
        span.record(&mut fields);
        let mut spans = self.spans.lock().unwrap();
        spans.push(fields.0);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::from([("level".to_owned(), event.metadata().level().to_string())]));
        event.record(&mut fields);
        self.events.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The trace of whoever enqueues a job is in the span of its run, and in the hands of its handler.
#[test]
fn a_trace_goes_from_the_enqueue_to_the_run() {
    let told = &*TOLD;
    let jobs = wait(Jobs::builder().trace_with(|| Some("00-from-the-caller-01".into())).open("memory:")).unwrap();
    jobs.on(|_: Say, ctx| async move { Ok(ctx.trace().unwrap_or_default().to_owned()) });
    let _node = wait(jobs.start()).unwrap();
    let handle = wait(jobs.tenant("acme").now().enqueue(say("x"))).unwrap();
    let id = handle.id().to_string();
    assert_eq!(wait(handle.result()).unwrap(), "00-from-the-caller-01");
    let own = wait(jobs.now().trace("00-of-its-own-01").enqueue(say("y"))).unwrap();
    assert_eq!(wait(own.result()).unwrap(), "00-of-its-own-01");

    let spans = told.spans.lock().unwrap();
    let span = spans.iter().find(|span| span.get("id") == Some(&id)).unwrap();
    let field = |name: &str| span[name].as_str();
    assert_eq!((field("kind"), field("tenant"), field("attempt")), ("say", "acme", "1"));
    assert_eq!(field("traceparent"), "00-from-the-caller-01");
}

/// A job that failed again and again was seen by whoever looked at it, and nowhere else.
#[test]
fn what_went_wrong_is_in_the_log() {
    let told = &*TOLD;
    let jobs = wait(Jobs::open("memory:")).unwrap();
    jobs.on(|_: Say, ctx| async move {
        let closed = Failure::retry_after(std::time::Duration::ZERO, "the bank is closed");
        if ctx.attempt() < 2 { Err::<String, _>(closed) } else { Err(Failure::give_up("no such account")) }
    });
    let _node = wait(jobs.start()).unwrap();
    let handle = wait(jobs.tenant("acme").now().enqueue(say("x"))).unwrap();
    wait(handle.result()).unwrap_err();

    let (id, events) = (handle.id().to_string(), told.events.lock().unwrap());
    let of_it = events.iter().filter(|event| event.get("id") == Some(&id));
    let words = ["level", "message", "kind", "tenant", "attempt", "error"];
    let lines: Vec<String> = of_it.map(|event| words.map(|word| event[word].as_str()).join(" | ")).collect();
    let expected = [
        "INFO | an attempt has failed, and is made again | say | acme | 1 | the bank is closed",
        "WARN | a job has failed | say | acme | 2 | no such account",
    ];
    assert_eq!(lines, expected);
}

/// C51: an outage filled the log, several lines a second for as long as it lasted, and nothing said that it was over.
#[test]
fn an_outage_is_told_once_and_so_is_its_end() {
    let told = &*TOLD;
    let (bed, store) = with_faults();
    // Without a seed, so that its node has a name that no other test has.
    let jobs = wait(Jobs::builder().clock(&bed.clock).over(Arc::new(store.clone()))).unwrap();
    let node = wait(jobs.start()).unwrap();
    let id = node.id().to_string();
    let job = wait(jobs.after(SECOND).enqueue(say("x"))).unwrap();
    store.set_outage(true);
    bed.advance(HOUR);
    assert!(store.refusals() > 100, "it was asked again and again");
    store.set_outage(false);
    bed.advance(SECOND * 5);
    wait(job.cancel()).unwrap();
    let events = told.events.lock().unwrap();
    let of_it = events.iter().filter(|event| event.get("node") == Some(&id));
    let lines: Vec<String> = of_it.map(|event| format!("{} {}", event["level"], event["message"])).collect();
    assert_eq!(lines, ["WARN the store could not be asked", "INFO the store can be asked again"]);
}
