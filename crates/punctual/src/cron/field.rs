//! The fields of a cron expression: what each may hold, and how its text is spelled out as plain numbers.

use std::fmt;

/// What a field may hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    min: u8,
    max: u8,
    step_max: u8,
    /// Names of the values from `min` up.
    names: &'static [&'static str],
    special: Special,
    /// The allowed values, for people.
    values: &'static str,
}

/// Entries that only one field knows.
#[derive(Debug, PartialEq, Eq)]
enum Special {
    None,
    /// `L`, `LW`, `15W`.
    DayOfMonth,
    /// `FRI#2`, `FRIL`, a leading `+`.
    DayOfWeek,
}

pub(super) const SECONDS: usize = 0;
pub(super) const MINUTES: usize = 1;
pub(super) const HOURS: usize = 2;
pub(super) const DAY_OF_MONTH: usize = 3;

pub(super) static FIELDS: [Field; 6] = [
    Field::of_time("seconds", 59, "0 to 59"),
    Field::of_time("minutes", 59, "0 to 59"),
    Field::of_time("hours", 23, "0 to 23"),
    Field {
        name: "day of month",
        min: 1,
        max: 31,
        step_max: 31,
        names: &[],
        special: Special::DayOfMonth,
        values: "1 to 31, L, LW or 1W to 31W",
    },
    Field {
        name: "month",
        min: 1,
        max: 12,
        step_max: 12,
        names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
        special: Special::None,
        values: "1 to 12 or JAN to DEC",
    },
    Field {
        name: "day of week",
        min: 0,
        max: 7,
        step_max: 7,
        names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
        special: Special::DayOfWeek,
        values: "0 to 7 or SUN to SAT, optionally with #1 to #5 or L after it",
    },
];

/// A field that was understood.
pub(super) struct Reading {
    /// The same field as `*` or as a list without ranges, steps and names.
    pub(super) spelled: String,
    pub(super) wild: bool,
}

impl Field {
    const fn of_time(name: &'static str, max: u8, values: &'static str) -> Self {
        Self {
            name,
            min: 0,
            max,
            // A step of the whole range still means what it says (`*/60` is once an hour); `*/90` does not.
            step_max: max + 1,
            names: &[],
            special: Special::None,
            values,
        }
    }

    pub(super) fn read(&self, text: &str) -> Result<Reading, Flaw> {
        let text = text.to_ascii_uppercase();
        let (plus, list) = match text.strip_prefix('+') {
            Some(list) if self.special == Special::DayOfWeek => ("+", list),
            _ => ("", text.as_str()),
        };
        let anything = matches!(list, "*" | "*/1") || (list == "?" && self.special != Special::None);
        if anything {
            return Ok(Reading { spelled: format!("{plus}*"), wild: true });
        }
        let mut spelled = Vec::new();
        let mut wild = false;
        for entry in list.split(',') {
            wild |= self.read_entry(entry, &mut spelled)?;
        }
        let has = |last: &str| spelled.iter().any(|entry| entry == last);
        // croner would forget the L.
        if has("L") && has("LW") {
            return Err(Flaw::TwoLasts);
        }
        Ok(Reading { spelled: plus.to_owned() + &spelled.join(","), wild })
    }

    /// Spells one list entry out and says whether it is wild.
    fn read_entry(&self, entry: &str, spelled: &mut Vec<String>) -> Result<bool, Flaw> {
        if self.special == Special::DayOfMonth {
            if matches!(entry, "L" | "LW") {
                spelled.push(entry.to_owned());
                return Ok(false);
            }
            if let Some(day) = entry.strip_suffix('W') {
                spelled.push(format!("{}W", self.value(day)?));
                return Ok(false);
            }
        }
        let (entry, nth) = self.split_nth(entry)?;
        let (range, step) = match entry.split_once('/') {
            Some((range, step)) if range == "*" || range.contains('-') => (range, self.step(step)?),
            Some(_) => return Err(Flaw::Step),
            None => (entry, 1),
        };
        let (low, high) = self.range(range)?;
        for value in (low..=high).step_by(step) {
            // Sunday is 7 as the end of a range and 0 everywhere else; croner looks for the last one under 0 only.
            let value = match self.special {
                Special::DayOfWeek => value % 7,
                Special::None | Special::DayOfMonth => value,
            };
            spelled.push(format!("{value}{nth}"));
        }
        let spans_all = low == self.min && high == self.max;
        Ok(spans_all && step <= usize::from(high - low))
    }

    /// Splits `FRI#2` into `FRI` and `#2`, and `FRIL` into `FRI` and `#L`.
    fn split_nth<'a>(&self, entry: &'a str) -> Result<(&'a str, &'a str), Flaw> {
        if self.special != Special::DayOfWeek {
            return Ok((entry, ""));
        }
        if let Some(at) = entry.find('#') {
            let (days, nth) = entry.split_at(at);
            let steady = !days.contains(['*', '/']);
            let known = matches!(nth, "#1" | "#2" | "#3" | "#4" | "#5" | "#L");
            return (steady && known).then_some((days, nth)).ok_or(Flaw::Value);
        }
        Ok(entry.strip_suffix('L').map_or((entry, ""), |day| (day, "#L")))
    }

    fn range(&self, text: &str) -> Result<(u8, u8), Flaw> {
        if text == "*" {
            return Ok((self.min, self.max));
        }
        let Some((low, high)) = text.split_once('-') else {
            let value = self.value(text)?;
            return Ok((value, value));
        };
        let low = self.value(low)?;
        let high = match high {
            "SUN" if self.special == Special::DayOfWeek && low > 0 => self.max,
            _ => self.value(high)?,
        };
        (low <= high).then_some((low, high)).ok_or(Flaw::Backwards)
    }

    fn value(&self, text: &str) -> Result<u8, Flaw> {
        let mut named = (self.min..).zip(self.names);
        match named.find(|(_, name)| **name == text) {
            Some((value, _)) => Some(value),
            None => number(text).filter(|value| (self.min..=self.max).contains(value)),
        }
        .ok_or(Flaw::Value)
    }

    fn step(&self, text: &str) -> Result<usize, Flaw> {
        number(text).filter(|step| (1..=self.step_max).contains(step)).map(usize::from).ok_or(Flaw::Step)
    }
}

/// Digits only: `parse` alone would also take a sign.
fn number(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    Value,
    Backwards,
    Step,
    TwoLasts,
    Never,
}

impl Flaw {
    pub(super) fn explain(self, field: &Field, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value => write!(f, "values are {}", field.values),
            Self::Backwards => f.write_str("a range must not run backwards"),
            Self::Step => {
                let max = field.step_max;
                write!(f, "a step follows * or a range and is 1 to {max}")
            }
            Self::TwoLasts => f.write_str("L and LW exclude each other"),
            Self::Never => f.write_str("never matches, no year has such a day"),
        }
    }
}
