//! HTML in which every text is escaped.
//!
//! Markup comes only from string literals of this crate, because [`Html::raw`] takes nothing else. All other
//! text is escaped, so a name of a file cannot become markup.

/// A part of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Html(String);

impl Html {
    pub(crate) fn new() -> Self {
        Html::default()
    }

    /// Adds markup.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Adds text, for the content of an element or for a quoted attribute.
    pub(crate) fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        for letter in text.as_ref().chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                letter if letter.is_control() || changes_direction(letter) => {
                    self.0.extend(letter.escape_unicode());
                }
                letter => self.0.push(letter),
            }
        }
        self
    }

    /// Adds a number, with commas between thousands.
    pub(crate) fn number(&mut self, number: impl Into<u128>) -> &mut Self {
        self.0.push_str(&grouped(number.into()));
        self
    }

    /// Adds a number for an attribute, with at most two decimals.
    pub(crate) fn value(&mut self, value: f64) -> &mut Self {
        let value = if value.is_finite() { value } else { 0.0 };
        self.0.push_str(format!("{value:.2}").trim_end_matches('0').trim_end_matches('.'));
        self
    }

    /// Adds another part.
    pub(crate) fn html(&mut self, part: &Html) -> &mut Self {
        self.0.push_str(&part.0);
        self
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Whether a character changes the direction of the text after it, breaks a line, or has no width. A name
/// with such a character could look like another name.
fn changes_direction(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A number with commas between thousands.
pub(crate) fn grouped(number: u128) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let mut html = Html::new();
        html.raw("<b title=\"").text("\"><script>alert('x')</script>&\n\u{202e}").raw("\">");
        assert_eq!(
            html.into_text(),
            "<b title=\"&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;\\u{a}\\u{202e}\">"
        );
    }

    #[test]
    fn numbers_have_groups_of_thousands() {
        for (number, shown) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), shown);
        }
        let mut html = Html::new();
        html.value(1.5).raw(" ").value(2.0).raw(" ").value(f64::NAN).raw(" ").value(100.0);
        assert_eq!(html.into_text(), "1.5 2 0 100");
    }
}
