//! A password that no log, error or debug output shows.

use std::fmt;

use zeroize::Zeroizing;

/// A password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(password: String) -> Self {
        Secret(Zeroizing::new(password))
    }

    /// The password. Only the handshake with the server may use it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
