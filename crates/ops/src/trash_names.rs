//! The names in the trash, and the directories of it that a client knows. The rules are in `trash.rs`.

use std::sync::Mutex;

use host::HashMap;
use meta::Inode;
use types::{Errno, Ino, Name, QuotaId, Time};

/// The name of the trash in the root directory.
pub const TRASH_NAME: &[u8] = b".trash";

const SECS_PER_HOUR: i64 = 3600;
/// The longest name, `NAME_MAX`.
const NAME_BYTES: usize = 255;
/// The largest number of hour directories that a client keeps. When the number is reached, the client forgets
/// all of them.
const MAX_DIRS: usize = 4096;

/// An hour in UTC, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrashHour(pub i64);

impl TrashHour {
    pub fn of(time: Time) -> TrashHour {
        TrashHour(time.sec().div_euclid(SECS_PER_HOUR))
    }

    pub fn begin(self) -> Time {
        Time::new(self.0.saturating_mul(SECS_PER_HOUR), 0)
    }

    /// The name of its directory, `YYYY-MM-DD-HH`.
    pub fn name(self) -> String {
        // "2026-11-20 18:52:07 UTC"
        let text = self.begin().to_string().replacen(' ', "-", 1);
        text.split(':').next().unwrap_or_default().to_owned()
    }

    /// The hour of the directory with this name; `None` if the name is not that of an hour.
    pub fn from_name(name: &[u8]) -> Option<TrashHour> {
        let text = std::str::from_utf8(name).ok()?;
        let mut parts = text.split('-').map(|part| part.parse::<i64>().ok());
        let (year, month, day, hour) = (parts.next()??, parts.next()??, parts.next()??, parts.next()??);
        if !(1970..=2262).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // This is the inverse of the algorithm in [`Time`]'s display.
        let year = if month <= 2 { year - 1 } else { year };
        let month = if month <= 2 { month + 9 } else { month - 3 };
        let days =
            year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
        let hour = TrashHour(days * 24 + hour);
        // This also excludes other spellings, and days that do not exist.
        (hour.name().as_bytes() == name).then_some(hour)
    }

    /// As [`Self::from_name`], but `None` if the hour is after `now`. The owner of a directory may have given
    /// it such a name, and its files would then never expire.
    pub fn from_name_until(name: &[u8], now: TrashHour) -> Option<TrashHour> {
        Self::from_name(name).filter(|hour| *hour <= now)
    }
}

/// The name of a removed inode in the directory of its hour: `PARENT-INO-NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashName {
    /// The directory from which it was removed.
    pub parent: Ino,
    pub ino: Ino,
    /// Its name there. The end of a long name is cut off.
    pub name: Name,
}

impl TrashName {
    /// The name in the trash.
    pub fn encode(parent: Ino, ino: Ino, name: &Name) -> Result<Name, Errno> {
        let mut bytes = format!("{parent}-{ino}-").into_bytes();
        let whole = name.as_bytes();
        let mut len = whole.len().min(NAME_BYTES - bytes.len());
        // A character of UTF-8 is not cut.
        while len > 0 && whole.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
            len -= 1;
        }
        bytes.extend_from_slice(if len == 0 { &whole[..whole.len().min(64)] } else { &whole[..len] });
        Ok(Name::new(&bytes)?)
    }

    /// `None` if the name is not one of a removed inode.
    pub fn decode(name: &[u8]) -> Option<TrashName> {
        let mut parts = name.splitn(3, |byte| *byte == b'-');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok().map(Ino);
        let (parent, ino) = (number()?, number()?);
        Some(TrashName { parent, ino, name: Name::new(parts.next()?).ok()? })
    }
}

/// The directories of hours that a client knows, each by its uid. There is one for each uid: the latest.
#[derive(Debug, Default)]
pub struct TrashDirs(Mutex<HashMap<u32, (TrashHour, Ino)>>);

impl TrashDirs {
    pub(crate) fn get(&self, uid: u32, hour: TrashHour) -> Option<Ino> {
        host::lock(&self.0).get(&uid).filter(|(of, _)| *of == hour).map(|(_, ino)| *ino)
    }

    /// Keeps the directory of an hour, which [`MakeTrash`](crate::MakeTrash) has found or created.
    pub fn put(&self, uid: u32, hour: TrashHour, dir: Ino) {
        let mut dirs = host::lock(&self.0);
        if dirs.len() >= MAX_DIRS {
            dirs.clear();
        }
        dirs.insert(uid, (hour, dir));
    }
}

/// Whether an inode is in the trash.
pub fn is_in_trash(inode: &Inode) -> bool {
    inode.quota.directory() == QuotaId::TRASH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Name {
        Name::new(bytes).unwrap()
    }

    #[test]
    fn each_hour_has_one_name() {
        for (sec, text) in
            [(0, "1970-01-01-00"), (951_782_400 - 1, "2000-02-28-23"), (951_868_799, "2000-02-29-23")]
        {
            let hour = TrashHour::of(Time::new(sec, 5));
            assert_eq!(hour.name(), text);
            assert_eq!(TrashHour::from_name(text.as_bytes()), Some(hour));
        }
        for hour in (0..2_000_000).step_by(7) {
            let hour = TrashHour(hour);
            assert_eq!(TrashHour::from_name(hour.name().as_bytes()), Some(hour));
        }
        for wrong in [
            "",
            "2026",
            "2026-1-1-1",
            "2026-01-01-24",
            "2025-02-29-00",
            "2026-01-01-01-01",
            "2026-01-01 01",
            "x",
        ] {
            assert_eq!(TrashHour::from_name(wrong.as_bytes()), None, "{wrong}");
        }
        let until = |now| TrashHour::from_name_until(b"1970-01-01-02", TrashHour(now));
        assert_eq!((until(1), until(2)), (None, Some(TrashHour(2))));
    }

    #[test]
    fn names_in_the_trash_tell_where_a_file_was() {
        for text in [&b"f"[..], b"a-b-c", b"-", b"\xff\n"] {
            let encoded = TrashName::encode(Ino(7), Ino(8), &name(text)).unwrap();
            let expected = TrashName { parent: Ino(7), ino: Ino(8), name: name(text) };
            assert_eq!(TrashName::decode(encoded.as_bytes()), Some(expected));
        }
        for wrong in ["", "7", "7-8", "7-8-", "x-8-f", "7--f"] {
            assert_eq!(TrashName::decode(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn a_long_name_loses_its_end() {
        let (parent, ino) = (Ino(i64::MAX as u64), Ino(i64::MAX as u64));
        for (text, kept) in [("x".repeat(255), 215), ("é".repeat(127), 214)] {
            let encoded = TrashName::encode(parent, ino, &name(text.as_bytes())).unwrap();
            let decoded = TrashName::decode(encoded.as_bytes()).unwrap();
            assert_eq!(decoded.name.as_bytes(), &text.as_bytes()[..kept]);
            assert!(encoded.as_bytes().len() <= NAME_BYTES);
        }
        // Bytes that continue no character are cut anywhere.
        let encoded = TrashName::encode(parent, ino, &name(&[0x80; 255])).unwrap();
        assert!(TrashName::decode(encoded.as_bytes()).is_some());
    }
}
