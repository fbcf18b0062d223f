//! Flushes in doubt of files that were closed: it is not known whether the database has committed them.
//!
//! The last close of a file whose flush is in doubt fails, and the written data is dropped. But the request
//! may still arrive, and would then replace data that was written after the file was opened again, or by the
//! next holder of its lock. So before this mount commits newer data or a newer size of the file, and before
//! it releases a lock on it, it cancels such a flush ([`Meta::cancel`]): then the flush has happened already,
//! or never happens.
//!
//! Lock order: a file's data, then `flushes`, then the table of open files; a file's data, then the in-doubt
//! transaction of a flush.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::{InDoubtTxn, Meta};
use types::{Errno, Ino};

use crate::open::{FileData, OpenFile, OpenTable};

#[derive(Debug)]
pub(crate) struct Abandoned {
    meta: Arc<Meta>,
    open: Arc<OpenTable>,
    flushes: Mutex<Vec<Arc<Flush>>>,
    /// Whether any flush is in doubt. If not, other calls need not take the lock.
    exist: AtomicBool,
}

#[derive(Debug)]
struct Flush {
    ino: Ino,
    /// Locked while the flush is canceled, so that no newer data of the file is committed meanwhile.
    in_doubt: Mutex<Option<InDoubtTxn>>,
    is_settled: AtomicBool,
}

impl Abandoned {
    pub(crate) fn new(meta: &Arc<Meta>, open: &Arc<OpenTable>) -> Self {
        let (meta, open) = (Arc::clone(meta), Arc::clone(open));
        Abandoned { meta, open, flushes: Mutex::default(), exist: AtomicBool::new(false) }
    }

    /// Closes a handle of a file whose flush is in doubt. If it was the last one, drops the written data, and
    /// keeps the in-doubt transaction. Returns the file then.
    pub(crate) fn close(&self, file: &OpenFile, data: &mut FileData) -> Option<Arc<OpenFile>> {
        let mut flushes = host::lock(&self.flushes);
        // Set this before another thread can open the file again and flush newer data.
        self.exist.store(true, Ordering::Release);
        let closed = self.open.close(file.ino);
        if closed.is_some() {
            flushes.extend(drop_written(file, data));
        }
        self.exist.store(!flushes.is_empty(), Ordering::Release);
        closed
    }

    /// Drops the written data of a file. If its flush is in doubt, keeps the in-doubt transaction.
    pub(crate) fn drop_written(&self, file: &OpenFile, data: &mut FileData) {
        let mut flushes = host::lock(&self.flushes);
        flushes.extend(drop_written(file, data));
        self.exist.store(!flushes.is_empty(), Ordering::Release);
    }

    /// Cancels the abandoned flushes of a file, or of all files. Ends at the first error.
    ///
    /// # Errors
    /// Those of the database; flushes may then still be in doubt.
    pub(crate) fn settle(&self, of: Option<Ino>) -> Result<(), Errno> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_wanted = |flush: &&Arc<Flush>| of.is_none_or(|ino| ino == flush.ino);
        let wanted: Vec<Arc<Flush>> = host::lock(&self.flushes).iter().filter(is_wanted).cloned().collect();
        let done = wanted.iter().try_for_each(|flush| {
            self.meta.cancel(&mut host::lock(&flush.in_doubt))?;
            flush.is_settled.store(true, Ordering::Release);
            Ok(())
        });
        let mut flushes = host::lock(&self.flushes);
        flushes.retain(|flush| !flush.is_settled.load(Ordering::Acquire));
        self.exist.store(!flushes.is_empty(), Ordering::Release);
        done
    }
}

fn drop_written(file: &OpenFile, data: &mut FileData) -> Option<Arc<Flush>> {
    let in_doubt = data.in_doubt.take().map(|flush| flush.in_doubt);
    file.drop_written(data);
    let flush = |in_doubt| Flush {
        ino: file.ino,
        in_doubt: Mutex::new(Some(in_doubt)),
        is_settled: AtomicBool::new(false),
    };
    in_doubt.map(flush).map(Arc::new)
}
