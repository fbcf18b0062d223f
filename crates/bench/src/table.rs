//! Tables of figures as text.

/// A heading and lines. The first column is left-aligned text, the others are right-aligned figures.
#[derive(Debug)]
pub(crate) struct Columns(Vec<Vec<String>>);

impl Columns {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Columns(vec![heading.iter().map(|cell| (*cell).to_owned()).collect()])
    }

    pub(crate) fn line(&mut self, cells: Vec<String>) {
        self.0.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.0.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in &self.0 {
            let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats a figure with about three significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Rounds a figure for JSON to four decimal places; further digits are noise.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_right_aligned() {
        let mut columns = Columns::new(&["op", "ops/s"]);
        columns.line(vec!["create".to_owned(), figure(12.34)]);
        columns.line(vec!["ls".to_owned(), figure(123456.7)]);
        assert_eq!(columns.render(), "op       ops/s\ncreate    12.3\nls      123457\n");
        assert_eq!([0.0, 1.004, -3.456].map(figure), ["0", "1.00", "-3.46"]);
    }
}
