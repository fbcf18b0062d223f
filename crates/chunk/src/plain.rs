//! Errors of stores in plain words. The text of an [`opendal::Error`] contains the headers of the reply, and
//! no advice.

use std::error::Error as _;

/// Error codes of S3 that people meet when they set up a volume, and what they mean.
const S3_CODES: &[(&str, &str)] = &[
    (
        "NoSuchBucket",
        "the bucket does not exist: create it, or correct its name and the address of the server",
    ),
    ("InvalidAccessKeyId", "the server does not know the access key: check AWS_ACCESS_KEY_ID"),
    ("SignatureDoesNotMatch", "the secret key does not fit the access key: check AWS_SECRET_ACCESS_KEY"),
    ("AccessDenied", "access denied: the credentials are valid, but do not permit this in the bucket"),
    ("ExpiredToken", "the session token has expired: get new credentials"),
    ("InvalidToken", "the session token is not valid: check AWS_SESSION_TOKEN"),
    (
        "RequestTimeTooSkewed",
        "the clock of this machine differs too much from that of the server: correct it",
    ),
    (
        "PermanentRedirect",
        "the bucket is in another region: set AWS_REGION, or use the address of that region",
    ),
    ("AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_REGION to it"),
    ("SlowDown", "the server is overloaded and rejects requests (SlowDown)"),
    ("QuotaExceeded", "the quota of the bucket is used up"),
];

/// Describes an error in one sentence, without the context of the request.
pub(crate) fn plain(error: &opendal::Error) -> String {
    let text = error.to_string();
    // `KIND (STATUS) at OPERATION, context: { ... } => MESSAGE`
    let message = text.rsplit_once(" => ").map_or(text.as_str(), |(_, message)| message);
    if let Some(code) = field(message, "code") {
        if let Some((_, plain)) = S3_CODES.iter().find(|(known, _)| *known == code) {
            return (*plain).to_owned();
        }
        return match field(message, "message") {
            Some(said) if !said.is_empty() => format!("the server answered {code}: {said}"),
            _ => format!("the server answered {code}"),
        };
    }
    let mut deepest = None;
    let mut cause = error.source();
    while let Some(inner) = cause {
        deepest = Some(inner.to_string());
        cause = inner.source();
    }
    match deepest {
        Some(cause) if text.contains("reqwest::send") => format!("cannot reach the server: {cause}"),
        Some(cause) if !message.contains(&cause) => format!("{message}: {cause}"),
        _ => message.to_owned(),
    }
}

/// The value of a field in the debug form of a reply, `NAME: "VALUE"`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("{name}: \""))?;
    rest.split_once('"').map(|(value, _)| value).filter(|value| name != "code" || !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io;

    use opendal::{Error, ErrorKind};

    use super::*;

    fn s3(code: &str) -> Error {
        let answer =
            format!("S3Error {{ code: \"{code}\", message: \"Why.\", resource: \"\", request_id: \"7\" }}");
        Error::new(ErrorKind::ConfigInvalid, answer)
            .with_operation("list")
            .with_context("uri", "http://h/b?x => y")
    }

    #[test]
    fn codes_of_s3_are_explained_and_context_is_left_out() {
        assert!(plain(&s3("NoSuchBucket")).starts_with("the bucket does not exist"));
        assert!(plain(&s3("SignatureDoesNotMatch")).contains("AWS_SECRET_ACCESS_KEY"));
        assert_eq!(plain(&s3("OddCode")), "the server answered OddCode: Why.");
        let other = Error::new(ErrorKind::Unexpected, "it failed").with_context("uri", "http://h");
        assert_eq!(plain(&other), "it failed");
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_named_with_the_deepest_cause() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = Error::new(ErrorKind::Unexpected, "send http request")
            .with_context("called", "reqwest::send")
            .set_source(io::Error::other(refused));
        assert!(
            plain(&error).starts_with("cannot reach the server: connection refused"),
            "{}",
            plain(&error)
        );
    }
}
