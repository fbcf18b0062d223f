//! The first page: the state of the volume at a glance.

use command::units::show_size;

use super::tables::quota_table;
use crate::frame::{self, Page};
use crate::html::{Html, grouped};
use crate::model::{Level, Overview, Tone};
use crate::request::Query;
use crate::source::{Failure, Source};

pub(super) fn fill(source: &dyn Source, _query: &Query, page: &mut Page) -> Result<(), Failure> {
    let overview = source.overview()?;
    let body = &mut page.body;
    frame::heading(body, &source.name(), "");
    for warning in &overview.warnings {
        body.raw("<div class=\"notice\" role=\"status\">").text(warning).raw("</div>");
    }
    ask(source, body);
    body.raw("<div class=\"grid tiles\">");
    amount(body, "/usage", "Data", show_size, overview.bytes);
    amount(body, "/usage?by=inodes", "Files and directories", |count| grouped(count.into()), overview.inodes);
    tiles(body, &overview);
    body.raw("</div><div class=\"two\"><div>");
    body.raw("<section class=\"card\"><h2>Quotas near their limit</h2>");
    if overview.near.is_empty() {
        body.raw("<p class=\"empty\">No quota is above its soft limit or 80 % full.</p>");
    } else {
        quota_table(body, &overview.near);
    }
    body.raw("</section></div><div><section class=\"card\"><h2>Volume</h2>");
    frame::facts(body, &overview.facts);
    body.raw("</section></div></div>");
    Ok(())
}

/// The form for the most frequent question.
fn ask(source: &dyn Source, body: &mut Html) {
    body.raw("<section class=\"card\"><h2>Why can’t somebody open a file? <small>Pick a user and a path.</small></h2>");
    super::access::form(source, &Query::default(), body);
    body.raw("</section>");
}

fn amount(
    body: &mut Html,
    to: &'static str,
    label: &'static str,
    show: impl Fn(u64) -> String,
    level: Level,
) {
    body.raw("<a class=\"card tile\" href=\"").raw(to).raw("\"><div class=\"k\">").raw(label);
    body.raw("</div><div class=\"v\">").text(show(level.used)).raw("</div>");
    frame::level(body, level);
    body.raw("<div class=\"n\">");
    match level.limit {
        Some(limit) => body.text(format!("of {}", show(limit))),
        None => body.text("no limit is set"),
    };
    body.raw("</div></a>");
}

fn tiles(body: &mut Html, overview: &Overview) {
    let (sessions, unhealthy) = overview.sessions;
    body.raw("<a class=\"card tile\" href=\"/sessions\"><div class=\"k\">Mounts</div><div class=\"v\">");
    body.number(sessions as u64).raw("</div><div class=\"n\">");
    match (sessions, unhealthy) {
        (0, _) => _ = body.text("the volume is not mounted"),
        (_, 0) => frame::badge(body, Tone::Good, "all healthy"),
        (_, unhealthy) => frame::badge(body, Tone::Bad, format!("{unhealthy} need attention")),
    }
    body.raw("</div></a>");
    let (all, above, full) = overview.quotas;
    body.raw("<a class=\"card tile\" href=\"/quotas\"><div class=\"k\">Quotas</div><div class=\"v\">")
        .number(all);
    body.raw("</div><div class=\"n\">");
    if full > 0 {
        frame::badge(body, Tone::Bad, format!("{full} full"));
    } else if above > 0 {
        frame::badge(body, Tone::Warn, format!("{above} above the soft limit"));
    } else {
        body.text(if all > 0 { "none is above its soft limit" } else { "none are set" });
    }
    body.raw("</div></a>");
    let backup = &overview.backup;
    body.raw(
        "<div class=\"card tile\"><div class=\"k\">Last backup of the metadata</div><div class=\"v word ",
    );
    body.raw(frame::tone(backup.tone)).raw("\">").text(backup.label).raw("</div><div class=\"n\">");
    body.text(&backup.value).raw("</div></div>");
}
