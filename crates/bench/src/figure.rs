//! Figures as text and in JSON.

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
    fn figures_have_three_digits() {
        let shown = [0.0, 1.004, -3.456, 12.34, 123456.7].map(figure);
        assert_eq!(shown, ["0", "1.00", "-3.46", "12.3", "123457"]);
    }
}
