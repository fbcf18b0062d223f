//! The pages that list rows of one kind: sessions, live operations, quotas, garbage.

use crate::frame::{self, Page};
use crate::html::Html;
use crate::model::{Live, QuotaRow, SessionRow, Tone};
use crate::request::{Link, Query};
use crate::source::{Failure, Source};

/// The time after which the page of live operations loads again, in seconds.
const LIVE_SECS: u32 = 2;

pub(super) fn sessions(source: &dyn Source, _query: &Query, page: &mut Page) -> Result<(), Failure> {
    let sessions = source.sessions()?;
    let body = &mut page.body;
    frame::heading(
        body,
        "Sessions",
        "Each mount has a session, and renews it with heartbeats. The next mount removes a session whose process has ended.",
    );
    if let Some(tool) = &sessions.tool {
        body.raw("<div class=\"notice\">").text(tool).raw("</div>");
    }
    if sessions.rows.is_empty() {
        body.raw("<section class=\"card\"><p class=\"empty\">The volume is not mounted.</p></section>");
    }
    body.raw("<div class=\"grid\">");
    for row in &sessions.rows {
        session(body, row);
    }
    body.raw("</div>");
    if sessions.is_cut {
        frame::cut(body, "There are very many locks or unlinked files; they were not all counted.");
    }
    Ok(())
}

fn session(body: &mut Html, row: &SessionRow) {
    body.raw("<section class=\"card\"><h2><bdi>").text(&row.mountpoint).raw("</bdi> <small>on <bdi>");
    body.text(&row.host).raw("</bdi></small></h2><p>");
    frame::badge(body, row.health.tone, row.health.label);
    if !row.health.value.is_empty() {
        body.raw(" <span class=\"soft\">").text(&row.health.value).raw("</span>");
    }
    body.raw("</p><dl class=\"facts\">");
    let counts = [row.pid.into(), row.locks, row.unlinked].map(|count: u64| count.to_string());
    let facts = [
        ("Session", &row.id),
        ("Process", &counts[0]),
        ("Version", &row.version),
        ("Since", &row.since),
        ("Heartbeat", &row.heartbeat),
        ("Files with locks", &counts[1]),
        ("Unlinked, open", &counts[2]),
    ];
    for (label, value) in facts {
        body.raw("<div><dt>").raw(label).raw("</dt><dd><bdi>").text(value).raw("</bdi></dd></div>");
    }
    body.raw("</dl>");
    for note in &row.notes {
        frame::cut(body, note);
    }
    body.raw("</section>");
}

pub(super) fn live(source: &dyn Source, _query: &Query, page: &mut Page) -> Result<(), Failure> {
    let mounts = source.live()?;
    page.refresh_after(LIVE_SECS);
    let body = &mut page.body;
    frame::heading(
        body,
        "Live operations",
        "The work of this volume's mounts on this machine, as limen stats shows it. This page renews itself every two seconds.",
    );
    if mounts.is_empty() {
        body.raw("<section class=\"card\"><p class=\"empty\">This user and root have no mount of this volume on this machine.</p></section>");
    }
    for mount in &mounts {
        body.raw("<section class=\"card\"><h2><bdi>").text(&mount.mountpoint).raw("</bdi></h2>");
        match &mount.trouble {
            Some(trouble) => {
                body.raw("<p class=\"notice\">").text(trouble).raw("</p>");
            }
            None => operations(body, mount),
        }
        body.raw("</section>");
    }
    Ok(())
}

fn operations(body: &mut Html, mount: &Live) {
    if mount.history.len() > 1 {
        spark(body, &mount.history);
    }
    body.raw("<dl class=\"figures\">");
    for figure in &mount.figures {
        body.raw("<div><dt>")
            .raw(figure.label)
            .raw("</dt><dd class=\"")
            .raw(frame::tone(figure.tone))
            .raw("\">");
        body.text(&figure.value).raw("</dd></div>");
    }
    body.raw("</dl>");
    if mount.operations.is_empty() {
        body.raw("<p class=\"empty\">The kernel sent no request in this time.</p>");
        return;
    }
    let most = mount.operations.iter().map(|operation| operation.per_second).fold(0.0, f64::max);
    body.raw("<div class=\"scroll\"><table><thead><tr><th>Operation</th><th class=\"num\">per second</th>");
    body.raw("<th class=\"num\">mean time</th><th class=\"wide\">Rate</th></tr></thead><tbody>");
    for operation in &mount.operations {
        body.raw("<tr><td class=\"mono\">").text(&operation.name).raw("</td><td class=\"num\">");
        body.text(format!("{:.1}", operation.per_second)).raw("</td><td class=\"num\">");
        body.text(operation.mean_ms.map_or("–".to_owned(), |ms| format!("{ms:.3} ms")))
            .raw("</td><td class=\"wide\">");
        frame::bar(body, operation.per_second / most.max(f64::MIN_POSITIVE), Tone::Plain, "");
        body.raw("</td></tr>");
    }
    body.raw("</tbody></table></div>");
}

/// The rates of requests as a line.
fn spark(body: &mut Html, history: &[f64]) {
    let most = history.iter().copied().fold(1.0, f64::max);
    let step = 300.0 / (history.len() - 1) as f64;
    let line = |body: &mut Html| {
        for (at, rate) in history.iter().enumerate() {
            body.value(at as f64 * step).raw(",").value(58.0 - rate / most * 54.0).raw(" ");
        }
    };
    body.raw("<svg class=\"spark\" viewBox=\"0 0 300 60\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Requests per second\">");
    body.raw("<polygon class=\"area\" points=\"0,60 ");
    line(body);
    body.raw("300,60\"/><polyline class=\"line\" points=\"");
    line(body);
    body.raw("\"/></svg>");
}

pub(super) fn quotas(source: &dyn Source, _query: &Query, page: &mut Page) -> Result<(), Failure> {
    let quotas = source.quotas()?;
    let body = &mut page.body;
    frame::heading(
        body,
        "Quotas",
        "Limits of directories, users and groups, as limen quota list shows them. The counters are exact.",
    );
    body.raw("<section class=\"card\">");
    if quotas.rows.is_empty() {
        body.raw("<p class=\"empty\">The volume has no quotas. limen quota set creates one.</p>");
    } else {
        quota_table(body, &quotas.rows);
    }
    if quotas.is_cut {
        frame::cut(body, "There are more quotas; limen quota list shows them all.");
    }
    body.raw("</section>");
    Ok(())
}

pub(super) fn quota_table(body: &mut Html, rows: &[QuotaRow]) {
    body.raw("<div class=\"scroll\"><table><thead><tr><th>Quota</th><th>Bytes <span class=\"soft\">used / soft / hard</span></th>");
    body.raw("<th>Files <span class=\"soft\">used / soft / hard</span></th></tr></thead><tbody>");
    for row in rows {
        body.raw("<tr><td class=\"name\">");
        match &row.path {
            Some(path) => frame::link(body, &Link::to("/usage").bytes("path", path), "", path),
            None => _ = body.raw("<bdi>").text(&row.whose).raw("</bdi>"),
        }
        if !row.note.is_empty() {
            body.raw("<br>");
            frame::badge(body, row.tone, &row.note);
        }
        for (text, level) in [(&row.bytes, row.bytes_level), (&row.inodes, row.inodes_level)] {
            body.raw("</td><td class=\"wide\">").text(text);
            frame::level(body, level);
        }
        body.raw("</td></tr>");
    }
    body.raw("</tbody></table></div>");
}

pub(super) fn garbage(source: &dyn Source, _query: &Query, page: &mut Page) -> Result<(), Failure> {
    let garbage = source.garbage()?;
    let body = &mut page.body;
    frame::heading(
        body,
        "Garbage",
        "Garbage that the database knows of. Mounts remove slices in the background; limen gc also searches the object \
         store and the ACLs.",
    );
    body.raw("<section class=\"card\">");
    frame::facts(body, &garbage.facts);
    if garbage.is_cut {
        frame::cut(body, "Counting was cut off, so the numbers are lower bounds.");
    }
    body.raw("</section>");
    Ok(())
}
