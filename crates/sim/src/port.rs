//! How a thread of a client and the scheduler talk: the thread asks and waits, so one thread runs at a time.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use meta::{Engine, EngineError, Facts, Outcome, Page, Scan, Txn, Want};

use crate::act::Order;

/// What a thread waits for.
#[derive(Debug)]
pub(crate) enum Ask {
    /// It has nothing to do.
    Next,
    /// It would go on, but others may go first.
    Pause,
    /// It waits until this moment.
    Sleep(Duration),
    Read(Vec<Want>),
    Commit(Vec<Txn>),
    Scan(Scan),
    Sync,
}

/// A question, the thread that asks it, and the step that the thread works on.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) worker: usize,
    pub(crate) step: usize,
    pub(crate) ask: Ask,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Order(Order),
    Go,
    Read(Result<Facts, EngineError>),
    Commit(Result<Vec<Outcome>, EngineError>),
    Scan(Result<Page, EngineError>),
    /// The client was killed: nothing that the thread does counts any more.
    Killed,
    End,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) worker: usize,
    pub(crate) step: usize,
    pub(crate) asks: Sender<Asked>,
    pub(crate) answers: Receiver<Answer>,
}

thread_local! {
    /// The port of this thread. An engine does not say which thread asks, so the port cannot lie in [`SimEngine`].
    static PORT: RefCell<Option<Port>> = const { RefCell::new(None) };
}

pub(crate) fn open(port: Port) {
    PORT.set(Some(port));
}

/// The requests that follow belong to this step.
pub(crate) fn set_step(step: usize) {
    PORT.with_borrow_mut(|port| {
        if let Some(port) = port {
            port.step = step;
        }
    });
}

/// Asks, and waits for the answer. A scheduler that is gone ends the thread.
pub(crate) fn ask(ask: Ask) -> Answer {
    PORT.with_borrow(|port| {
        let Some(port) = port else { return Answer::End };
        let asked = Asked { worker: port.worker, step: port.step, ask };
        if port.asks.send(asked).is_err() {
            return Answer::End;
        }
        port.answers.recv().unwrap_or(Answer::End)
    })
}

pub(crate) fn pause() {
    ask(Ask::Pause);
}

/// The engine as a client sees it: each request is decided by the scheduler.
#[derive(Debug)]
pub(crate) struct SimEngine;

fn killed() -> EngineError {
    EngineError::permanent("the client was killed")
}

impl Engine for SimEngine {
    fn read(&self, wants: &[Want]) -> Result<Facts, EngineError> {
        match ask(Ask::Read(wants.to_vec())) {
            Answer::Read(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn commit(&self, txns: &[Txn]) -> Result<Vec<Outcome>, EngineError> {
        match ask(Ask::Commit(txns.to_vec())) {
            Answer::Commit(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn scan(&self, scan: &Scan) -> Result<Page, EngineError> {
        match ask(Ask::Scan(scan.clone())) {
            Answer::Scan(answer) => answer,
            _ => Err(killed()),
        }
    }

    fn sync(&self) -> Result<(), EngineError> {
        match ask(Ask::Sync) {
            Answer::Go => Ok(()),
            _ => Err(killed()),
        }
    }

    fn wipe(&self) -> Result<(), EngineError> {
        Err(EngineError::permanent("no simulated client wipes a volume"))
    }
}
