//! The pages about access: a tree as a user sees it, a file and the users that can reach it, and why.

use command::units::{counted, plural};

use super::usage::joined;
use crate::frame::{self, Page};
use crate::html::Html;
use crate::model::{
    AccessAnswer, AccessQuery, Explanation, File, Holders, Listing, PermissionChange, Remedy, Step, Tone,
};
use crate::request::{Link, Query};
use crate::source::{Failure, Source};

/// The operations of `--want`, each in words.
const WANTS: [(&str, &str); 9] = [
    ("r", "read or list"),
    ("w", "write"),
    ("rw", "read and write"),
    ("x", "run or enter"),
    ("delete", "delete"),
    ("create", "create"),
    ("chmod", "change permissions"),
    ("chown", "change the owner"),
    ("touch", "set the times"),
];

pub(super) fn asked(query: &Query) -> AccessQuery {
    AccessQuery {
        user: query.text("user").map(str::to_owned),
        groups: query.text("groups").map(str::to_owned),
        path: query.path().unwrap_or_else(|| b"/".to_vec()),
        want: query.text("want").unwrap_or("r").to_owned(),
        after: query.bytes("after").map(<[u8]>::to_vec),
    }
}

/// The link to another path for the same user.
pub(super) fn link_to(asked: &AccessQuery, path: &[u8]) -> Link {
    let want = Some(asked.want.as_str()).filter(|want| *want != "r");
    Link::to("/access")
        .text("user", asked.user.as_deref())
        .text("groups", asked.groups.as_deref())
        .text("want", want)
        .bytes("path", path)
}

pub(super) fn fill(source: &dyn Source, query: &Query, page: &mut Page) -> Result<(), Failure> {
    let is_first = query.text("user").is_none() && query.path().is_none();
    let asked = asked(query);
    let body = &mut page.body;
    frame::heading(
        body,
        "Who can reach what",
        "Answers are those of limen access explain and limen access audit.",
    );
    if is_first {
        body.raw("<section class=\"card\">");
        form(source, query, body);
        body.raw("</section><section class=\"card\"><h2>Walk through the volume as a user sees it</h2>");
        people(source, &asked, body);
        body.raw("</section>");
        return Ok(());
    }
    let access = source.access(&asked)?;
    body.raw("<section class=\"card\">");
    form(source, query, body);
    body.raw("</section>");
    frame::crumbs(body, &access.file.path, |path| link_to(&asked, path));
    if let Some(explanation) = &access.explanation {
        show_explanation(body, &asked, explanation);
    }
    body.raw("<div class=\"two\"><div>");
    match &access.listing {
        Some(listing) => {
            show_listing(body, &asked, &access, listing);
            body.raw("</div><div>");
            show_holders(body, &asked, &access.file, &access.holders);
        }
        None => {
            show_holders(body, &asked, &access.file, &access.holders);
            body.raw("</div><div>");
        }
    }
    show_file(body, &asked, &access.file);
    body.raw("</div></div>");
    Ok(())
}

/// The users to choose from, as links.
fn people(source: &dyn Source, asked: &AccessQuery, body: &mut Html) {
    body.raw("<ul class=\"chips\">");
    for name in source.people() {
        let link = Link::to("/access").text("user", Some(&name)).bytes("path", &asked.path);
        body.raw("<li><a href=\"").text(link).raw("\"");
        if asked.user.as_deref() == Some(&name) {
            body.raw(" aria-current=\"true\"");
        }
        body.raw("><bdi>").text(&name).raw("</bdi></a></li>");
    }
    body.raw("<li><a href=\"/access?path=%2F\">nobody: only the names</a></li></ul>");
}

/// The form in which the question is asked: a user, a path, and an operation.
pub(super) fn form(source: &dyn Source, query: &Query, body: &mut Html) {
    let path = query.path();
    // A path that is not text cannot be in a text field.
    let typed =
        path.as_deref().and_then(|path| std::str::from_utf8(path).ok()).filter(|path| !path.contains('\n'));
    let want = query.text("want").unwrap_or("r");
    body.raw("<form class=\"ask\" action=\"/access\" method=\"get\"><label>User<input type=\"text\" name=\"user\" list=\"people\"");
    body.raw(" autocomplete=\"off\" spellcheck=\"false\" placeholder=\"ann, 1000 or DOMAIN\\ann\" value=\"");
    body.text(query.text("user").unwrap_or_default())
        .raw("\"></label><label class=\"wide\">File or directory in the volume");
    body.raw("<input type=\"text\" name=\"path\" autocomplete=\"off\" spellcheck=\"false\" placeholder=\"/projects/report.txt\" value=\"");
    body.text(typed.unwrap_or_default()).raw("\"></label>");
    if let (Some(path), None) = (&path, typed) {
        frame::hidden_path(body, path);
    }
    body.raw("<label>wants to<select name=\"want\">");
    for (value, words) in WANTS {
        body.raw("<option value=\"").raw(value).raw("\"");
        if value == want {
            body.raw(" selected");
        }
        body.raw(">").raw(words).raw("</option>");
    }
    body.raw("</select></label><button type=\"submit\">Explain</button>");
    body.raw("<datalist id=\"people\">");
    for name in source.people() {
        body.raw("<option value=\"").text(&name).raw("\">");
    }
    body.raw("</datalist>");
    if let Some(groups) = query.text("groups") {
        // The field is not hidden, because its groups also apply when another user is chosen.
        body.raw("<label>with groups<input type=\"text\" name=\"groups\" autocomplete=\"off\"");
        body.raw(" spellcheck=\"false\" value=\"").text(groups).raw("\"></label>");
    }
    body.raw("</form>");
}

fn show_explanation(body: &mut Html, asked: &AccessQuery, explanation: &Explanation) {
    let (class, sign) = if explanation.is_granted { ("good", "✓") } else { ("bad", "✕") };
    body.raw("<section class=\"card verdict ")
        .raw(class)
        .raw("\" id=\"verdict\"><h2><span class=\"sign\" aria-hidden=\"true\">");
    body.raw(sign).raw("</span><span>").text(&explanation.headline).raw("</span></h2><div class=\"why\">");
    for sentence in &explanation.because {
        body.raw("<p>").text(sentence).raw("</p>");
    }
    let columns = if explanation.remedies.is_empty() { "cols one" } else { "cols" };
    body.raw("</div><div class=\"").raw(columns).raw("\">");
    show_steps(body, asked, &explanation.steps);
    if !explanation.remedies.is_empty() {
        body.raw("<div class=\"remedy\"><h3>What would allow it</h3><ul>");
        for remedy in &explanation.remedies {
            show_remedy(body, asked, remedy);
        }
        body.raw("</ul></div>");
    }
    body.raw("</div><details class=\"more\"><summary>The same answer in a terminal</summary><pre>");
    body.text(&explanation.command).raw("</pre></details></section>");
}

fn show_steps(body: &mut Html, asked: &AccessQuery, steps: &[Step]) {
    body.raw("<ol class=\"path\" aria-label=\"Checks on the way\">");
    for step in steps {
        let (class, sign) = match step.is_granted {
            Some(true) => ("yes", "✓"),
            Some(false) => ("no", "✕"),
            None => ("off", "·"),
        };
        body.raw("<li class=\"")
            .raw(class)
            .raw("\"><span class=\"dot\" aria-hidden=\"true\">")
            .raw(sign)
            .raw("</span>");
        body.raw("<div class=\"where\">");
        frame::link(body, &link_to(asked, &step.path), "", &step.path);
        body.raw("</div><div class=\"meta\"><code>").text(&step.mode).raw("</code> <bdi>").text(&step.owner);
        body.raw("</bdi> · ").text(&step.asked);
        match step.is_granted {
            Some(true) => body.raw(" granted by <code>").text(&step.by).raw("</code>"),
            Some(false) => body.raw(" denied by <code>").text(&step.by).raw("</code>"),
            None => body.raw(" is not reached"),
        };
        body.raw("</div></li>");
    }
    body.raw("</ol>");
}

fn show_remedy(body: &mut Html, asked: &AccessQuery, remedy: &Remedy) {
    body.raw("<li><p>").text(&remedy.text).raw("</p>");
    if !remedy.command.is_empty() {
        body.raw("<pre>").text(&remedy.command).raw("</pre>");
    }
    if let Some((path, change)) = &remedy.change {
        body.raw("<a class=\"button quiet\" href=\"").text(change_link(asked, path, change));
        body.raw("\">See what else it would open</a>");
    }
    body.raw("</li>");
}

/// The link to the page that shows the effect of a change.
pub(super) fn change_link(asked: &AccessQuery, path: &[u8], change: &PermissionChange) -> Link {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut link =
        Link::to("/change").text("user", asked.user.as_deref()).text("groups", asked.groups.as_deref());
    link = link.bytes("path", path).text("kind", some(&change.kind).as_deref());
    for (name, value) in [("mode", &change.mode), ("class", &change.class), ("name", &change.name)] {
        link = link.text(name, some(value).as_deref());
    }
    for letter in ["r", "w", "x"].into_iter().filter(|letter| change.perms.contains(letter)) {
        link = link.text(letter, Some("1"));
    }
    link = link.text("recursive", change.recursive.then_some("1"));
    link.text("keep_mask", change.keep_mask.then_some("1"))
}

fn show_listing(body: &mut Html, asked: &AccessQuery, access: &AccessAnswer, listing: &Listing) {
    body.raw("<section class=\"card\"><h2>");
    match &access.person {
        Some(person) => {
            body.raw("As <bdi>").text(person.split(' ').next().unwrap_or_default()).raw("</bdi> sees it")
        }
        None => body.raw("Content"),
    };
    body.raw("</h2>");
    if let Some(hidden) = &listing.hidden {
        body.raw("<p class=\"notice bad\">").text(hidden).raw("</p>");
    }
    if listing.rows.is_empty() {
        body.raw("<p class=\"empty\">There are no names here.</p></section>");
        return;
    }
    body.raw("<div class=\"scroll\"><table id=\"tree\"><thead><tr><th>Name</th>");
    if access.person.is_some() {
        body.raw("<th>May</th>");
    }
    body.raw("<th class=\"hide\">Mode</th><th class=\"hide\">Owner</th><th class=\"num hide\">Size</th></tr></thead><tbody>");
    for row in &listing.rows {
        let path = joined(&access.file.path, &row.name);
        body.raw(if row.hidden.is_some() {
            "<tr class=\"gone\"><td class=\"name\">"
        } else {
            "<tr><td class=\"name\">"
        });
        frame::link(body, &link_to(asked, &path), "", &row.name);
        if row.is_dir {
            body.raw("/");
        }
        if let Some(hidden) = row.hidden {
            body.raw(" ");
            frame::badge(body, Tone::Warn, hidden);
        }
        if let Some(rights) = row.rights {
            body.raw("</td><td>");
            let words = if row.is_dir {
                ["list", "add", "enter", "delete"]
            } else {
                ["read", "write", "run", "delete"]
            };
            let signs = ["r", "w", "x", "d"];
            let named: Vec<&str> =
                words.iter().zip(rights).filter(|(_, has)| *has).map(|(word, _)| *word).collect();
            let label = if named.is_empty() { "nothing".to_owned() } else { named.join(", ") };
            body.raw("<span class=\"rights\" role=\"img\" aria-label=\"")
                .text(&label)
                .raw("\" title=\"")
                .text(&label)
                .raw("\">");
            for (sign, has) in signs.into_iter().zip(rights) {
                body.raw(if has { "<span class=\"r yes\">" } else { "<span class=\"r\">" });
                body.raw(if has { sign } else { "–" }).raw("</span>");
            }
            body.raw("</span>");
        }
        body.raw("</td><td class=\"mono hide\">")
            .text(&row.mode)
            .raw("</td><td class=\"hide\"><bdi>")
            .text(&row.owner);
        body.raw("</bdi></td><td class=\"num hide\">").text(&row.size).raw("</td></tr>");
    }
    body.raw("</tbody></table></div>");
    if let Some(after) = &listing.more {
        let link = link_to(asked, &access.file.path).bytes("after", after);
        body.raw("<p class=\"cut\"><a href=\"").text(link).raw("\">More names</a></p>");
    }
    if access.person.is_some() {
        frame::cut(body, "r read or list · w write or add names · x run or enter · d delete the name");
    }
    body.raw("</section>");
}

fn show_holders(body: &mut Html, asked: &AccessQuery, file: &File, holders: &Holders) {
    body.raw("<section class=\"card\"><h2>Who can reach it</h2><div class=\"scroll\"><table id=\"who\"><thead><tr>");
    body.raw("<th>User</th><th>May</th><th>By</th></tr></thead><tbody>");
    for holder in &holders.rows {
        body.raw("<tr><td>");
        if holder.is_user {
            let link = Link::to("/access").text("user", Some(&holder.name)).bytes("path", &file.path);
            body.raw("<a href=\"").text(link).raw("\"><bdi>").text(&holder.name).raw("</bdi></a>");
        } else {
            body.raw("<b>").text(&holder.name).raw("</b>");
        }
        body.raw("</td><td><span class=\"rights\" title=\"").text(&holder.rights).raw("\">");
        for sign in ["r", "w", "x"] {
            let has = holder.rights.contains(sign);
            body.raw(if has { "<span class=\"r yes\">" } else { "<span class=\"r\">" });
            body.raw(if has { sign } else { "–" }).raw("</span>");
        }
        body.raw("</span></td><td class=\"soft\">").text(&holder.by).raw("</td></tr>");
    }
    body.raw("</tbody></table></div>");
    if holders.rows.is_empty() {
        body.raw("<p class=\"empty\">Nobody.</p>");
    }
    let mut notes = Vec::new();
    if holders.alike > 0 {
        let alike = counted(holders.alike, "system account has", "system accounts have");
        notes.push(format!("{alike} the access of everyone else."));
    }
    if holders.cut > 0 {
        notes.push(format!(
            "{} access; limen access audit --who lists {}.",
            counted(holders.cut, "more has", "more have"),
            plural(holders.cut, "it", "them")
        ));
    }
    notes.push(format!("{} no access.", counted(holders.none, "other has", "others have")));
    frame::cut(body, &notes.join(" "));
    let change =
        PermissionChange { kind: "setfacl".to_owned(), class: "u".to_owned(), ..PermissionChange::default() };
    body.raw("<p class=\"cut\"><a class=\"button quiet\" href=\"")
        .text(change_link(asked, &file.path, &change));
    body.raw("\">Try a change here</a></p></section>");
}

fn show_file(body: &mut Html, asked: &AccessQuery, file: &File) {
    body.raw("<section class=\"card\"><h2>What its permissions say</h2>");
    if let Some(damage) = &file.damage {
        body.raw("<p class=\"notice bad\">").text(damage).raw("</p>");
    }
    body.raw("<ul class=\"rules\">");
    for (entry, words) in &file.rules {
        body.raw("<li>").text(words).raw("<code>").text(entry).raw("</code></li>");
    }
    body.raw("</ul></section><section class=\"card\"><h2>").text(title_case(file.kind)).raw("</h2>");
    frame::facts(body, &file.facts);
    if file.is_dir {
        body.raw("<p class=\"cut\"><a href=\"").text(Link::to("/usage").bytes("path", &file.path));
        body.raw("\">What is below it, as a map</a></p>");
    }
    if asked.user.is_none() {
        frame::cut(body, "Choose a user above to see whether they can open it, and why.");
    }
    body.raw("</section>");
}

fn title_case(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
