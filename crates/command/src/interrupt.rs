//! Ctrl-C in commands that have to clean up before they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{CliError, ErrorAt};

/// Whether a signal asked the command to end.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From here on the first SIGINT, SIGTERM or SIGHUP only sets a flag; the second one ends the process.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub fn install() -> Result<Self, CliError> {
        let noted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The shutdown is registered before the flag: otherwise the first signal would set the flag and
            // then end the process.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&noted))
                .and_then(|_| flag::register(signal, Arc::clone(&noted)))
                .what("cannot handle signals")?;
        }
        Ok(Interrupt(noted))
    }

    /// An interrupt that no signal sets, for work that ends by itself. Signals keep their effect.
    pub fn never() -> Self {
        Interrupt(Arc::default())
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// A signal has asked the command to end.
    pub fn check(&self) -> Result<(), CliError> {
        if self.is_set() { Err(CliError::new("interrupted")) } else { Ok(()) }
    }
}
