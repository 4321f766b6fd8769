//! What the store and the node warn of, for a process that wants to hear it.

use std::collections::BTreeMap;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The fields of a warning as text, by name; its words are in `message`.
pub type Words = BTreeMap<String, String>;

/// Has all warnings of this process told to `heard`, whatever thread they come from.
///
/// # Panics
/// If the process listens already.
pub fn hear(heard: impl Fn(Words) + Send + Sync + 'static) {
    hear_from(Level::WARN, heard);
}

/// The same of what is told at this level too, and not only of warnings.
///
/// # Panics
/// If the process listens already.
pub fn hear_from(level: Level, heard: impl Fn(Words) + Send + Sync + 'static) {
    tracing::subscriber::set_global_default(Ear(level, heard)).expect("the first one");
}

struct Ear<F>(Level, F);

struct Fields(Words);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<F: Fn(Words) + Send + Sync + 'static> Subscriber for Ear<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "punctual" && metadata.is_event() && *metadata.level() <= self.0
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(Words::new());
        event.record(&mut fields);
        (self.1)(fields.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
