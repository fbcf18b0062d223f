//! The page that shows what a change of permissions would open and close. It does not make the change.

use command::units::{counted, plural};

use super::access::{asked, link_to};
use crate::frame::{self, Page};
use crate::html::{Html, grouped};
use crate::model::{AccessEffect, AccessQuery, Below, PermissionChange};
use crate::request::Query;
use crate::source::{Failure, Source};

pub(super) fn fill(source: &dyn Source, query: &Query, page: &mut Page) -> Result<(), Failure> {
    let asked = asked(query);
    let change = change(query);
    let body = &mut page.body;
    frame::heading(
        body,
        "Try a change",
        "Nothing is changed. The page shows what the change would open and close.",
    );
    frame::crumbs(body, &asked.path, |path| link_to(&asked, path));
    body.raw("<div class=\"two\"><div>");
    if is_complete(&change) {
        match source.effect(&asked, &change) {
            Ok(effect) => show(body, &asked, &effect),
            Err(Failure::Wrong(text)) => {
                body.raw("<div class=\"notice bad\" role=\"alert\">").text(text).raw("</div>");
            }
            Err(failure) => return Err(failure),
        }
    } else {
        body.raw("<section class=\"card\"><p class=\"empty\">Fill in one of the forms, and choose “Show the effect”.</p></section>");
    }
    body.raw("</div><div><section class=\"card change\"><h2>The change</h2>");
    forms(body, &asked, &change);
    body.raw("</section></div></div>");
    Ok(())
}

fn change(query: &Query) -> PermissionChange {
    let text = |name| query.text(name).unwrap_or_default().to_owned();
    let perms = ["r", "w", "x"].into_iter().filter(|letter| query.has(letter)).collect();
    PermissionChange {
        kind: text("kind"),
        mode: text("mode"),
        class: text("class"),
        name: text("name"),
        perms,
        recursive: query.has("recursive"),
        keep_mask: query.has("keep_mask"),
    }
}

fn is_complete(change: &PermissionChange) -> bool {
    match change.kind.as_str() {
        "chmod" => !change.mode.is_empty(),
        "" => false,
        _ => !change.name.is_empty(),
    }
}

fn begin(body: &mut Html, asked: &AccessQuery, kind: &'static str, is_open: bool, title: &'static str) {
    body.raw(if is_open { "<details open><summary>" } else { "<details><summary>" }).raw(title);
    body.raw("</summary><form action=\"/change\" method=\"get\">");
    frame::hidden_path(body, &asked.path);
    frame::hidden(body, "kind", kind);
    for (name, value) in [("user", &asked.user), ("groups", &asked.groups)] {
        if let Some(value) = value {
            frame::hidden(body, name, value);
        }
    }
    body.raw("<fieldset>");
}

fn end(body: &mut Html, recursive: Option<bool>) {
    body.raw("</fieldset>");
    if let Some(recursive) = recursive {
        body.raw("<div class=\"checks\">");
        check(body, "recursive", "and everything below", recursive);
        body.raw("</div>");
    }
    body.raw("<button type=\"submit\">Show the effect</button></form></details>");
}

fn check(body: &mut Html, name: &'static str, label: &'static str, is_set: bool) {
    body.raw("<label><input type=\"checkbox\" value=\"1\" name=\"").raw(name).raw("\"");
    body.raw(if is_set { " checked>" } else { ">" }).raw(label).raw("</label>");
}

fn field(body: &mut Html, name: &'static str, label: &'static str, value: &str, example: &'static str) {
    body.raw("<label>")
        .raw(label)
        .raw("<input type=\"text\" autocomplete=\"off\" spellcheck=\"false\" name=\"")
        .raw(name);
    body.raw("\" placeholder=\"").raw(example).raw("\" value=\"").text(value).raw("\"></label>");
}

fn class(body: &mut Html, of: &str) {
    body.raw("<label>For a<select name=\"class\">");
    for (value, word) in [("u", "user"), ("g", "group")] {
        body.raw("<option value=\"").raw(value).raw("\"").raw(if of == value { " selected>" } else { ">" });
        body.raw(word).raw("</option>");
    }
    body.raw("</select></label>");
}

fn forms(body: &mut Html, asked: &AccessQuery, change: &PermissionChange) {
    let is = |kind: &str| change.kind == kind;
    let of = |kind: &str| if is(kind) { change.clone() } else { PermissionChange::default() };

    let own = of("setfacl");
    begin(
        body,
        asked,
        "setfacl",
        is("setfacl") || change.kind.is_empty(),
        "Give or limit access for one user or group",
    );
    class(body, &own.class);
    field(body, "name", "Name", &own.name, "ann");
    body.raw("</fieldset><div class=\"checks\" role=\"group\" aria-label=\"Permissions\">");
    for (letter, label) in [("r", "read"), ("w", "write"), ("x", "execute, enter")] {
        check(body, letter, label, own.perms.contains(letter));
    }
    check(body, "keep_mask", "keep the mask", own.keep_mask);
    body.raw("</div><fieldset>");
    end(body, Some(own.recursive));

    let own = of("unset");
    begin(body, asked, "unset", is("unset"), "Remove the entry of a user or group");
    class(body, &own.class);
    field(body, "name", "Name", &own.name, "ann");
    end(body, Some(own.recursive));

    let own = of("chmod");
    begin(body, asked, "chmod", is("chmod"), "Set the mode");
    field(body, "mode", "Mode in octal", &own.mode, "750");
    end(body, Some(own.recursive));

    let own = of("chown");
    begin(body, asked, "chown", is("chown"), "Set owner or group");
    class(body, &own.class);
    field(body, "name", "New owner or group", &own.name, "ann");
    end(body, Some(own.recursive));

    for (kind, title) in [("join", "Add the user to a group"), ("leave", "Remove the user from a group")] {
        let own = of(kind);
        begin(
            body,
            asked,
            if kind == "join" { "join" } else { "leave" },
            is(kind),
            if kind == "join" { "Add the user to a group" } else { title },
        );
        field(body, "name", "Group", &own.name, "staff");
        if asked.user.is_none() {
            body.raw("<p class=\"empty\">Choose a user on the page Access first.</p>");
        }
        end(body, None);
    }
}

fn show(body: &mut Html, asked: &AccessQuery, effect: &AccessEffect) {
    body.raw("<section class=\"card\" id=\"effect\"><h2>Who gains or loses access to this path</h2><pre>")
        .text(&effect.command);
    body.raw("</pre>");
    if effect.users.is_empty() {
        body.raw("<p class=\"empty\">Nothing changes for anybody.</p>");
    } else {
        body.raw("<div class=\"scroll\"><table><thead><tr><th>User</th><th>Before</th><th>After</th><th>By</th></tr></thead><tbody>");
        for (name, before, after, by) in &effect.users {
            body.raw("<tr><td><bdi>").text(name).raw("</bdi></td><td class=\"mono\">").text(before);
            body.raw("</td><td class=\"mono ").raw(direction(before, after)).raw("\">").text(after);
            body.raw("</td><td class=\"soft\">").text(by).raw("</td></tr>");
        }
        body.raw("</tbody></table></div>");
    }
    frame::cut(body, &format!("Nothing changes for {}.", counted(effect.unchanged, "other", "others")));
    body.raw("</section>");
    if let Some(below) = &effect.below {
        show_below(body, asked, below);
    }
}

/// Green if only permissions are added, red if any is removed.
fn direction(before: &str, after: &str) -> &'static str {
    let has = |text: &str, letter: char| text != "none" && text.contains(letter);
    let mut letters = "rwxdo".chars();
    if letters.any(|letter| has(before, letter) && !has(after, letter)) || before != "none" && after == "none"
    {
        "closes"
    } else {
        "opens"
    }
}

fn show_below(body: &mut Html, asked: &AccessQuery, below: &Below) {
    body.raw("<section class=\"card\"><h2>Below it, for <bdi>").text(&below.user).raw("</bdi> <small>");
    body.number(below.names).raw(" names</small></h2><p>");
    body.raw("<span class=\"opens\">").number(below.gained).raw(" open</span> · <span class=\"closes\">");
    body.number(below.lost).raw(" close</span></p>");
    if !below.changes.is_empty() {
        body.raw("<div class=\"scroll\"><table><thead><tr><th>Name</th><th>Before</th><th>After</th></tr></thead><tbody>");
        for (path, before, after) in &below.changes {
            body.raw("<tr><td class=\"name\">");
            frame::link(body, &link_to(asked, path), "", path);
            body.raw("</td><td class=\"mono\">").text(before).raw("</td><td class=\"mono ");
            body.raw(direction(before, after)).raw("\">").text(after).raw("</td></tr>");
        }
        body.raw("</tbody></table></div>");
    }
    let more = (below.gained.max(below.lost)).saturating_sub(below.changes.len() as u64);
    if more > 0 {
        frame::cut(body, "The list is cut off. limen access audit --list --what-if shows every name.");
    }
    if let Some(names) = below.cut_after {
        frame::cut(
            body,
            &format!(
                "The walk ended after {} {}, so the counts are lower bounds.",
                grouped(names.into()),
                plural(names, "name", "names")
            ),
        );
    }
    body.raw("</section>");
}
