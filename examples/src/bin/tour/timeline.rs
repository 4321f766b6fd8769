//! Prints what happened when: one line per event, with a bar that shows where in the scene it was.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use punctual::Clock;

/// Columns of the bar.
const WIDTH: usize = 32;

/// The lines of one scene. Clones write to the same one.
#[derive(Clone)]
pub(crate) struct Timeline {
    clock: Clock,
    began: Instant,
    span: Duration,
    lines: Arc<Mutex<Vec<Duration>>>,
}

impl Timeline {
    /// Opens a scene that will last about `span`.
    pub(crate) fn open(title: &str, why: &str, span: Duration) -> Self {
        println!("\n{}\n{why}", bold(title));
        let clock = Clock::system();
        Self { began: clock.now(), clock, span, lines: Arc::default() }
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Something that was due at `due` has started.
    pub(crate) fn started(&self, due: Instant, what: &str) {
        let late = self.clock.now().checked_duration_since(due).expect("nothing is ever early");
        let due = due.saturating_duration_since(self.began);
        self.lines.lock().expect("no line panics").push(late);
        println!("  {}  due {:>8}  {:>7} late  {what}", self.bar(due), millis(due), micros(late));
    }

    /// Something happened, at no particular due instant.
    pub(crate) fn note(&self, what: &str) {
        let at = self.clock.now().saturating_duration_since(self.began);
        println!("  {}   at {:>8}                {what}", self.bar(at), millis(at));
    }

    /// Closes the scene with the worst lateness in it.
    pub(crate) fn close(&self, what: &str) {
        let lines = self.lines.lock().expect("no line panics");
        if let Some(worst) = lines.iter().max() {
            println!("  {} {what}, none early, the latest {} late", lines.len(), micros(*worst));
        }
    }

    fn bar(&self, at: Duration) -> String {
        let share = at.as_secs_f64() / self.span.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let column = ((share * WIDTH as f64) as usize).min(WIDTH - 1);
        (0..WIDTH).map(|at| if at == column { '●' } else { '·' }).collect()
    }
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

fn micros(duration: Duration) -> String {
    format!("{} us", duration.as_micros())
}

fn bold(text: &str) -> String {
    if std::io::stdout().is_terminal() { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}
