//! The pages. Each page queries the source, and shows the answer.

mod access;
mod change;
mod overview;
mod tables;
mod usage;

use command::http::Refusal;

use crate::frame::{self, Page};
use crate::model::Tone;
use crate::request::Query;
use crate::source::{Failure, Source};

/// Fills a page with the answer of the source.
type Fill = fn(&dyn Source, &Query, &mut Page) -> Result<(), Failure>;

/// The page of a request; `None` if there is no such page.
pub(crate) fn page(source: &dyn Source, query: &Query) -> Option<Page> {
    let (title, at, fill): (_, _, Fill) = match query.page() {
        "/" => ("Overview", "/", overview::fill),
        "/usage" => ("Usage", "/usage", usage::fill),
        "/access" => ("Access", "/access", access::fill),
        "/change" => ("Try a change", "/access", change::fill),
        "/sessions" => ("Sessions", "/sessions", tables::sessions),
        "/live" => ("Live", "/live", tables::live),
        "/quotas" => ("Quotas", "/quotas", tables::quotas),
        "/garbage" => ("Garbage", "/garbage", tables::garbage),
        _ => return None,
    };
    let empty = || Page::new(title, Some(source.name()), at);
    let mut page = empty();
    Some(match fill(source, query, &mut page) {
        Ok(()) => page,
        Err(failure) => {
            let mut page = empty();
            let (status, text) = match &failure {
                Failure::Wrong(text) => ("404 Not Found", text),
                Failure::Failed(text) => ("500 Internal Server Error", text),
            };
            let body = &mut page.body;
            frame::heading(body, title, "");
            // The form stays, so that the user can correct a wrong name.
            if title == "Access" {
                access::form(source, query, body);
            }
            body.raw("<div class=\"notice bad\" role=\"alert\">");
            frame::badge(body, Tone::Bad, "No answer");
            body.raw(" <bdi>").text(text).raw("</bdi></div>");
            page.with_status(status)
        }
    })
}

/// The page of a rejected request. It shows nothing of the volume.
pub(crate) fn refusal(refusal: Refusal) -> Page {
    let mut page = Page::new(refusal.status(), None, "").with_status(refusal.status());
    let advice = match refusal {
        Refusal::Forbidden => {
            "Open the address that limen console has printed, with its token, on this machine. It is valid until that \
             command ends."
        }
        Refusal::NotFound => "There is no such page.",
        Refusal::Busy => "Other pages are being made. Try again.",
        _ => "This server answers GET requests for its pages.",
    };
    page.body.raw("<div class=\"center card\"><h1>").text(refusal.status()).raw("</h1><p class=\"about\">");
    page.body.text(advice).raw("</p></div>");
    page
}
