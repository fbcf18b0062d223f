//! The parts that pages share: the document with its navigation, links, labels with values, and bars.

use crate::html::Html;
use crate::model::{Fact, Level, Tone};
use crate::request::{Link, to_hex};

const STYLE: &str = include_str!("style.css");

/// The pages in the navigation: address and name.
const PAGES: [(&str, &str); 7] = [
    ("/", "Overview"),
    ("/usage", "Usage"),
    ("/access", "Access"),
    ("/sessions", "Sessions"),
    ("/live", "Live"),
    ("/quotas", "Quotas"),
    ("/garbage", "Garbage"),
];

/// A page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    status: &'static str,
    title: String,
    volume: Option<String>,
    /// The address of the page in the navigation.
    at: &'static str,
    /// CSS rules for this page. They contain numbers only.
    style: String,
    /// The number of seconds after which the browser loads the page again.
    refresh: Option<u32>,
    pub(crate) body: Html,
}

impl Page {
    pub(crate) fn new(title: impl Into<String>, volume: Option<String>, at: &'static str) -> Page {
        Page {
            status: "200 OK",
            title: title.into(),
            volume,
            at,
            style: String::new(),
            refresh: None,
            body: Html::new(),
        }
    }

    #[must_use]
    pub(crate) fn with_status(self, status: &'static str) -> Page {
        Page { status, ..self }
    }

    pub(crate) fn refresh_after(&mut self, secs: u32) {
        self.refresh = Some(secs);
    }

    /// The area of element `number`, in percent of its container.
    pub(crate) fn place(&mut self, number: usize, left: f64, top: f64, width: f64, height: f64) {
        self.style.push_str(&format!(
            ".t{number}{{left:{left:.3}%;top:{top:.3}%;width:{width:.3}%;height:{height:.3}%}}"
        ));
    }

    pub(crate) fn status(&self) -> &'static str {
        self.status
    }

    /// The document. `nonce` is a string of hexadecimal digits. The browser applies only the style that has
    /// this nonce.
    pub(crate) fn render(&self, nonce: &str) -> String {
        let mut html = Html::new();
        html.raw("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>")
            .text(&self.title)
            .raw(" – limen</title><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")
            .raw("<meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">");
        if let Some(secs) = self.refresh {
            html.raw("<meta http-equiv=\"refresh\" content=\"").number(secs).raw("\">");
        }
        html.raw("<style nonce=\"").text(nonce).raw("\">").raw(STYLE);
        // The rules hold only numbers, so there is nothing to escape.
        html.text(&self.style)
            .raw("</style></head><body><a class=\"skip\" href=\"#main\">Skip to content</a>");
        if let Some(volume) = &self.volume {
            html.raw("<header class=\"top\"><a class=\"brand\" href=\"/\">")
                .raw(MARK)
                .raw("<span>limen</span></a>");
            html.raw("<span class=\"volume\" title=\"Volume\"><bdi>").text(volume).raw("</bdi></span>");
            html.raw("<nav aria-label=\"Pages\"><ul>");
            for (address, name) in PAGES {
                html.raw("<li><a href=\"").text(address).raw("\"");
                if address == self.at {
                    html.raw(" aria-current=\"page\"");
                }
                html.raw(">").text(name).raw("</a></li>");
            }
            html.raw("</ul></nav><span class=\"readonly\">read-only</span></header>");
        }
        html.raw("<main id=\"main\">").html(&self.body).raw("</main>");
        html.raw("<footer>Answers come from the volume’s metadata database. Nothing here changes the volume.</footer>");
        html.raw("</body></html>");
        html.into_text()
    }
}

/// The logo: a doorway with its threshold, which is "limen" in Latin.
const MARK: &str = "<svg class=\"mark\" viewBox=\"0 0 24 24\" width=\"22\" height=\"22\" aria-hidden=\"true\">\
<path d=\"M4 21V8a8 8 0 0 1 16 0v13\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2.4\" stroke-linecap=\"round\"/>\
<path d=\"M2 21h20\" stroke=\"currentColor\" stroke-width=\"2.4\" stroke-linecap=\"round\"/></svg>";

/// A name or path. Its writing direction cannot affect the text around it.
pub(crate) fn name(html: &mut Html, bytes: &[u8]) {
    html.raw("<bdi>").text(command::paths::show_name(bytes)).raw("</bdi>");
}

/// A link around a name.
pub(crate) fn link(html: &mut Html, to: &Link, class: &'static str, bytes: &[u8]) {
    html.raw("<a class=\"").raw(class).raw("\" href=\"").text(to).raw("\">");
    name(html, bytes);
    html.raw("</a>");
}

pub(crate) fn heading(html: &mut Html, title: &str, about: &str) {
    html.raw("<div class=\"head\"><h1>").text(title).raw("</h1>");
    if !about.is_empty() {
        html.raw("<p class=\"about\">").text(about).raw("</p>");
    }
    html.raw("</div>");
}

/// The class of a tone.
pub(crate) fn tone(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Good => "good",
        Tone::Warn => "warn",
        Tone::Bad => "bad",
    }
}

/// A short text whose colour shows a tone.
pub(crate) fn badge(html: &mut Html, of: Tone, text: impl AsRef<str>) {
    html.raw("<span class=\"badge ").raw(tone(of)).raw("\">").text(text).raw("</span>");
}

/// Labels and values.
pub(crate) fn facts<'a>(html: &mut Html, facts: impl IntoIterator<Item = &'a Fact>) {
    html.raw("<dl class=\"facts\">");
    for fact in facts {
        html.raw("<div><dt>").text(fact.label).raw("</dt><dd class=\"").raw(tone(fact.tone)).raw("\"><bdi>");
        html.text(&fact.value).raw("</bdi></dd></div>");
    }
    html.raw("</dl>");
}

/// A bar for a share of a whole, with a label for screen readers.
pub(crate) fn bar(html: &mut Html, share: f64, of: Tone, label: &str) {
    let share = share.clamp(0.0, 1.0) * 100.0;
    // A share above zero is always visible.
    let width = if share > 0.0 { share.max(0.8) } else { 0.0 };
    html.raw("<svg class=\"bar ")
        .raw(tone(of))
        .raw("\" viewBox=\"0 0 100 6\" preserveAspectRatio=\"none\" role=\"img\"");
    html.raw(" aria-label=\"").text(label).raw("\"><rect class=\"track\" width=\"100\" height=\"6\"/>");
    html.raw("<rect class=\"fill\" height=\"6\" width=\"").value(width).raw("\"/></svg>");
}

/// The bar of an amount with a limit.
pub(crate) fn level(html: &mut Html, level: Level) {
    if let Some(share) = share(level) {
        bar(html, share, tone_of(share), &format!("{:.0} % used", share * 100.0));
    }
}

pub(crate) fn share(Level { used, limit }: Level) -> Option<f64> {
    match limit {
        None => None,
        Some(0) => Some(1.0),
        Some(limit) => Some(used as f64 / limit as f64),
    }
}

pub(crate) fn tone_of(share: f64) -> Tone {
    if share >= 1.0 {
        Tone::Bad
    } else if share >= 0.8 {
        Tone::Warn
    } else {
        Tone::Plain
    }
}

/// The directories of a path as links.
pub(crate) fn crumbs(html: &mut Html, path: &[u8], link_to: impl Fn(&[u8]) -> Link) {
    html.raw("<nav class=\"crumbs\" aria-label=\"Path\"><ol><li>");
    link(html, &link_to(b"/"), "root", b"/");
    html.raw("</li>");
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut at = Vec::new();
    for name in names {
        at.push(b'/');
        at.extend_from_slice(name);
        html.raw("<li>");
        link(html, &link_to(&at), "crumb", name);
        html.raw("</li>");
    }
    html.raw("</ol></nav>");
}

/// A hidden field of a form.
pub(crate) fn hidden(html: &mut Html, name: &'static str, value: &str) {
    html.raw("<input type=\"hidden\" name=\"").raw(name).raw("\" value=\"").text(value).raw("\">");
}

/// A hidden field for the bytes of a path; see [`crate::request`].
pub(crate) fn hidden_path(html: &mut Html, path: &[u8]) {
    hidden(html, "hex", &to_hex(path));
}

/// A note that something is cut off.
pub(crate) fn cut(html: &mut Html, text: &str) {
    html.raw("<p class=\"cut\">").text(text).raw("</p>");
}
