//! The journal of a mount: the transactions that it has answered and that the database may not have yet.
//!
//! The journal is written to the page cache, without a sync. So it survives the end of the mount's process,
//! but not a crash of the machine. The next mount of the volume on this machine, or a tool, commits its
//! transactions under the session of the process that has ended (`client/src/replay.rs`).
//!
//! A journal is a sequence of frames: the length and the CRC-32C of an entry, each as 4 bytes in
//! little-endian order, then the entry, in the format of `postcard`. The entries tell how the queue of these
//! transactions has changed. A transaction whose entry is cut off was never answered.
//!
//! The text of an ACL may have several kilobytes, and many new files inherit the same ACL. So a journal has
//! each text only once.
//!
//! Before transactions are sent, the journal says how they are merged. If the process ends before they are
//! known to be committed, they are sent again exactly as they were, so that the database recognizes them by
//! their ids.

mod file;
mod last;
mod memory;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;

use meta::{Effect, Txn};
use serde::{Deserialize, Serialize};
use types::{AclId, OpId, SessionId, Time};

use last::{Last, Queue};

pub use file::Directory;
pub use memory::Memory;

/// The version of the format. Increment it with each change of the entries or of anything in a transaction.
pub const FORMAT: u32 = 3;
/// The oldest version that can be read. It had no [`Entry::Last`].
const OLDEST_FORMAT: u32 = 2;
/// If nothing is queued, a journal of this size is cut back to its header.
const RESTART_BYTES: u64 = 1 << 20;
/// A journal of this size is rewritten: it then has only the transactions that are still queued.
const REWRITE_BYTES: u64 = 32 << 20;
const FRAME_BYTES: usize = 8;
/// [`Journal::queued`] reserves this much room behind each transaction, for notes about transactions that are
/// in the journal already. A note about one request takes at most a few hundred bytes, and at most a thousand
/// answered transactions are queued.
const RESERVED_BYTES: u64 = 64 << 10;
/// The least room for a replay: its notes about several groups.
const LEAST_RESERVED_BYTES: u64 = 4 << 10;

/// The first entry of a journal: the mount and the volume that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: u32,
    /// The boot of the machine ([`host::boot_id`]).
    pub boot_id: String,
    /// The UUID of the volume.
    pub volume: String,
    /// Distinguishes the volume from others that were loaded from its dumps and have the same UUID
    /// (`Volume::loaded`).
    pub loaded: String,
    pub session: SessionId,
    /// When the mount began, as in the session's record. It distinguishes sessions with the same number: a
    /// restored volume may assign a number again.
    pub since: Time,
}

/// A change of the queue.
#[derive(Debug, Serialize, Deserialize)]
enum Entry<'a> {
    Begin(Cow<'a, Header>),
    /// A transaction was added. It is going to be answered, unless the flag says that its guards may fail. An
    /// ACL without a text has the text of the earlier entry with the same id.
    Queued(Cow<'a, Txn>, bool),
    /// The first transactions are going to be sent. Each number is how many of them are merged into one.
    Sent(Cow<'a, [u32]>),
    /// This many of the first transactions were committed, and are no longer in the queue.
    Committed(u32),
    /// The transactions that were committed last before this entry ([`Unfinished::last`]). Without this
    /// entry, a journal that was cut back to its header would not say that. If there are none, they are not
    /// known for the rest of the journal, because the queue has a transaction that the journal does not have.
    Last(Cow<'a, [OpId]>),
}

/// A place for journals, such as a directory.
pub trait Journals: fmt::Debug + Send + Sync {
    /// A new, empty place for the journal of a session. It belongs to this process until the process ends.
    ///
    /// # Errors
    /// It cannot be created.
    fn create(&self, volume: &str, session: SessionId) -> io::Result<Box<dyn Storage>>;

    /// The journals of this volume whose processes have ended. No other process gets them as long as the
    /// result exists.
    ///
    /// # Errors
    /// The journals cannot be listed. An item of the result is an error if its journal cannot be read.
    fn abandoned(&self, volume: &str) -> io::Result<Vec<io::Result<Abandoned>>>;
}

/// A journal whose process has ended.
#[derive(Debug)]
pub struct Abandoned {
    /// The session that the name of the journal contains.
    pub session: SessionId,
    pub bytes: Vec<u8>,
    pub storage: Box<dyn Storage>,
}

/// The bytes of one journal.
pub trait Storage: fmt::Debug + Send {
    /// The place of the journal, for messages.
    fn place(&self) -> String;

    /// Reserves room on the disk, so that this many bytes can be appended even if the disk becomes full.
    ///
    /// # Errors
    /// The room cannot be reserved.
    fn reserve(&mut self, bytes: u64) -> io::Result<()>;

    /// Appends all bytes, or none.
    ///
    /// # Errors
    /// The bytes cannot be written; then nothing was appended.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts off everything after the first `len` bytes.
    ///
    /// # Errors
    /// The journal remains as it was.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Replaces all bytes, or none.
    ///
    /// # Errors
    /// The journal remains as it was.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Removes the journal.
    ///
    /// # Errors
    /// The journal remains.
    fn remove(&mut self) -> io::Result<()>;

    /// Adds `.SUFFIX` to the name of the journal, so that it is kept but never replayed. Returns its new
    /// place.
    ///
    /// # Errors
    /// The journal remains.
    fn set_aside(&mut self, suffix: &str) -> io::Result<String>;
}

/// The journal of a session.
#[derive(Debug)]
pub struct Journal {
    storage: Box<dyn Storage>,
    /// The frame of the header.
    header: Vec<u8>,
    len: u64,
    /// The queue has a transaction that is not in the journal, so no later one may be added to the journal.
    has_gap: bool,
    /// Transactions that were answered were removed from the journal, because it could not be kept up to
    /// date.
    has_lost: bool,
    /// The journal was removed, because it could not be cut back to its header.
    is_gone: bool,
    /// The last transaction could not be added. Only the first of several such failures in a row is logged.
    is_refusing: bool,
    /// The ACLs whose texts are in the journal.
    texts: HashSet<AclId>,
    queue: Queue,
    frame: Vec<u8>,
}

/// The queue of a mount whose process has ended, as its journal describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    pub header: Header,
    /// The transactions that were not committed, each with a flag that says whether its guards may fail.
    pub queue: VecDeque<(Txn, bool)>,
    /// How the first of them are merged, if they may have been sent.
    pub sent: Vec<u32>,
    /// The ids of the transactions that were committed last: the first one is certainly in the database, and
    /// the others only if their guards held. Empty if it is not known.
    pub last: Vec<OpId>,
    /// The length of the readable beginning of the journal.
    pub len: u64,
    /// Whether the bytes after `len` are damaged, and not only an entry that is cut off. A process that is
    /// killed does not leave such bytes.
    pub is_damaged: bool,
}

/// Why a journal cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It has no complete header: its process ended before it had answered anything, or [`remove`] could only
    /// empty it.
    Empty,
    /// The header is damaged. A process that is killed does not leave such a header.
    Damaged,
    /// Another version of limen has written it.
    OtherFormat(u32),
}

impl Journal {
    /// Begins a journal.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(storage: Box<dyn Storage>, header: &Header) -> io::Result<Journal> {
        let mut journal = Journal::of(storage, header);
        journal.storage.append(&journal.header)?;
        journal.len = journal.header.len() as u64;
        Ok(journal)
    }

    /// Continues a journal whose process has ended.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn resume(mut storage: Box<dyn Storage>, found: &Unfinished) -> io::Result<Journal> {
        storage.truncate(found.len)?;
        // Without room, a note about a commit might not fit on a full disk, and then the journal would be
        // emptied before its transactions are committed. Earlier notes have used a part of the room that the
        // ended process reserved, so a full disk may have only the rest.
        if !found.queue.is_empty() && storage.reserve(RESERVED_BYTES).is_err() {
            storage.reserve(LEAST_RESERVED_BYTES)?;
        }
        let ids = found.queue.iter().map(|(txn, is_optional)| (txn.op_id, *is_optional)).collect();
        let queue = Queue { ids, sent: found.sent.clone(), last: Last(found.last.clone()) };
        Ok(Journal { len: found.len, queue, ..Journal::of(storage, &found.header) })
    }

    fn of(storage: Box<dyn Storage>, header: &Header) -> Journal {
        let mut frame = Vec::new();
        frame_of(&mut frame, &Entry::Begin(Cow::Borrowed(header)));
        Journal {
            storage,
            header: frame,
            len: 0,
            has_gap: false,
            has_lost: false,
            is_gone: false,
            is_refusing: false,
            texts: HashSet::new(),
            queue: Queue::default(),
            frame: Vec::new(),
        }
    }

    /// Adds a transaction that is going to be added to the queue. `is_optional` says whether its guards may
    /// fail. Returns whether the journal has the transaction. If not, the transaction must not be answered
    /// before it is committed.
    #[must_use]
    pub fn queued(&mut self, txn: &Txn, is_optional: bool) -> bool {
        let is_kept = !self.has_gap && self.try_queue(txn, is_optional);
        self.is_refusing = !is_kept;
        is_kept
    }

    fn try_queue(&mut self, txn: &Txn, is_optional: bool) -> bool {
        self.frame.clear();
        if !frame_of(&mut self.frame, &Entry::Queued(without_texts(txn, &self.texts), is_optional)) {
            tracing::error!(
                ?txn,
                "cannot encode a change for the journal: it is committed before it is answered"
            );
            return false;
        }
        let reserved = self.storage.reserve(self.frame.len() as u64 + RESERVED_BYTES);
        match reserved.and_then(|()| self.storage.append(&self.frame)) {
            Ok(()) => {
                self.len += self.frame.len() as u64;
                self.texts.extend(acls_of(txn));
                self.queue.ids.push_back((txn.op_id, is_optional));
            }
            Err(error) => {
                if !self.is_refusing {
                    tracing::warn!(%error, journal = self.storage.place(), "cannot write to a journal: changes are committed before they are answered");
                }
                return false;
            }
        }
        true
    }

    /// Notes that the queue has a transaction that the journal does not have. Until the queue is empty, no
    /// other transaction is added to the journal.
    pub fn skipped(&mut self) {
        self.has_gap = true;
        let _ = self.append(&Entry::Last(Cow::Borrowed(&[])));
    }

    /// Whether the journal has every transaction that was added to it and is not committed.
    pub fn is_whole(&self) -> bool {
        !self.has_lost && !self.is_gone
    }

    /// Notes how the first transactions, which are about to be sent, are merged.
    pub fn sent(&mut self, merged: &[u32]) {
        self.queue.sent = merged.to_vec();
        if !self.append(&Entry::Sent(Cow::Borrowed(merged))) {
            let _ = self.discard();
        }
    }

    /// Notes that the first `count` transactions are committed. `left` has the transactions that remain in
    /// the queue, each with a flag that says whether its guards may fail. `sent` says how the first of these
    /// are merged, if they may have been sent.
    pub fn committed<'a>(
        &mut self,
        count: usize,
        left: impl ExactSizeIterator<Item = (&'a Txn, bool)>,
        sent: &[u32],
    ) {
        self.queue.commit(count, sent);
        let is_empty = left.len() == 0;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if is_empty && (self.has_gap || self.len >= RESTART_BYTES) || !self.append(&Entry::Committed(count)) {
            let last = std::mem::take(&mut self.queue.last);
            let is_usable = self.discard();
            if is_empty {
                (self.has_gap, self.has_lost) = (!is_usable, false);
                self.note_last(last);
            }
        } else if self.len >= REWRITE_BYTES && !self.has_gap {
            self.rewrite(left, sent);
        }
    }

    /// Removes the journal, because everything in it is committed or lost.
    pub fn remove(self) {
        remove(self.storage);
    }

    /// Keeps the journal under another name; see [`set_aside`].
    pub fn set_aside(self, suffix: &str, why: &str) {
        set_aside(self.storage, suffix, why);
    }

    /// Notes in a journal that was cut back which transactions were committed last. If this fails, a replay
    /// does not check whether the database has them.
    fn note_last(&mut self, last: Last) {
        self.frame.clear();
        if !last.0.is_empty()
            && !self.has_gap
            && frame_of(&mut self.frame, &Entry::Last(Cow::Borrowed(&last.0)))
            && self.storage.append(&self.frame).is_ok()
        {
            self.len += self.frame.len() as u64;
            self.queue.last = last;
        }
    }

    fn rewrite<'a>(&mut self, left: impl Iterator<Item = (&'a Txn, bool)>, sent: &[u32]) {
        let mut bytes = self.header.clone();
        let mut texts = HashSet::new();
        let last = if self.has_gap { &[][..] } else { &self.queue.last.0 };
        if self.has_gap || !last.is_empty() {
            frame_of(&mut bytes, &Entry::Last(Cow::Borrowed(last)));
        }
        for (txn, is_optional) in left {
            if !frame_of(&mut bytes, &Entry::Queued(without_texts(txn, &texts), is_optional)) {
                return;
            }
            texts.extend(acls_of(txn));
        }
        if !sent.is_empty() {
            frame_of(&mut bytes, &Entry::Sent(Cow::Borrowed(sent)));
        }
        match self.storage.replace(&bytes) {
            Ok(()) => (self.len, self.texts) = (bytes.len() as u64, texts),
            Err(error) => {
                tracing::warn!(%error, journal = self.storage.place(), "cannot rewrite a journal, so it keeps growing; retrying")
            }
        }
    }

    /// Removes all transactions from the journal, because it no longer agrees with the queue. None is added
    /// until a commit has emptied the queue. Returns whether the journal can be used after that.
    fn discard(&mut self) -> bool {
        (self.has_gap, self.has_lost) = (true, true);
        self.texts.clear();
        self.queue = Queue::default();
        let len = self.header.len() as u64;
        match self.storage.truncate(len) {
            Ok(()) => self.len = len,
            // A journal that does not agree with the queue must not be replayed.
            Err(error) => {
                tracing::error!(%error, journal = self.storage.place(), "cannot cut a journal, so it is removed");
                let _ = self.storage.remove();
                self.is_gone = true;
            }
        }
        !self.is_gone
    }

    /// Appends a note about transactions that are in the journal.
    fn append(&mut self, entry: &Entry<'_>) -> bool {
        self.frame.clear();
        if !frame_of(&mut self.frame, entry) {
            return false;
        }
        match self.storage.append(&self.frame) {
            Ok(()) => self.len += self.frame.len() as u64,
            Err(error) => {
                tracing::error!(%error, journal = self.storage.place(), "cannot write to a journal: answered changes are lost if this process is killed before they are committed");
                return false;
            }
        }
        true
    }
}

/// Removes a journal, because everything in it is committed or lost. If it cannot be removed, for example
/// because its directory is read-only, empties it, so that it is not replayed again.
pub fn remove(mut storage: Box<dyn Storage>) {
    if let Err(error) = storage.remove() {
        let is_empty = storage.truncate(0).is_ok();
        tracing::warn!(%error, is_empty, journal = storage.place(), "cannot remove a journal; retrying rarely");
    }
}

/// Keeps a journal under another name ([`Storage::set_aside`]), because it cannot be replayed. `why` is for
/// the log.
pub fn set_aside(mut storage: Box<dyn Storage>, suffix: &str, why: &str) {
    let journal = storage.place();
    match storage.set_aside(suffix) {
        Ok(kept) => tracing::error!(journal, kept, "a journal is kept under another name: {why}"),
        Err(error) => tracing::error!(journal, %error, "a journal stays as it is: {why}"),
    }
}

fn acls_of(txn: &Txn) -> impl Iterator<Item = AclId> {
    txn.effects.iter().filter_map(|effect| match effect {
        Effect::PutAcl { id, .. } => Some(*id),
        _ => None,
    })
}

/// The transaction without the texts of these ACLs.
fn without_texts<'a>(txn: &'a Txn, known: &HashSet<AclId>) -> Cow<'a, Txn> {
    let mut txn = Cow::Borrowed(txn);
    if acls_of(&txn).any(|id| known.contains(&id)) {
        for effect in &mut txn.to_mut().effects {
            if let Effect::PutAcl { id, text } = effect
                && known.contains(id)
            {
                *text = "".into();
            }
        }
    }
    txn
}

/// Gives each ACL without a text the text of the earlier entry, and adds the other texts to `known`. Returns
/// whether all were known.
fn with_texts(txn: &mut Txn, known: &mut HashMap<AclId, Arc<str>>) -> bool {
    txn.effects.iter_mut().all(|effect| {
        let Effect::PutAcl { id, text } = effect else { return true };
        if !text.is_empty() {
            known.insert(*id, Arc::clone(text));
            return true;
        }
        known.get(id).is_some_and(|found| {
            *text = Arc::clone(found);
            true
        })
    })
}

/// Appends the frame of an entry. Returns false, and appends nothing, if the entry cannot be encoded.
fn frame_of(bytes: &mut Vec<u8>, entry: &Entry<'_>) -> bool {
    let Ok(entry) = postcard::to_allocvec(entry) else { return false };
    let Ok(len) = u32::try_from(entry.len()) else { return false };
    bytes.extend(len.to_le_bytes());
    bytes.extend(crc32c::crc32c(&entry).to_le_bytes());
    bytes.extend(entry);
    true
}

/// The first frame of some bytes.
enum Next<'a> {
    /// An entry, in the format of `postcard`, and the rest.
    Entry(&'a [u8], &'a [u8]),
    /// A frame that is cut off, or nothing.
    CutOff,
    Damaged,
}

fn next(bytes: &[u8]) -> Next<'_> {
    let Some((frame, rest)) = bytes.split_at_checked(FRAME_BYTES) else { return Next::CutOff };
    let (len, crc) = frame.split_at(4);
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
    let Some((entry, rest)) = rest.split_at_checked(number(len) as usize) else { return Next::CutOff };
    match crc32c::crc32c(entry) == number(crc) {
        true => Next::Entry(entry, rest),
        false => Next::Damaged,
    }
}

/// Reads a journal whose process has ended.
///
/// # Errors
/// The header cannot be read; [`Unusable`] says why.
pub fn read(bytes: &[u8]) -> Result<Unfinished, Unusable> {
    let (first, mut rest) = match next(bytes) {
        Next::Entry(first, rest) => (first, rest),
        Next::CutOff => return Err(Unusable::Empty),
        Next::Damaged => return Err(Unusable::Damaged),
    };
    // The format is the first field after the kind of the entry, so it can be read whatever other fields
    // follow.
    match first.get(1..).map(postcard::take_from_bytes::<u32>) {
        Some(Ok((OLDEST_FORMAT..=FORMAT, _))) => {}
        Some(Ok((format, _))) => return Err(Unusable::OtherFormat(format)),
        _ => return Err(Unusable::Damaged),
    }
    let Ok(Entry::Begin(header)) = postcard::from_bytes(first) else { return Err(Unusable::Damaged) };
    let (header, mut texts) = (Cow::into_owned(header), HashMap::new());
    let (queue, sent, last) = (VecDeque::new(), Vec::new(), Vec::new());
    let mut found = Unfinished { header, queue, sent, last, len: 0, is_damaged: false };
    let mut has_gap = false;
    loop {
        let (entry, after) = match next(rest) {
            Next::Entry(entry, after) => (postcard::from_bytes(entry), after),
            Next::CutOff => break,
            Next::Damaged => (Err(postcard::Error::DeserializeBadEncoding), rest),
        };
        match entry {
            Ok(Entry::Queued(txn, is_optional)) => {
                let mut txn = Cow::into_owned(txn);
                if !with_texts(&mut txn, &mut texts) {
                    found.is_damaged = true;
                    break;
                }
                found.queue.push_back((txn, is_optional));
            }
            Ok(Entry::Sent(merged)) => found.sent = Cow::into_owned(merged),
            Ok(Entry::Committed(count)) => found.commit(count),
            Ok(Entry::Last(last)) => {
                has_gap |= last.is_empty();
                found.last = Cow::into_owned(last);
            }
            Ok(Entry::Begin(_)) | Err(_) => {
                found.is_damaged = true;
                break;
            }
        }
        rest = after;
    }
    if has_gap {
        found.last.clear();
    }
    found.len = (bytes.len() - rest.len()) as u64;
    Ok(found)
}

impl Unfinished {
    /// The number of changes in the queue that were answered. A transaction whose guards may fail does not
    /// count, because no caller waits for it.
    pub fn changes(&self) -> usize {
        self.queue.iter().filter(|(_, is_optional)| !is_optional).count()
    }

    fn commit(&mut self, count: u32) {
        let mut last = Last(std::mem::take(&mut self.last));
        let at = |at: usize| self.queue.get(at).map(|(txn, is_optional)| (txn.op_id, *is_optional));
        last.note(at, &self.sent, count as usize);
        self.last = last.0;
        self.queue.drain(..self.queue.len().min(count as usize));
        let mut left = count;
        let done = self.sent.iter().take_while(|merged| {
            let is_done = left >= **merged;
            left = left.saturating_sub(**merged);
            is_done
        });
        let done = done.count();
        self.sent.drain(..done);
    }
}

#[cfg(test)]
mod tests;
