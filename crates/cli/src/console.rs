//! `limen console`: a local web page that shows a volume, and above all who can access what.
//!
//! The crate `console` has the pages. This module gets their content from the functions of the other
//! commands.
//!
//! | module | what it holds |
//! |---|---|
//! | `opened` | the volume, opened for one page |
//! | `state` | the state of the volume: usage, sessions, quotas, garbage |
//! | `live` | what the mounts on this machine do |
//! | `access` | one user, one path: the explanation, the listing, all users |
//! | `words` | permissions and reasons in sentences |
//! | `remedy` | which changes would grant an access |
//! | `effect` | which access a change would grant and remove |

mod access;
mod effect;
mod live;
mod opened;
mod remedy;
mod state;
mod words;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use ::console::model::{
    AccessAnswer, AccessEffect, AccessQuery, GarbageSummary, Live, Map, Overview, PermissionChange, Quotas,
    Sessions,
};
use ::console::{Console, Failure, Source, Token};
use clap::ValueHint;
use command::error::{CliError, ErrorAt};
use command::output;

use self::live::Meters;
use self::opened::Place;
use crate::target::volume_url;
use crate::users::Users;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The command prints an address with a random token; open it in a browser on this machine. Only a browser that has opened
that address sees pages. The command runs until Ctrl-C, and the token is valid until then.

The pages are read-only and need no JavaScript. The command reads the volume's metadata database with the permissions of
the user that runs it, like limen access, so its pages show all names in the volume. It reads no file data. Live
operations are those of mounts on this machine by this user or root.

It listens on the loopback interface only. To use it from another machine, forward a port with ssh:
  ssh -L 8080:127.0.0.1:8080 HOST limen console --listen 127.0.0.1:8080 META-URL

Examples:
  limen console sqlite:///var/lib/limen/home.db
  limen console --listen 127.0.0.1:8080 /mnt/project")]
pub(crate) struct ConsoleArgs {
    /// Where the volume's metadata is, or a path on a mount of the volume
    #[arg(value_name = "META-URL|PATH")]
    url: String,
    /// The loopback address and port to listen at; port 0 is any free port
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A file of names of Windows identities, with a SID and a name on each line [default: ask wbinfo]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    sid_names: Option<PathBuf>,
}

pub(crate) fn run(args: &ConsoleArgs) -> Result<(), CliError> {
    if !args.listen.ip().is_loopback() {
        return Err(CliError::usage("the console listens on the loopback interface only, because its pages show all names of the volume and are not encrypted")
            .at(args.listen)
            .advise("listen at 127.0.0.1, and reach it from another machine with ssh -L"));
    }
    let url = volume_url(&args.url)?;
    let (database, volume) = url.open_volume()?;
    let place = Place { url, database, sid_names: args.sid_names.clone() };
    // Report an error in the file of --sid-names now, not on the first page.
    place.users()?;
    let listener = TcpListener::bind(args.listen).what("cannot listen").at(args.listen)?;
    let address = listener.local_addr().what("cannot listen").at(args.listen)?;
    let source = OfVolume { name: volume.name, place, meters: Meters::default() };
    let console =
        Arc::new(Console::new(Token::random().what("cannot make a token")?, address, Arc::new(source)));
    output::print(&format!("{}\n", console.address(address)))?;
    output::note("the address contains a secret; Ctrl-C ends the console");
    console.serve(&listener)
}

/// Answers the queries of the pages from a volume.
#[derive(Debug)]
struct OfVolume {
    name: String,
    place: Place,
    meters: Meters,
}

impl Source for OfVolume {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn overview(&self) -> Result<Overview, Failure> {
        state::overview(&self.place.open()?)
    }

    fn map(&self, path: &[u8]) -> Result<Map, Failure> {
        state::map(&self.place.open()?, path)
    }

    fn sessions(&self) -> Result<Sessions, Failure> {
        state::sessions(&self.place.open()?)
    }

    fn live(&self) -> Result<Vec<Live>, Failure> {
        self.meters.read(&self.place.open()?)
    }

    fn quotas(&self) -> Result<Quotas, Failure> {
        state::quotas(&self.place.open()?)
    }

    fn garbage(&self) -> Result<GarbageSummary, Failure> {
        state::garbage(&self.place.open()?)
    }

    fn access(&self, query: &AccessQuery) -> Result<AccessAnswer, Failure> {
        access::access(&self.place.open()?, query)
    }

    fn effect(&self, query: &AccessQuery, change: &PermissionChange) -> Result<AccessEffect, Failure> {
        effect::effect(&self.place.open()?, query, change)
    }

    /// The names of the users in the local user database, without system accounts and the user `nobody`.
    fn people(&self) -> Vec<String> {
        const PEOPLE: usize = 200;
        const NOBODY: u32 = 65_534;
        let users = Users::default().all().unwrap_or_default();
        let is_person = |uid: u32| uid >= crate::access::who::FIRST_USER && uid != NOBODY;
        let people = users.into_iter().filter(|person| is_person(person.cred.uid));
        people.map(|person| person.name).take(PEOPLE).collect()
    }
}
