//! Flushes in doubt of files that were closed.
//!
//! The last close of a file whose flush is in doubt fails, and the written data is dropped. But the flush may still be
//! committed, and would then replace data that was written after the file was opened again. So before this mount commits
//! newer data or a newer size of the file, it settles such a flush: it sends the flush again under its id until the
//! database answers.
//!
//! Lock order: a file's data, then `flushes`, then the table of open files and the locks of [`Commits`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::{Doubt, Meta};
use ops::Write;
use types::{Errno, Ino, SliceId};

use crate::commits::Commits;
use crate::fencing::Within;
use crate::open::{DoubtfulFlush, FileData, OpenFile, OpenTable};

#[derive(Debug)]
pub(crate) struct Abandoned {
    meta: Arc<Meta>,
    open: Arc<OpenTable>,
    commits: Arc<Commits>,
    /// In the order in which they were sent. Held while flushes are settled, so that nothing newer is committed meanwhile.
    flushes: Mutex<Vec<Flush>>,
    /// Whether there are any, so that a flush of another file need not take the lock.
    exist: AtomicBool,
}

#[derive(Debug)]
struct Flush {
    op: Write,
    slices: Vec<SliceId>,
    /// `None` as soon as the result is known.
    doubt: Option<Doubt>,
}

impl Abandoned {
    pub(crate) fn new(meta: &Arc<Meta>, open: &Arc<OpenTable>, commits: &Arc<Commits>) -> Self {
        let (meta, open, commits) = (Arc::clone(meta), Arc::clone(open), Arc::clone(commits));
        Abandoned { meta, open, commits, flushes: Mutex::default(), exist: AtomicBool::new(false) }
    }

    /// Closes a handle of a file whose flush is in doubt. If it was the last one, keeps the flush, and drops the written
    /// data.
    pub(crate) fn close(&self, file: &OpenFile, data: &mut FileData) -> Option<Arc<OpenFile>> {
        let mut flushes = host::lock(&self.flushes);
        // Before another thread can open the file again and flush newer data.
        self.exist.store(true, Ordering::Release);
        let closed = self.open.close(file.ino);
        if closed.is_some()
            && let Some(DoubtfulFlush { op, staged, doubt }) = data.in_doubt.take()
        {
            flushes.push(Flush { op, slices: staged.slices(), doubt: Some(doubt) });
            file.drop_written(data);
        }
        self.exist.store(!flushes.is_empty(), Ordering::Release);
        closed
    }

    /// Settles the abandoned flushes of a file, or of all files.
    ///
    /// # Errors
    /// Those of the store and the database; flushes may then still be in doubt.
    pub(crate) fn settle(&self, of: Option<Ino>) -> Result<(), Errno> {
        if !self.exist.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut flushes = host::lock(&self.flushes);
        let wanted = flushes.iter_mut().filter(|flush| of.is_none_or(|ino| ino == flush.op.ino));
        // After an error, the later ones are not sent, because they must not overtake it.
        let done = wanted.map(|flush| self.send_again(flush)).find(Result::is_err).unwrap_or(Ok(()));
        flushes.retain(|flush| flush.doubt.is_some());
        self.exist.store(!flushes.is_empty(), Ordering::Release);
        done
    }

    /// Sends a flush in doubt again.
    fn send_again(&self, Flush { op, slices, doubt }: &mut Flush) -> Result<(), Errno> {
        // After the removal of its session, it can no longer be committed.
        doubt.take_if(|doubt| self.meta.is_forgotten(doubt));
        let Some(session) = doubt.as_ref().map(Doubt::session) else { return Ok(()) };
        let done = self.commits.commit_rows_once(&Within(session, op), slices, doubt);
        if let (Err(errno), Some(_)) = (done, &doubt) {
            return Err(errno);
        }
        let bytes: u64 = op.slices.iter().map(|(_, row)| u64::from(row.len)).sum();
        tracing::warn!(ino = %op.ino, bytes, is_stored = done.is_ok(), "the database has answered for data that a close had reported as lost");
        Ok(())
    }
}
