//! From samples to one Markdown table: medians, ranges, ratios.

use std::fmt;

use anyhow::{Context, Result};

use crate::works::{Metric, Work};

/// What one child process saw: names and numbers on one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample(Vec<(String, f64)>);

impl Sample {
    pub(crate) fn with(mut self, name: &str, value: f64) -> Self {
        self.0.push((name.to_owned(), value));
        self
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let line =
            text.lines().rev().find_map(|line| line.strip_prefix("sample ")).context("the child gave no sample")?;
        let pair = |word: &str| {
            let (name, value) = word.split_once('=').with_context(|| format!("{word:?} is no pair"))?;
            Ok((name.to_owned(), value.parse()?))
        };
        Ok(Self(line.split_whitespace().map(pair).collect::<Result<_>>()?))
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|&(_, value)| value)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sample")?;
        self.0.iter().try_for_each(|(name, value)| write!(f, " {name}={value:.4}"))
    }
}

/// All samples of one work.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) work: Work,
    pub(crate) ours: Vec<Sample>,
    pub(crate) theirs: Vec<Sample>,
}

impl Row {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, ours: Vec::new(), theirs: Vec::new() }
    }
}

/// One line for each number; `x` is ours as a multiple of theirs.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = "|work||punctual|to reach|apalis|x|n|\n|---|---|---:|---:|---:|---:|---:|\n".to_owned();
    for row in rows {
        for (number, metric) in row.work.metrics.iter().enumerate() {
            let title = if number == 0 { row.work.title } else { "" };
            text.push_str(&line(title, metric, row));
        }
    }
    text
}

fn line(title: &str, metric: &Metric, row: &Row) -> String {
    let (ours, theirs) = (values(&row.ours, metric.name), values(&row.theirs, metric.name));
    let times = match (median(&ours), median(&theirs)) {
        (Some(ours), Some(theirs)) if theirs > 0.0 => format!("{:.2}", ours / theirs),
        _ => "-".to_owned(),
    };
    let Metric { unit, wanted, .. } = metric;
    format!("|{title}|{unit}|{}|{wanted}|{}|{times}|{}|\n", spread(&ours), spread(&theirs), ours.len())
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
    use crate::works::works;

    #[test]
    fn a_sample_survives_its_line() {
        let sample = Sample::default().with("rate", 50.5).with("early", 0.0);
        assert_eq!(Sample::parse(&format!("talk\n{sample}\n")).unwrap(), sample);
        assert!(Sample::parse("talk").is_err());
    }

    #[test]
    fn a_table_states_medians_and_ratios() {
        let mut row = Row::new(works(1).remove(0));
        row.ours = [300.0, 100.0, 200.0].map(|rate| Sample::default().with("rate", rate)).into();
        row.theirs = vec![Sample::default().with("rate", 50.0)];
        let table = table(&[row]);
        assert!(table.contains("|enqueue, 1 caller|/s|200 [100..300]||50|4.00|3|"), "{table}");
    }
}
