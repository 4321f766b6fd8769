//! Why an expression was not accepted, for whoever wrote it.

use std::fmt;

use super::EXPRESSION_MAX_BYTES;
use super::field::{Field, Flaw};

/// Why an expression or a zone was not accepted.
///
/// The message names the field, its text and what is allowed there.
///
/// ```
/// use punctual::Cron;
///
/// let error = Cron::parse("0 9 * * MON-FRY").unwrap_err();
/// assert_eq!(error.field(), Some("day of week"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronError(pub(super) Problem);

impl CronError {
    /// The field that is wrong: `seconds`, `minutes`, `hours`, `day of month`, `month` or `day of week`.
    /// `None` if the expression as a whole or the zone is.
    ///
    /// ```
    /// # use punctual::Cron;
    /// assert_eq!(Cron::parse("0 25 * * *").unwrap_err().field(), Some("hours"));
    /// assert_eq!(Cron::parse("* * *").unwrap_err().field(), None);
    /// ```
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match &self.0 {
            Problem::Field { field, .. } => Some(field.name),
            _ => None,
        }
    }
}

// One opaque error rather than public variants: whatever is wrong, the caller can only show it to who wrote the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    TooLong(usize),
    FieldCount { expression: String, found: usize },
    Nickname(String),
    Field { expression: String, field: &'static Field, text: String, flaw: Flaw },
    Zone(String),
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Problem::TooLong(bytes) => {
                write!(f, "cron of {bytes} bytes is too long ({EXPRESSION_MAX_BYTES})")
            }
            Problem::FieldCount { expression, found } => {
                write!(f, "cron {expression:?} has {found} fields: 5 are needed, or 6 with seconds first")
            }
            Problem::Nickname(expression) => write!(
                f,
                "unknown nickname in cron {expression:?}: nicknames are \
                 @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually"
            ),
            Problem::Field { expression, field, text, flaw } => {
                let name = field.name;
                write!(f, "bad {name} field {text:?} in cron {expression:?}: ")?;
                flaw.explain(field, f)
            }
            Problem::Zone(name) => {
                write!(f, "unknown time zone {name:?}: an IANA name such as \"Europe/Paris\" is needed")
            }
        }
    }
}

impl std::error::Error for CronError {}
