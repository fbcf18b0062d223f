//! The Prometheus text format, version 0.0.4: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::histogram::Summary;

/// The name and the value of a label.
pub type Label<'a> = (&'a str, &'a str);

/// A text that is being written. Names and help texts are constants of the program; label values are escaped.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// The `Content-Type` of the text.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// A number that only grows. Its name ends with `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, "", [("", value)]);
    }

    /// A counter for each value of a label.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family(name, help, "counter");
        for (of, value) in values {
            self.sample(name, &[(label, of)], value as f64);
        }
    }

    /// A counter of time.
    pub fn counter_seconds(&mut self, name: &str, help: &str, time: Duration) {
        self.family(name, help, "counter");
        self.sample(name, &[], time.as_secs_f64());
    }

    /// A number that can fall.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help, "", [("", value)]);
    }

    /// A gauge for each value of a label.
    pub fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        self.family(name, help, "gauge");
        for (of, value) in values {
            self.sample(name, &[(label, of)], value);
        }
    }

    /// Facts that do not change, as the labels of a gauge with the value 1.
    pub fn info(&mut self, name: &str, help: &str, labels: &[Label<'_>]) {
        self.family(name, help, "gauge");
        self.sample(name, labels, 1.0);
    }

    /// A histogram for each value of a label.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, Summary)>,
    ) {
        self.family(name, help, "histogram");
        for (of, Summary { buckets, count, sum }) in values {
            let own = (label, of);
            for (bound, value) in buckets {
                self.sample(&format!("{name}_bucket"), &[own, ("le", &bound.to_string())], value as f64);
            }
            self.sample(&format!("{name}_bucket"), &[own, ("le", "+Inf")], count as f64);
            self.sample(&format!("{name}_sum"), &[own], sum);
            self.sample(&format!("{name}_count"), &[own], count as f64);
        }
    }

    pub fn finish(self) -> String {
        self.0
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
    }

    /// A label without a name is left out.
    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: f64) {
        self.0.push_str(name);
        let mut separator = '{';
        for (label, text) in labels.iter().filter(|(label, _)| !label.is_empty()) {
            let _ = write!(self.0, "{separator}{label}=\"{}\"", escape(text));
            separator = ',';
        }
        if separator == ',' {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The samples of a text at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<Sample>);

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Samples {
    /// Reads a text that [`Text`] has written. `None` for anything that it does not write.
    pub fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(parse_sample).collect::<Option<_>>().map(Samples)
    }

    /// The sum of all samples with this name.
    pub fn sum(&self, name: &str) -> f64 {
        self.named(name).map(|sample| sample.value).sum()
    }

    /// The sum of the samples with this name whose label has one of the values.
    pub fn sum_of(&self, name: &str, label: &str, values: &[&str]) -> f64 {
        let is_one =
            |sample: &&Sample| sample.labels.get(label).is_some_and(|value| values.contains(&value.as_str()));
        self.named(name).filter(is_one).map(|sample| sample.value).sum()
    }

    /// The samples with this name by the values of a label.
    pub fn by<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.named(name).filter_map(move |sample| Some((sample.labels.get(label)?.as_str(), sample.value)))
    }

    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    while let Some(more) = rest.strip_prefix(['{', ',']) {
        let (label, after) = more.split_once("=\"")?;
        let (value, after) = parse_quoted(after)?;
        labels.insert(label.to_owned(), value);
        rest = after.strip_prefix('}').unwrap_or(after);
    }
    Some(Sample { name: name.to_owned(), labels, value: rest.strip_prefix(' ')?.parse().ok()? })
}

/// The unescaped text up to a quote, and the text after it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buckets, Histogram};

    #[test]
    fn text_has_the_format_of_prometheus() {
        let mut text = Text::default();
        text.counter("limen_a_total", "Help with a \\ and\na line.", 7);
        text.gauges("limen_b_bytes", "B.", "owner", [("x", 0.5), ("y", 3e20)]);
        text.info("limen_c_info", "C.", &[("path", "a\"b\\c\nd"), ("version", "1")]);
        let histogram = Histogram::new(Buckets::NUMBERS);
        histogram.record(2);
        histogram.record(500);
        let mut all = Text::default();
        all.histograms("limen_d", "D.", "op", [("create", histogram.summary())]);
        assert_eq!(
            text.finish(),
            "# HELP limen_a_total Help with a \\\\ and\\na line.\n\
             # TYPE limen_a_total counter\n\
             limen_a_total 7\n\
             # HELP limen_b_bytes B.\n\
             # TYPE limen_b_bytes gauge\n\
             limen_b_bytes{owner=\"x\"} 0.5\n\
             limen_b_bytes{owner=\"y\"} 300000000000000000000\n\
             # HELP limen_c_info C.\n\
             # TYPE limen_c_info gauge\n\
             limen_c_info{path=\"a\\\"b\\\\c\\nd\",version=\"1\"} 1\n"
        );
        let all = all.finish();
        assert!(all.starts_with(
            "# HELP limen_d D.\n# TYPE limen_d histogram\nlimen_d_bucket{op=\"create\",le=\"1\"} 0\n"
        ));
        assert!(all.ends_with(
            "le=\"256\"} 1\nlimen_d_bucket{op=\"create\",le=\"+Inf\"} 2\nlimen_d_sum{op=\"create\"} 502\n\
             limen_d_count{op=\"create\"} 2\n"
        ));
    }

    #[test]
    fn samples_are_read_as_they_were_written() {
        let mut text = Text::default();
        text.counters("limen_a_total", "A.", "op", [("x", 7), ("y \"\\\n}", 2)]);
        text.info("limen_c_info", "C.", &[("path", "{a,b=\"c\"}"), ("version", "1")]);
        text.gauge("limen_b", "B.", 1.5e-9);
        let samples = Samples::parse(&text.finish()).unwrap();
        assert_eq!(samples.sum("limen_a_total"), 9.0);
        assert_eq!(samples.sum_of("limen_a_total", "op", &["y \"\\\n}", "z"]), 2.0);
        assert_eq!(samples.by("limen_c_info", "path").collect::<Vec<_>>(), [("{a,b=\"c\"}", 1.0)]);
        assert_eq!((samples.sum("limen_b"), samples.sum("limen_absent")), (1.5e-9, 0.0));
        for broken in ["limen_a", "limen_a{op=\"x 1", "limen_a x", "limen_a{op} 1"] {
            assert_eq!(Samples::parse(broken), None, "{broken}");
        }
    }
}
