//! Usage as a map: each entry of a directory is an area in proportion to the usage below it.

use command::units::{plural, show_size};

use crate::frame::{self, Page};
use crate::html::{Html, grouped};
use crate::model::{Map, MapEntry, Size, Tone};
use crate::request::{Link, Query};
use crate::source::{Failure, Source};
use crate::treemap;

/// The largest number of areas. The rest is one area.
const MAX_AREAS: usize = 60;
/// The largest number of rows of the table.
const MAX_ROWS: usize = 200;
/// The number of colours of directories.
const COLOURS: u32 = 8;

pub(super) fn fill(source: &dyn Source, query: &Query, page: &mut Page) -> Result<(), Failure> {
    let path = query.path().unwrap_or_else(|| b"/".to_vec());
    let by_inodes = query.text("by") == Some("inodes");
    let map = source.map(&path)?;
    let of = |size: &Size| if by_inodes { size.inodes } else { size.bytes };
    let show = |size: &Size| match by_inodes {
        true => grouped(size.inodes.into()),
        false => show_size(size.bytes),
    };
    let by = by_inodes.then_some("inodes");
    let to = |path: &[u8]| Link::to("/usage").bytes("path", path).text("by", by);
    let mut entries = map.entries.clone();
    entries.sort_by(|one, other| of(&other.size).cmp(&of(&one.size)).then_with(|| one.name.cmp(&other.name)));

    let body = &mut page.body;
    frame::heading(
        body,
        "Usage",
        "Each area is in proportion to what is below that name. Choose a directory to walk down.",
    );
    body.raw("<div class=\"switch\" role=\"group\" aria-label=\"Measure\">");
    for (name, by) in [("Bytes", None), ("Files", Some("inodes"))] {
        body.raw("<a href=\"").text(Link::to("/usage").bytes("path", &map.path).text("by", by)).raw("\"");
        if by_inodes == by.is_some() {
            body.raw(" aria-current=\"true\"");
        }
        body.raw(">").raw(name).raw("</a>");
    }
    body.raw("</div>");
    frame::crumbs(body, &map.path, to);
    body.raw("<section class=\"card\"><h2>").text(at_least(&map.total)).text(show_size(map.total.bytes));
    body.raw(" <small>in ")
        .text(at_least(&map.total))
        .number(map.total.inodes)
        .raw(plural(map.total.inodes, " file or directory", " files and directories"))
        .raw("</small></h2>");
    if let Some(names) = map.cut_after {
        body.raw("<p class=\"notice\">").text(format!(
            "Counting was cut off after {} {}, so sizes marked “at least” are incomplete. A directory with a quota \
             is always exact.",
            grouped(names.into()),
            plural(names, "name", "names")
        ));
        body.raw("</p>");
    }
    draw(page, &map, &entries, &of, &show, &to);
    let body = &mut page.body;
    table(body, &map, &entries, &of, &to);
    body.raw("</section>");
    Ok(())
}

fn at_least(size: &Size) -> &'static str {
    if size.at_least { "at least " } else { "" }
}

fn draw(
    page: &mut Page,
    map: &Map,
    entries: &[MapEntry],
    of: &dyn Fn(&Size) -> u64,
    show: &dyn Fn(&Size) -> String,
    to: &dyn Fn(&[u8]) -> Link,
) {
    // An entry of size 0 gets no area, and no entry after it does. So it is part of the rest.
    let has_area = |entry: &&MapEntry| of(&entry.size) > 0;
    let (drawn, rest) = entries.split_at(entries.iter().take(MAX_AREAS).take_while(has_area).count());
    let rest_sum = rest.iter().map(|entry| of(&entry.size)).fold(of(&map.others.1), u64::saturating_add);
    let rest_count = rest.len() as u64 + map.others.0;
    let mut sizes: Vec<f64> = drawn.iter().map(|entry| of(&entry.size) as f64).collect();
    sizes.push(rest_sum as f64);
    // The rest comes last, whatever its size. If it is not the smallest, the areas are only less square.
    let areas = treemap::divide(&sizes, 2.0);
    if areas.is_empty() {
        page.body.raw("<p class=\"empty\">Nothing in this directory takes any space.</p>");
        return;
    }
    page.body.raw("<div class=\"map\" role=\"list\" aria-label=\"Map of usage\">");
    for (number, area) in areas.iter().enumerate() {
        page.place(number, area.x, area.y, area.width, area.height);
        let size_class = match (area.width, area.height) {
            (width, height) if width < 4.5 || height < 5.0 => " tiny",
            (_, height) if height < 11.0 => " low",
            _ => "",
        };
        let body = &mut page.body;
        let Some(entry) = drawn.get(number) else {
            body.raw("<span role=\"listitem\" class=\"box rest t")
                .number(number as u64)
                .raw(size_class)
                .raw("\">");
            body.raw("<b>").number(rest_count).raw(" more</b></span>");
            continue;
        };
        let path = joined(&map.path, &entry.name);
        let title = format!(
            "{} – {}{}",
            command::paths::show_name(&entry.name),
            at_least(&entry.size),
            show(&entry.size)
        );
        if entry.is_dir {
            body.raw("<a role=\"listitem\" class=\"c")
                .number(colour(&entry.name))
                .raw(" t")
                .number(number as u64);
            body.raw(size_class).raw("\" title=\"").text(title).raw("\" href=\"").text(to(&path)).raw("\">");
        } else {
            let access = Link::to("/access").bytes("path", &path);
            body.raw("<a role=\"listitem\" class=\"file t").number(number as u64).raw(size_class);
            body.raw("\" title=\"").text(title).raw("\" href=\"").text(access).raw("\">");
        }
        body.raw("<b>");
        frame::name(body, &entry.name);
        body.raw("</b><i>").text(at_least(&entry.size)).text(show(&entry.size)).raw("</i></a>");
    }
    page.body.raw("</div>");
}

/// A colour that stays the same for a name.
fn colour(name: &[u8]) -> u32 {
    let sum =
        name.iter().fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(16_777_619));
    (sum >> 8) % COLOURS
}

fn table(
    body: &mut Html,
    map: &Map,
    entries: &[MapEntry],
    of: &dyn Fn(&Size) -> u64,
    to: &dyn Fn(&[u8]) -> Link,
) {
    if entries.is_empty() {
        return;
    }
    let total = of(&map.total).max(1) as f64;
    body.raw(
        "<div class=\"scroll\"><table class=\"list\"><thead><tr><th>Name</th><th class=\"num\">Used</th>",
    );
    body.raw("<th class=\"num hide\">Files</th><th class=\"wide\">Share</th></tr></thead><tbody>");
    for entry in entries.iter().take(MAX_ROWS) {
        let path = joined(&map.path, &entry.name);
        body.raw("<tr><td class=\"name\">");
        let link = if entry.is_dir { to(&path) } else { Link::to("/access").bytes("path", &path) };
        frame::link(body, &link, "", &entry.name);
        if entry.is_dir {
            body.raw("/");
        }
        body.raw("</td><td class=\"num\">").text(at_least(&entry.size)).text(show_size(entry.size.bytes));
        body.raw("</td><td class=\"num hide\">")
            .text(at_least(&entry.size))
            .number(entry.size.inodes)
            .raw("</td><td class=\"wide\">");
        let share = of(&entry.size) as f64 / total;
        frame::bar(body, share, Tone::Plain, &format!("{:.1} %", share * 100.0));
        body.raw("</td></tr>");
    }
    body.raw("</tbody></table></div>");
    let hidden = entries.len().saturating_sub(MAX_ROWS) as u64 + map.others.0;
    if hidden > 0 {
        frame::cut(
            body,
            &format!(
                "{} smaller {} not listed.",
                grouped(hidden.into()),
                plural(hidden, "entry is", "entries are")
            ),
        );
    }
}

/// The path of a name in a directory.
pub(super) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_drawn_although_entries_are_empty() {
        let size = |bytes| Size { bytes, ..Size::default() };
        let entry = |name: &str, bytes| MapEntry { name: name.into(), is_dir: false, size: size(bytes) };
        let entries = vec![entry("large", 7), entry("empty", 0)];
        let (path, total) = (b"/".to_vec(), size(10));
        let map = Map { path, total, entries, others: (4, size(3)), cut_after: None };
        let mut page = Page::new("Usage", None, "/usage");
        draw(&mut page, &map, &map.entries, &|size| size.bytes, &|size| show_size(size.bytes), &|_| {
            Link::to("/usage")
        });
        let text = page.render("0");
        assert!(text.contains("<b>5 more</b>") && !text.contains("empty – "), "{text}");
    }
}
