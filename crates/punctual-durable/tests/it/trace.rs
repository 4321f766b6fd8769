use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use punctual_durable::Jobs;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::bed::{Say, say, wait};

/// Writes down the spans of runs, by job.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "punctual" && metadata.is_span()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(BTreeMap::new());
        span.record(&mut fields);
        let mut spans = self.0.lock().unwrap();
        spans.push(fields.0);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The trace of whoever enqueues a job is in the span of its run, and in the hands of its handler.
#[test]
fn a_trace_goes_from_the_enqueue_to_the_run() {
    let spans = Spans::default();
    // Runs are on threads of their own, so the subscriber is everybody's; other tests do not look.
    let _ = tracing::subscriber::set_global_default(spans.clone());
    let jobs = wait(Jobs::builder().trace_with(|| Some("00-from-the-caller-01".into())).open("memory:")).unwrap();
    jobs.on(|_: Say, ctx| async move { Ok(ctx.trace().unwrap_or_default().to_owned()) });
    let _node = wait(jobs.start()).unwrap();
    let handle = wait(jobs.tenant("acme").now().enqueue(say("x"))).unwrap();
    let id = handle.id().to_string();
    assert_eq!(wait(handle.result()).unwrap(), "00-from-the-caller-01");
    let own = wait(jobs.now().trace("00-of-its-own-01").enqueue(say("y"))).unwrap();
    assert_eq!(wait(own.result()).unwrap(), "00-of-its-own-01");

    let spans = spans.0.lock().unwrap();
    let span = spans.iter().find(|span| span.get("id") == Some(&id)).unwrap();
    let field = |name: &str| span[name].as_str();
    assert_eq!((field("kind"), field("tenant"), field("attempt")), ("say", "acme", "1"));
    assert_eq!(field("traceparent"), "00-from-the-caller-01");
}
