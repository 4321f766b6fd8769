//! From samples to a Markdown table: medians, ranges, ratios.

use crate::peer::BASELINE;
use crate::workload::Sample;

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    /// Which case of the experiment.
    case: usize,
    metric: &'static str,
    show: Show,
}

/// What a cell says about its samples.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Show {
    Median,
    /// The median and `[min..max]`.
    Spread,
    /// The median as a multiple of that peer's.
    Times(&'static str),
    /// The median as a multiple of the same peer's in another case.
    TimesCase(usize),
}

impl Column {
    pub(crate) fn new(title: &'static str, case: usize, metric: &'static str, show: Show) -> Self {
        Self { title, case, metric, show }
    }
}

/// One peer's samples: per case, per run.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) peer: &'static str,
    pub(crate) samples: Vec<Vec<Sample>>,
}

impl Row {
    pub(crate) fn new(peer: &'static str, cases: usize) -> Self {
        Self { peer, samples: vec![Vec::new(); cases] }
    }

    /// The values of a metric over the runs, in order of size.
    fn values(&self, case: usize, metric: &str) -> Vec<f64> {
        let mut values: Vec<f64> = self.samples[case].iter().filter_map(|sample| sample.get(metric)).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    fn median(&self, case: usize, metric: &str) -> Option<f64> {
        median(&self.values(case, metric))
    }

    /// The fewest runs behind any cell.
    fn runs(&self) -> usize {
        self.samples.iter().map(Vec::len).min().unwrap_or(0)
    }
}

/// The table, best first by its first column.
pub(crate) fn table(title: &str, columns: &[Column], mut rows: Vec<Row>) -> String {
    rows.retain(|row| row.samples.iter().any(|samples| !samples.is_empty()));
    let first = &columns[0];
    let key = |row: &Row| row.median(first.case, first.metric).unwrap_or(f64::INFINITY);
    rows.sort_by(|a, b| key(a).total_cmp(&key(b)));

    let titles = columns.iter().map(|column| column.title.to_owned());
    let mut text = format!("### {title}\n\n|peer|{}n|\n|---|", bars(titles));
    text.push_str(&"---:|".repeat(columns.len() + 1));
    text.push('\n');
    for row in &rows {
        let name = if row.peer == BASELINE { format!("**{}**", row.peer) } else { row.peer.to_owned() };
        let cells = columns.iter().map(|column| cell(column, row, &rows));
        text.push_str(&format!("|{name}|{}{}|\n", bars(cells), row.runs()));
    }
    text
}

fn bars(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| cell + "|").collect()
}

fn cell(column: &Column, row: &Row, rows: &[Row]) -> String {
    let values = row.values(column.case, column.metric);
    let Some(middle) = median(&values) else { return "-".to_owned() };
    let times = |other: Option<f64>| match other {
        Some(other) if other > 0.0 => format!("{:.2}", middle / other),
        _ => "-".to_owned(),
    };
    match column.show {
        Show::Median => number(middle),
        Show::Spread if values.len() < 2 => number(middle),
        Show::Spread => {
            format!("{} [{}..{}]", number(middle), number(values[0]), number(values[values.len() - 1]))
        }
        Show::Times(peer) => {
            let other = rows.iter().find(|row| row.peer == peer);
            times(other.and_then(|other| other.median(column.case, column.metric)))
        }
        Show::TimesCase(case) => times(row.median(case, column.metric)),
    }
}

/// Of sorted values.
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

    fn row(peer: &'static str, values: &[f64]) -> Row {
        let sample = |value: &f64| Sample::parse(&format!("sample wall_ns={value}")).unwrap();
        Row { peer, samples: vec![values.iter().map(sample).collect()] }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[1.0, 2.0, 4.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 8.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_table_is_sorted_and_states_ratios_to_the_baseline() {
        let columns =
            [Column::new("ns", 0, "wall_ns", Show::Spread), Column::new("x", 0, "wall_ns", Show::Times(BASELINE))];
        let rows = vec![row("slow", &[300.0, 310.0, 290.0]), row(BASELINE, &[150.0, 100.0, 200.0]), row("none", &[])];
        let expected = "### T\n\n|peer|ns|x|n|\n|---|---:|---:|---:|\n\
                        |**punctual-queue**|150 [100..200]|1.00|3|\n|slow|300 [290..310]|2.00|3|\n";
        assert_eq!(table("T", &columns, rows), expected);
    }
}
