//! Asks the user for confirmation before a change that cannot be undone.

use std::io::{self, IsTerminal, Write};

use command::error::{CliError, ErrorAt};

/// Asks the user to type the name of a volume. `refusal` is the error if there is no terminal, `warning` is
/// shown before the question, and `unchanged` is added to the error if the user types another name.
///
/// # Errors
/// There is no terminal; the user typed another name.
pub(crate) fn confirm(name: &str, refusal: &str, warning: &str, unchanged: &str) -> Result<(), CliError> {
    const FAILED: &str = "cannot ask for confirmation";
    if !io::stdin().is_terminal() {
        return Err(CliError::usage(refusal).advise("use --yes to confirm"));
    }
    let mut terminal = io::stderr();
    write!(terminal, "{warning}\nType its name to confirm: ").and_then(|()| terminal.flush()).what(FAILED)?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).what(FAILED)?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(CliError::new(format!("the name does not match: {unchanged}")).at(name)),
    }
}
