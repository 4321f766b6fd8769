//! Cron expressions: reads one, says which field is wrong if it is, and turns "every weekday at nine in Paris" into
//! instants, also on the days when the clocks change.
//!
//! Pure: no clock and no lock, `after` is always an argument. Only [`Cron::in_zone`] looks outside, for the zone's
//! rules.
//!
//! # The road
//! 1. Each field is checked here and spelled out as plain numbers, so an error can name the field, its text and its
//!    limits. [`croner`] sees only the spelled-out form: its own grammar takes names in any field (`JAN` as minute 1),
//!    skips empty list entries and never finds the last Sunday if it is written `7L`.
//! 2. [`croner`] walks the calendar in *civil* time, the time a wall clock shows, which knows no zone and no gaps.
//! 3. A zone is a row of [`Span`]s of constant offset. Inside one, civil time and instants are one subtraction apart;
//!    everything about daylight saving happens at the seams, in [`Cron::next_from`], and nowhere else.
//!
//! # Clock changes
//! A time field is *wild* if an entry of it spans the whole range and takes more than one value: `*`, `*/10`, `0-59`.
//!
//! | spec | example | clocks go forward (gap) | clocks go back (overlap) |
//! |---|---|---|---|
//! | fixed time: nothing wild | `30 2 * * *` | once, at the first instant after the gap | once, the first time round |
//! | hours named, minutes or seconds wild | `*/10 2 * * *` | once, at the first instant after the gap | both times round |
//! | hours wild | `*/10 * * * *`, `0 */2 * * *` | nothing extra | both times round |
//!
//! * A gap takes runs only from a spec that names its hours: the hour it waits for does not come that day. All that one
//!   gap swallows becomes one run at its end, and that is the regular run if the spec has one there. A spec with wild
//!   hours loses nothing, since no real time was skipped: `*/10 * * * *` still runs every ten minutes.
//! * In an overlap a fixed time means "once a day", but a wild field means "at a steady pace", and a pace must not
//!   pause for an hour. This is Vixie cron's rule: a star in the hour or minute field makes a job follow the clock as
//!   shown.
//! * The one departure from Vixie: its catch-up leaves out `*/10 2 * * *`, which then has no run at all on the day of a
//!   gap. A late run is better than a lost day.
//! * The rules hold for every change of offset, whatever its size or reason: half an hour on Lord Howe, midnight in
//!   Cairo, the whole 30 December 2011 on Samoa. There `0 9 * * *` runs as the 31st begins, then at nine; so does `0 9
//!   30 12 *`, because it was the date that vanished, not the wish.
//!
//! # Invariants
//! 1. A `Cron` that exists has a run after any instant before the year 5000: what never matches is an error when
//!    parsed.
//! 2. A run is a whole second and strictly after the instant asked about.

mod error;
mod field;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use croner::CronDateTime;
use croner::parser::CronParser;
use jiff::civil::{DateTime, date};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

pub use error::CronError;
use error::Problem;
use field::{DAY_OF_MONTH, FIELDS, Flaw, HOURS, MINUTES, SECONDS};

/// The longest expression that is read, in bytes: ten times the longest sensible one, so bad input stays cheap.
const EXPRESSION_MAX_BYTES: usize = 256;

/// Years that hold each of the 14 kinds of year (seven first weekdays, leap or not) at least once.
/// A day that occurs in none of them occurs in no year.
const ALL_KINDS_OF_YEAR: RangeInclusive<i16> = 2001..=2028;

/// The first year without runs; [`croner`] searches no further.
const YEAR_END: i16 = 5000;

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// A cron expression in a time zone: when a job runs again and again, by the calendar.
///
/// Five fields (`minutes hours day-of-month month day-of-week`) or six, with seconds first. A field holds `*`, values,
/// ranges `9-17`, steps `*/10` or `5-59/10`, and lists of these. Months and weekdays have names (`JAN`, `MON-FRI`);
/// Sunday is 0 or 7. Day of month also takes `L` (last day), `LW` (last weekday) and `15W` (weekday nearest the 15th);
/// day of week takes `FRI#2` (second Friday) and `FRIL` (last Friday). Nicknames: `@hourly`, `@daily`, `@midnight`,
/// `@weekly`, `@monthly`, `@yearly`, `@annually`. Case does not matter.
///
/// If both day fields are given, a day that fits either one counts, as POSIX says; `+` before the day of week asks for
/// both: `0 9 13 * +FRI` is every Friday the 13th. A day field of `*`, `?` or `*/1` is not given.
///
/// When the clocks go forward, a run whose hour is skipped happens once, at the first instant after the gap. When they
/// go back, a spec with fixed times runs once and one with `*` or `*/n` among its seconds, minutes or hours runs both
/// times.
///
/// Two of them are equal if their texts and their zones are.
///
/// ```
/// use punctual::Cron;
/// use std::time::UNIX_EPOCH;
///
/// let nine = Cron::parse("0 9 * * MON-FRI")?.in_zone("Europe/Paris")?;
/// let runs = nine.next_runs_after(UNIX_EPOCH, 3);
/// assert_eq!(runs[1].to_string(), "1970-01-02T09:00:00+01:00[Europe/Paris]");
/// assert_eq!(runs[2].to_string(), "1970-01-05T09:00:00+01:00[Europe/Paris]");
/// # Ok::<(), punctual::CronError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cron {
    expression: String,
    zone: TimeZone,
    // Shared: croner keeps 5 kB of years per pattern, and a `Cron` is cloned into every series that uses it.
    calendar: Arc<croner::Cron>,
    /// Its hours are named, so a run that falls into a gap is made up for at the gap's end.
    catches_up: bool,
    /// A time field is wild, so it runs both times round in an overlap.
    repeats: bool,
}

impl Cron {
    /// Reads an expression of five fields, six fields (seconds first) or a nickname; the zone is UTC.
    ///
    /// # Errors
    /// If the text is longer than 256 bytes, has another number of fields, a field is wrong, or no day ever matches.
    ///
    /// ```
    /// use punctual::Cron;
    ///
    /// assert!(Cron::parse("*/15 9-17 * * MON-FRI").is_ok());
    /// let error = Cron::parse("61 * * * *").unwrap_err();
    /// assert_eq!(error.to_string(), r#"bad minutes field "61" in cron "61 * * * *": values are 0 to 59"#);
    /// assert!(Cron::parse("0 0 30 2 *").is_err(), "no February has 30 days");
    /// ```
    pub fn parse(expression: &str) -> Result<Self, CronError> {
        if expression.len() > EXPRESSION_MAX_BYTES {
            return Err(CronError(Problem::TooLong(expression.len())));
        }
        let expression = expression.trim_ascii();
        let texts = split(expression)?;
        let in_field = |index: usize, flaw: Flaw| {
            CronError(Problem::Field {
                expression: expression.to_owned(),
                field: &FIELDS[index],
                text: texts[index].to_owned(),
                flaw,
            })
        };

        let mut spelled = Vec::with_capacity(FIELDS.len());
        let mut wild = [false; FIELDS.len()];
        for (index, field) in FIELDS.iter().enumerate() {
            let reading = field.read(texts[index]).map_err(|flaw| in_field(index, flaw))?;
            spelled.push(reading.spelled);
            wild[index] = reading.wild;
        }
        let calendar =
            CronParser::new().parse(&spelled.join(" ")).expect("fields hold only what croner knows, in range");
        // Weekdays alone always come round, so if nothing matches it is the day of month that asks for too much.
        if !matches_some_day(&calendar) {
            return Err(in_field(DAY_OF_MONTH, Flaw::Never));
        }
        Ok(Self {
            expression: expression.to_owned(),
            zone: TimeZone::UTC,
            calendar: Arc::new(calendar),
            catches_up: !wild[HOURS],
            repeats: wild[SECONDS] || wild[MINUTES] || wild[HOURS],
        })
    }

    /// Moves the expression to the time zone with this IANA name.
    ///
    /// # Errors
    /// If there is no zone of that name.
    ///
    /// ```
    /// use punctual::Cron;
    ///
    /// let daily = Cron::parse("@daily")?;
    /// assert_eq!(daily.clone().in_zone("Asia/Kathmandu")?.zone(), "Asia/Kathmandu");
    /// assert!(daily.in_zone("Mars/Olympus").is_err());
    /// # Ok::<(), punctual::CronError>(())
    /// ```
    pub fn in_zone(self, name: &str) -> Result<Self, CronError> {
        match TimeZone::get(name) {
            // "Etc/Unknown" is a valid name for no zone: it would run at UTC without a word.
            Ok(zone) if !zone.is_unknown() => Ok(Self { zone, ..self }),
            _ => Err(CronError(Problem::Zone(name.to_owned()))),
        }
    }

    /// The first run strictly after `after`; `None` only if that would be in the year 5000 or later.
    ///
    /// ```
    /// use punctual::Cron;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let hourly = Cron::parse("@hourly")?;
    /// assert_eq!(hourly.next_after(UNIX_EPOCH), Some(UNIX_EPOCH + Duration::from_secs(3600)));
    /// # Ok::<(), punctual::CronError>(())
    /// ```
    #[must_use]
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        self.next(timestamp(after)?).map(SystemTime::from)
    }

    /// The first `n` runs strictly after `after`, in the zone of this expression: a preview to show people.
    ///
    /// ```
    /// use punctual::Cron;
    /// use std::time::UNIX_EPOCH;
    ///
    /// let last_friday = Cron::parse("30 17 * * FRIL")?;
    /// let preview = last_friday.next_runs_after(UNIX_EPOCH, 2);
    /// assert_eq!(preview[0].to_string(), "1970-01-30T17:30:00+00:00[UTC]");
    /// assert_eq!(preview[1].to_string(), "1970-02-27T17:30:00+00:00[UTC]");
    /// # Ok::<(), punctual::CronError>(())
    /// ```
    #[must_use]
    pub fn next_runs_after(&self, after: SystemTime, n: usize) -> Vec<Zoned> {
        let first = timestamp(after).and_then(|after| self.next(after));
        std::iter::successors(first, |run| self.next(*run)).take(n).map(|run| run.to_zoned(self.zone.clone())).collect()
    }

    /// The expression as it was written, without the blanks around it.
    ///
    /// ```
    /// # use punctual::Cron;
    /// assert_eq!(Cron::parse(" @daily ")?.expression(), "@daily");
    /// # Ok::<(), punctual::CronError>(())
    /// ```
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The IANA name of the time zone.
    ///
    /// ```
    /// # use punctual::Cron;
    /// assert_eq!(Cron::parse("@daily")?.zone(), "UTC");
    /// # Ok::<(), punctual::CronError>(())
    /// ```
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zone.iana_name().expect("zones are only made from names")
    }

    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        // Below zero the fraction counts down, so dropping it already moves forward.
        let fraction_dropped = Timestamp::from_second(after.as_second()).ok()?;
        let from =
            if fraction_dropped > after { fraction_dropped } else { fraction_dropped.checked_add(SECOND).ok()? };
        let run = self.next_from(from);
        debug_assert!(run.is_none_or(|run| run > after), "a run is strictly after the instant asked about");
        run
    }

    /// The first run at or after `from`, span by span: this is where the rules about clock changes live.
    fn next_from(&self, mut from: Timestamp) -> Option<Timestamp> {
        let mut matches = Matches::new(&self.calendar);
        loop {
            let span = Span::around(&self.zone, from)?;
            let shown = span.offset.to_datetime(from);
            // What the clock would show had it not been changed: later than `shown` if it was put back.
            let unchanged = span.start.map(|start| span.offset_before.to_datetime(start));
            if let Some(gap_start) = unchanged
                && self.catches_up
                && span.start == Some(from)
                && matches.at_or_after(gap_start)? < shown
            {
                return Some(from);
            }
            let fresh = match unchanged {
                Some(overlap_end) if !self.repeats => shown.max(overlap_end),
                _ => shown,
            };
            let run = span.offset.to_timestamp(matches.at_or_after(fresh)?).ok()?;
            match span.end {
                Some(end) if run >= end => from = end,
                _ => return Some(run),
            }
        }
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.expression, self.zone())
    }
}

// Not derived: croner's pattern holds a value for each of 5000 years.
impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({self})")
    }
}

/// Reads what `Display` writes: an expression, then optionally ` in ` and a zone.
///
/// ```
/// use punctual::Cron;
///
/// let nine: Cron = "0 9 * * MON-FRI in Europe/Paris".parse()?;
/// assert_eq!(nine.zone(), "Europe/Paris");
/// assert_eq!(nine.to_string().parse::<Cron>()?, nine);
/// # Ok::<(), punctual::CronError>(())
/// ```
impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        match text.split_once(" in ") {
            Some((expression, zone)) => Self::parse(expression)?.in_zone(zone.trim_ascii()),
            None => Self::parse(text),
        }
    }
}

/// `None` past the range of [`Timestamp`]; before it, the earliest one will do, since no run lies between.
fn timestamp(time: SystemTime) -> Option<Timestamp> {
    match Timestamp::try_from(time) {
        Ok(timestamp) => Some(timestamp),
        Err(_) if time < SystemTime::UNIX_EPOCH => Some(Timestamp::MIN),
        Err(_) => None,
    }
}

/// A stretch of instants `start..end` in which a zone keeps one offset.
struct Span {
    start: Option<Timestamp>,
    offset_before: Offset,
    offset: Offset,
    end: Option<Timestamp>,
}

impl Span {
    fn around(zone: &TimeZone, instant: Timestamp) -> Option<Self> {
        let offset = zone.to_offset(instant);
        // A second later, because `preceding` leaves out a change at the very instant.
        let change = zone.preceding(instant.checked_add(SECOND).ok()?).next();
        let start = change.map(|change| change.timestamp());
        let offset_before = match start {
            Some(start) => zone.to_offset(start.checked_sub(SECOND).ok()?),
            None => offset,
        };
        let end = zone.following(instant).next().map(|change| change.timestamp());
        Some(Self { start, offset_before, offset, end })
    }
}

/// The civil times an expression matches. Remembers the last answer, so that a rare expression (29 February) walks the
/// calendar once and not again in each of the spans it skips.
struct Matches<'a> {
    calendar: &'a croner::Cron,
    /// `(asked, found)`: nothing matches from `asked` up to `found`.
    known: Option<(DateTime, DateTime)>,
}

impl<'a> Matches<'a> {
    fn new(calendar: &'a croner::Cron) -> Self {
        Self { calendar, known: None }
    }

    fn at_or_after(&mut self, civil: DateTime) -> Option<DateTime> {
        match self.known {
            Some((asked, found)) if asked <= civil && civil <= found => Some(found),
            _ => {
                let found = self.calendar.find_next_occurrence(&civil, true).ok();
                let found = found.filter(|found| found.year() < YEAR_END)?;
                self.known = Some((civil, found));
                Some(found)
            }
        }
    }
}

/// Whether any day of any year fits. One pass over [`ALL_KINDS_OF_YEAR`] rather than croner's search, which looks for
/// an impossible day up to the year 5000 and takes tens of milliseconds for it.
fn matches_some_day(calendar: &croner::Cron) -> bool {
    let fits = |midnight: DateTime| {
        let (day, weekday) = (midnight.to_civil(), midnight.civil_weekday());
        let pattern = &calendar.pattern;
        pattern.month_match(day.month()).unwrap_or(false)
            && pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    };
    let days = date(*ALL_KINDS_OF_YEAR.start(), 1, 1).at(0, 0, 0, 0).series(1.day());
    days.take_while(|day| ALL_KINDS_OF_YEAR.contains(&day.year())).any(fits)
}

/// The six field texts of an expression, with nicknames written out and seconds filled in.
fn split(expression: &str) -> Result<Vec<&str>, CronError> {
    let written_out = match expression.strip_prefix('@') {
        Some(name) => nickname(name).ok_or_else(|| CronError(Problem::Nickname(expression.to_owned())))?,
        None => expression,
    };
    let mut texts: Vec<&str> = written_out.split_ascii_whitespace().collect();
    match texts.len() {
        5 => texts.insert(0, "0"),
        6 => {}
        found => {
            return Err(CronError(Problem::FieldCount { expression: expression.to_owned(), found }));
        }
    }
    Ok(texts)
}

fn nickname(name: &str) -> Option<&'static str> {
    match name.to_ascii_lowercase().as_str() {
        "hourly" => Some("0 * * * *"),
        "daily" | "midnight" => Some("0 0 * * *"),
        "weekly" => Some("0 0 * * 0"),
        "monthly" => Some("0 0 1 * *"),
        "yearly" | "annually" => Some("0 0 1 1 *"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
