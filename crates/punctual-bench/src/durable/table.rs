//! From samples to one Markdown table: medians, ranges, ratios.

use std::fmt;

use anyhow::{Context, Result};

use super::work::{Metric, Work};

/// What one child process saw: names and numbers on one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample(Vec<(String, f64)>);

impl Sample {
    /// With one number more.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.0.push((name.to_owned(), value));
        self
    }

    /// Reads it from what a child said.
    ///
    /// # Errors
    /// If there is none in it.
    pub fn parse(text: &str) -> Result<Self> {
        let line =
            text.lines().rev().find_map(|line| line.strip_prefix("sample ")).context("the child gave no sample")?;
        let pair = |word: &str| {
            let (name, value) = word.split_once('=').with_context(|| format!("{word:?} is no pair"))?;
            Ok((name.to_owned(), value.parse()?))
        };
        Ok(Self(line.split_whitespace().map(pair).collect::<Result<_>>()?))
    }

    /// The number of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, value)| value)
    }
}

impl<'a> FromIterator<(&'a str, f64)> for Sample {
    fn from_iter<I: IntoIterator<Item = (&'a str, f64)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sample")?;
        self.0.iter().try_for_each(|(name, value)| write!(f, " {name}={value:.4}"))
    }
}

/// All samples of one work: ours, and those of each peer.
#[derive(Debug)]
pub struct Row {
    /// What was measured.
    pub work: Work,
    /// Our own.
    pub ours: Vec<Sample>,
    /// Of the peers, in the order of the table.
    pub theirs: Vec<Vec<Sample>>,
}

impl Row {
    /// With nothing measured yet.
    #[must_use]
    pub fn new(work: Work, peers: usize) -> Self {
        Self { work, ours: Vec::new(), theirs: vec![Vec::new(); peers] }
    }
}

/// One line for each number; `x` is ours as a multiple of theirs.
#[must_use]
pub fn table(rows: &[Row], peers: &[&str]) -> String {
    let mut text = "|work||punctual|to reach|".to_owned();
    peers.iter().for_each(|peer| text.push_str(&format!("{peer}|x|")));
    text.push_str(&format!("n|\n|---|---|---:|---:|{}---:|\n", "---:|---:|".repeat(peers.len())));
    for row in rows {
        for (number, metric) in row.work.metrics.iter().enumerate() {
            let title = if number == 0 { row.work.title } else { "" };
            text.push_str(&line(title, metric, row));
        }
    }
    text
}

fn line(title: &str, metric: &Metric, row: &Row) -> String {
    let Metric { name, unit, wanted } = metric;
    let ours = values(&row.ours, name);
    let mut text = format!("|{title}|{unit}|{}|{wanted}|", spread(&ours));
    for theirs in &row.theirs {
        let theirs = values(theirs, name);
        let times = match (median(&ours), median(&theirs)) {
            (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
            _ => "-".to_owned(),
        };
        text.push_str(&format!("{}|{times}|", spread(&theirs)));
    }
    text.push_str(&format!("{}|\n", ours.len()));
    text
}

/// In order of size.
fn values(samples: &[Sample], metric: &str) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().filter_map(|sample| sample.get(metric)).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median and `[min..max]`.
fn spread(values: &[f64]) -> String {
    match (median(values), values) {
        (Some(middle), [first, .., last]) => format!("{} [{}..{}]", number(middle), number(*first), number(*last)),
        (Some(middle), _) => number(middle),
        (None, _) => "-".to_owned(),
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[values.len() / 2 - 1], upper) })
}

/// Three digits say all that such measurements can.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::work::metric;

    #[test]
    fn a_sample_survives_its_line() {
        let sample = Sample::default().with("rate", 50.5).with("early", 0.0);
        assert_eq!(Sample::parse(&format!("talk\n{sample}\n")).unwrap(), sample);
        assert!(Sample::parse("talk").is_err());
    }

    #[test]
    fn a_table_states_medians_and_ratios() {
        let metrics = const { &[metric("rate", "/s", "")] };
        let work = Work { name: "x", title: "enqueue", callers: 1, jobs: 0, millis: 0, peers: &[], metrics };
        let mut row = Row::new(work, 2);
        row.ours = [300.0, 100.0, 200.0].map(|rate| Sample::default().with("rate", rate)).into();
        row.theirs[1] = vec![Sample::default().with("rate", 50.0)];
        let table = table(&[row], &["one", "two"]);
        let wanted = "|work||punctual|to reach|one|x|two|x|n|\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n\
                      |enqueue|/s|200 [100..300]||-|-|50|4.00|3|\n";
        assert_eq!(table, wanted);
    }
}
