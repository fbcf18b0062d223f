//! The errors of dumps.

use std::io;

use meta::EngineError;

use crate::VERSION;

/// Why a dump cannot be written, read, loaded or compared.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    #[error("this is not a dump of limen")]
    NotADump,
    #[error("the dump was written by a newer limen (version {found}; this one knows {VERSION})")]
    Newer { found: u32 },
    #[error("the dump is cut off after line {line}")]
    CutOff { line: u64 },
    #[error("the dump is damaged after line {line}: {what}")]
    Damaged { line: u64, what: String },
    #[error("the manifest of backup {backup} is damaged: {what}")]
    DamagedManifest { backup: u64, what: String },
    #[error("the database holds a volume already")]
    NotEmpty,
    #[error("another dump was loaded here in part")]
    OtherDump,
    #[error("the records of another load are removed only in part")]
    Discarded,
    #[error("no dump was loaded here in part")]
    NotLoading,
    #[error("another process loads a dump here")]
    OtherProcess,
    /// The caller ended the dump.
    #[error("the dump was stopped")]
    Stopped,
    #[error("the volume changes too fast for a dump while it is mounted")]
    TooFast,
    /// Only on engines that cannot keep a snapshot for as long as a dump takes.
    #[error("limen clone is making a copy, or has left one unfinished")]
    Copying,
    #[error("the file with inode {ino} is too large to be read at once, and changes too fast")]
    BusyFile { ino: u64 },
    #[error("the volume differs from the dump: {0}")]
    Differs(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Io(#[from] io::Error),
}
