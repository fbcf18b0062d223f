//! The bytes of a dump: lines of JSON, in compressed frames or as plain text.

use std::io::{self, BufRead, Read, Write};

use crate::error::DumpError;
use crate::line::{FirstLine, LastLine, Line};
use crate::{MAGIC, VERSION};

/// How a dump is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Compressed frames with checksums.
    Framed,
    /// Lines of JSON.
    Json,
}

/// A frame ends after the line with which its lines reach this size.
const FRAME_BYTES: usize = 1 << 20;

/// The longest line or frame that a reader accepts.
const MAX_BYTES: usize = 16 << 20;
/// The longest first line that a reader accepts, even of a newer version.
const MAX_HEAD_BYTES: usize = 4096;
/// The longest id of a dump that a reader accepts.
const MAX_ID_BYTES: usize = 64;

/// The first line of any version. A newer one may have other fields.
#[derive(serde::Deserialize)]
struct AnyHead {
    dump: AnyVersion,
}

#[derive(serde::Deserialize)]
struct AnyVersion {
    version: u64,
}

/// zstd's default level.
const LEVEL: i32 = 3;

/// Writes a dump.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    form: Form,
    frame: Vec<u8>,
    frames: u64,
    tail: LastLine,
}

impl<W: Write> Writer<W> {
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, form: Form, head: FirstLine) -> Result<Self, DumpError> {
        if form == Form::Framed {
            out.write_all(MAGIC)?;
            out.write_all(&VERSION.to_le_bytes())?;
        }
        let mut writer = Writer { out, form, frame: Vec::new(), frames: 0, tail: LastLine::default() };
        writer.put(&Line::Dump(head))?;
        Ok(writer)
    }

    /// # Errors
    /// Those of `out`.
    pub fn put(&mut self, line: &Line) -> Result<(), DumpError> {
        let start = self.frame.len();
        serde_json::to_writer(&mut self.frame, line).map_err(io::Error::from)?;
        self.frame.push(b'\n');
        self.tail.add(line, self.frame.get(start..).unwrap_or_default());
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes the last line, and returns the output and the totals.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> Result<(W, LastLine), DumpError> {
        let tail = self.tail;
        self.put(&Line::End(tail))?;
        self.flush()?;
        self.out.flush()?;
        Ok((self.out, tail))
    }

    fn flush(&mut self) -> Result<(), DumpError> {
        if self.frame.is_empty() {
            return Ok(());
        }
        match self.form {
            Form::Json => self.out.write_all(&self.frame)?,
            Form::Framed => {
                let packed = zstd::bulk::compress(&self.frame, LEVEL)?;
                let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
                let header = [length(&packed)?.to_le_bytes(), length(&self.frame)?.to_le_bytes()].concat();
                self.out.write_all(&header)?;
                self.out.write_all(&checksum(self.frames, &header, &packed).to_le_bytes())?;
                self.out.write_all(&packed)?;
            }
        }
        self.frames += 1;
        self.frame.clear();
        Ok(())
    }
}

/// The checksum of a frame. It covers the frame's number too, so that a frame that is missing or in another
/// place is noticed.
fn checksum(number: u64, header: &[u8], packed: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, header), packed)
}

impl LastLine {
    fn add(&mut self, line: &Line, bytes: &[u8]) {
        self.lines += 1;
        self.inodes += u64::from(matches!(line, Line::Inode(_)));
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
    }
}

/// Reads a dump, of either form.
pub struct Reader {
    input: Box<dyn BufRead>,
    form: Form,
    head: FirstLine,
    frame: Vec<u8>,
    /// The position in `frame`.
    at: usize,
    frames: u64,
    tail: LastLine,
    ended: bool,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("head", &self.head).field("tail", &self.tail).finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a dump, and reads its first line.
    ///
    /// # Errors
    /// It is not a dump; it is of a newer version; those of `input`.
    pub fn open(mut input: Box<dyn BufRead>) -> Result<Self, DumpError> {
        let start = input.fill_buf()?;
        let form = if start.first() == Some(&b'{') { Form::Json } else { Form::Framed };
        if form == Form::Framed {
            let mut header = [0; MAGIC.len() + 4];
            read_exact(&mut input, &mut header, 0)?;
            let (magic, version) = header.split_at(MAGIC.len());
            if magic != MAGIC {
                return Err(DumpError::NotADump);
            }
            check_version(u32::from_le_bytes(version.try_into().unwrap_or_default()))?;
        }
        let head = FirstLine { version: 0, id: String::new(), created: 0 };
        let (frame, tail) = (Vec::new(), LastLine::default());
        let mut reader = Reader { input, form, head, frame, at: 0, frames: 0, tail, ended: false };
        reader.read_head()?;
        Ok(reader)
    }

    fn read_head(&mut self) -> Result<(), DumpError> {
        let bytes = self.next_bytes()?;
        let head: Option<AnyHead> = match bytes.len() <= MAX_HEAD_BYTES {
            true => serde_json::from_slice(&bytes).ok(),
            false => None,
        };
        let version = head.ok_or(DumpError::NotADump)?.dump.version;
        check_version(u32::try_from(version).unwrap_or(u32::MAX))?;
        let Line::Dump(head) = self.parse(&bytes)? else { return Err(DumpError::NotADump) };
        // The id becomes a part of a setting whose parts are separated by blanks.
        let is_id = head.id.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_id || head.id.is_empty() || head.id.len() > MAX_ID_BYTES {
            return Err(self.damaged("its id is malformed"));
        }
        self.head = head;
        Ok(())
    }

    pub fn head(&self) -> &FirstLine {
        &self.head
    }

    /// The totals of the lines that were read so far; at the end, those of the dump.
    pub fn tail(&self) -> LastLine {
        self.tail
    }

    /// The next line; `None` after the last one, when the totals and the checksum have been compared.
    ///
    /// # Errors
    /// The dump is cut off or damaged; those of the input.
    #[allow(clippy::should_implement_trait, reason = "a dump that fails has no further lines")]
    pub fn next(&mut self) -> Result<Option<Line>, DumpError> {
        if self.ended {
            return Ok(None);
        }
        let bytes = self.next_bytes()?;
        match self.parse(&bytes)? {
            Line::End(_) => {
                self.ended = true;
                let more = self.at < self.frame.len() || !self.input.fill_buf()?.is_empty();
                if more { Err(self.damaged("something follows its last line")) } else { Ok(None) }
            }
            Line::Dump(_) => Err(self.damaged("it has two first lines")),
            line => Ok(Some(line)),
        }
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<Line, DumpError> {
        let line = serde_json::from_slice(bytes).map_err(|error| self.damaged(&error.to_string()))?;
        match line {
            Line::End(tail) if tail != self.tail => {
                Err(self.damaged("its totals or its checksum are not those of its lines"))
            }
            Line::End(_) => Ok(line),
            line => {
                self.tail.add(&line, bytes);
                Ok(line)
            }
        }
    }

    pub(crate) fn damaged(&self, what: &str) -> DumpError {
        DumpError::Damaged { line: self.tail.lines, what: what.to_owned() }
    }

    /// The next line, with the newline.
    fn next_bytes(&mut self) -> Result<Vec<u8>, DumpError> {
        if self.form == Form::Json {
            let mut line = Vec::new();
            (&mut self.input).take(MAX_BYTES as u64).read_until(b'\n', &mut line)?;
            return match line.last() {
                Some(b'\n') => Ok(line),
                _ if line.len() >= MAX_BYTES => Err(self.damaged("a line is too long")),
                _ => Err(DumpError::CutOff { line: self.tail.lines }),
            };
        }
        if self.at >= self.frame.len() {
            self.next_frame()?;
        }
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == b'\n');
        let Some(line) = end.and_then(|end| rest.get(..=end)) else {
            return Err(self.damaged("a frame ends within a line"));
        };
        let line = line.to_vec();
        self.at += line.len();
        Ok(line)
    }

    fn next_frame(&mut self) -> Result<(), DumpError> {
        let mut header = [0; 12];
        read_exact(&mut self.input, &mut header, self.tail.lines)?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let (packed, length) = (word(0) as usize, word(4) as usize);
        if packed > MAX_BYTES || length > MAX_BYTES || length == 0 {
            return Err(self.damaged("the header of a frame is damaged"));
        }
        let mut bytes = vec![0; packed];
        read_exact(&mut self.input, &mut bytes, self.tail.lines)?;
        if checksum(self.frames, header.get(..8).unwrap_or_default(), &bytes) != word(8) {
            return Err(self.damaged("the checksum of a frame is wrong"));
        }
        let frame = zstd::bulk::decompress(&bytes, length).ok().filter(|frame| frame.len() == length);
        self.frame = frame.ok_or_else(|| self.damaged("a frame cannot be decompressed"))?;
        self.at = 0;
        self.frames += 1;
        Ok(())
    }
}

fn check_version(version: u32) -> Result<(), DumpError> {
    match version {
        0 => Err(DumpError::NotADump),
        1..=VERSION => Ok(()),
        found => Err(DumpError::Newer { found }),
    }
}

/// Fills `into`. If the input ends before that, the dump is cut off after the line with this number.
fn read_exact(input: &mut dyn BufRead, into: &mut [u8], line: u64) -> Result<(), DumpError> {
    match input.read_exact(into) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(DumpError::CutOff { line }),
        done => Ok(done?),
    }
}
