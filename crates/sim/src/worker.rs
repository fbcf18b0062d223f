//! The threads of clients: each performs the acts that the scheduler assigns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use types::SessionId;

use crate::act::{Act, Assignment, Got, NonTreeAction, Reply, Step};
use crate::client::Client;
use crate::port;
use crate::shared::{LONG, Shared};
use crate::upkeep;

/// The running clients. One thread runs at a time, so the lock is never contended.
#[derive(Debug)]
pub(crate) struct Clients(Mutex<Vec<Option<Arc<Client>>>>);

impl Clients {
    pub(crate) fn new(count: usize) -> Self {
        Clients(Mutex::new((0..count).map(|_| None).collect()))
    }

    pub(crate) fn get(&self, number: usize) -> Option<Arc<Client>> {
        self.lock().get(number)?.clone()
    }

    fn set(&self, number: usize, client: Client) {
        self.lock()[number] = Some(Arc::new(client));
    }

    /// Removes a client that was killed.
    pub(crate) fn remove(&self, number: usize) {
        self.lock()[number] = None;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Arc<Client>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the assignments of a thread of a client until the end of the history.
pub(crate) fn work(shared: &Shared, clients: &Clients, number: usize) {
    loop {
        match port::send(port::Request::Next) {
            port::Answer::Assignment(assignment) => perform(shared, clients, number, &assignment),
            _ => return,
        }
    }
}

fn perform(shared: &Shared, clients: &Clients, number: usize, assignment: &Assignment) {
    if matches!(assignment.act, Act::Gc) {
        upkeep::collect_unreferenced(shared);
        return;
    }
    if matches!(assignment.act, Act::Start) {
        start(shared, clients, number);
        return;
    }
    let Some(client) = clients.get(number) else { return };
    client.meta.set_retry_timeout(if assignment.patient { LONG } else { Duration::ZERO });
    if assignment.rejoin && client.meta.is_fenced() {
        client.rejoin(shared);
    }
    client.act(shared, &assignment.act);
}

fn start(shared: &Shared, clients: &Clients, number: usize) {
    let mut begun = shared.begin(number, SessionId(0), 0, Step::Other(NonTreeAction::Start));
    let client = Client::open(shared, number);
    begun.got = if client.is_ok() { Got::Done(Reply::Nothing) } else { Got::InDoubt };
    if let Ok(client) = client {
        begun.session = client.meta.session();
        clients.set(number, client);
    }
    shared.end(begun);
}
