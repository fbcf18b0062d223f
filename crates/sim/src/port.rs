//! The link between a client's thread and the scheduler. The thread sends a request and waits for the answer,
//! so only one thread runs at a time.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use meta::{Engine, EngineError, Outcome, Page, RecordKey, Scan, Snapshot, Txn};

use crate::act::Assignment;

/// The request of a thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// The thread is idle and waits for its next assignment.
    Next,
    /// The thread could go on, but lets other threads run first.
    Pause,
    /// The thread sleeps until this time.
    Sleep(Duration),
    Read(Vec<RecordKey>),
    Commit(Vec<Txn>),
    Scan(Scan),
    Sync,
}

/// A request, its thread, and the step that the thread works on.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) worker: usize,
    pub(crate) step: usize,
    pub(crate) request: Request,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Assignment(Assignment),
    Go,
    Read(Result<Snapshot, EngineError>),
    Commit(Result<Vec<Outcome>, EngineError>),
    Scan(Result<Page, EngineError>),
    /// The client was killed; the results of this thread no longer count.
    Killed,
    End,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) worker: usize,
    pub(crate) step: usize,
    pub(crate) requests: Sender<Pending>,
    pub(crate) answers: Receiver<Answer>,
}

thread_local! {
    /// The port of this thread. An engine does not know which thread calls it, so [`SimEngine`] cannot hold
    /// the port.
    static PORT: RefCell<Option<Port>> = const { RefCell::new(None) };
}

pub(crate) fn open(port: Port) {
    PORT.set(Some(port));
}

/// Assigns the requests that follow to this step.
pub(crate) fn set_step(step: usize) {
    PORT.with_borrow_mut(|port| {
        if let Some(port) = port {
            port.step = step;
        }
    });
}

/// Sends a request and waits for the answer. If the scheduler has ended, the answer is `End`.
pub(crate) fn send(request: Request) -> Answer {
    PORT.with_borrow(|port| {
        let Some(port) = port else { return Answer::End };
        let pending = Pending { worker: port.worker, step: port.step, request };
        if port.requests.send(pending).is_err() {
            return Answer::End;
        }
        port.answers.recv().unwrap_or(Answer::End)
    })
}

pub(crate) fn pause() {
    send(Request::Pause);
}

/// The engine of a client. The scheduler decides when each request is answered, and whether it fails.
#[derive(Debug)]
pub(crate) struct SimEngine;

fn killed() -> EngineError {
    EngineError::permanent("the client was killed")
}

impl Engine for SimEngine {
    fn read(&self, keys: &[RecordKey]) -> Result<Snapshot, EngineError> {
        match send(Request::Read(keys.to_vec())) {
            Answer::Read(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        match send(Request::Commit(txns.to_vec())) {
            Answer::Commit(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        match send(Request::Scan(scan.clone())) {
            Answer::Scan(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn sync(&self) -> Result<(), EngineError> {
        match send(Request::Sync) {
            Answer::Go => Ok(()),
            _ => Err(killed()),
        }
    }

    fn wipe(&self) -> Result<(), EngineError> {
        Err(EngineError::permanent("no simulated client wipes a volume"))
    }
}
