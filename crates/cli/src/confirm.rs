//! Asks the user before something that cannot be undone.

use std::io::{self, IsTerminal, Write};

use command::fault::{Fault, OrFault};

/// Asks the user to type the name of a volume. `would` says what would be done, in the error if there is no terminal;
/// `does` says it before the question; `nothing` says what has not happened if the name is another one.
///
/// # Errors
/// There is no terminal; the user typed another name.
pub(crate) fn confirm(name: &str, would: &str, does: &str, nothing: &str) -> Result<(), Fault> {
    const FAILED: &str = "cannot ask for confirmation";
    if !io::stdin().is_terminal() {
        return Err(Fault::usage(would).advise("use --yes to confirm"));
    }
    let mut terminal = io::stderr();
    write!(terminal, "{does}\nType its name to confirm: ").and_then(|()| terminal.flush()).what(FAILED)?;
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).what(FAILED)?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Fault::new(format!("the name does not match: {nothing}")).at(name)),
    }
}
