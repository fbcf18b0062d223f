//! Keys: their sources, the derivation of a volume's key, and the detection of a wrong key.
//!
//! A [`Secret`] is what the user keeps: 32 random bytes, or a passphrase. A volume's key is derived from the
//! secret and from the random salt in the volume's settings, so that two volumes with one secret share no
//! key. From 32 random bytes, it is derived by keyed BLAKE3 of a constant text and the salt; from a
//! passphrase, by Argon2id (RFC 9106). The settings also contain a check value computed from the volume's key
//! alone, which detects a wrong secret before any block is read.
//!
//! Keys are wiped from memory when they are dropped, and never printed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::rand::{GetRandomFlags, getrandom};
use types::Errno;
use zeroize::{Zeroize, Zeroizing};

use crate::ChunkError;
use crate::cipher::Cipher;

/// The length of a key in bytes.
pub(crate) const KEY_BYTES: usize = 32;

/// The maximum number of bytes read from a key file: more than any of its forms needs, including white space.
const KEY_FILE_BYTES: u64 = 1024;

/// The length of a salt, and of a check value, in bytes.
const SALT_BYTES: usize = 16;

/// The cost of deriving a key from a passphrase: the second recommended option of RFC 9106 section 4, but
/// with one lane instead of four. It takes a third of a second.
const ARGON2_MEMORY_KIB: u32 = 64 << 10;
const ARGON2_PASSES: u32 = 3;

/// The maximum cost that settings may request, so that damaged settings cannot exhaust the machine.
const ARGON2_MAX_MEMORY_KIB: u32 = 1 << 20;
const ARGON2_MAX_PASSES: u32 = 32;

/// Separates the uses of BLAKE3 from each other, and from those of other programs.
const VOLUME_KEY: &[u8] = b"limenfs volume key 1";
const CHECK_VALUE: &[u8] = b"limenfs key check 1";

type Key = Zeroizing<[u8; KEY_BYTES]>;

/// The secret that unlocks a volume: 32 random bytes, or a passphrase.
#[derive(Clone)]
pub struct Secret(Kind);

#[derive(Clone)]
enum Kind {
    Key(Key),
    Passphrase(Zeroizing<String>),
}

impl Secret {
    /// Parses a key: 64 hexadecimal digits, or 44 characters of base64 (RFC 4648 section 4), as `openssl rand
    /// -hex 32` and `openssl rand -base64 32` print them. Surrounding white space is ignored.
    ///
    /// # Errors
    /// [`ChunkError::Key`] for any other text; the message does not contain the text.
    pub fn key_from_text(text: &str) -> Result<Self, ChunkError> {
        let text = text.trim();
        let mut key = Key::default();
        let found = match text.len() {
            64 => from_hex(text, &mut *key),
            44 => BASE64_STANDARD
                .decode(text)
                .map(Zeroizing::new)
                .ok()
                .filter(|bytes| bytes.len() == KEY_BYTES)
                .map(|bytes| key.copy_from_slice(&bytes)),
            _ => None,
        };
        found.map(|()| Secret(Kind::Key(key))).ok_or_else(|| {
            ChunkError::Key("not a key: expected 32 bytes as 64 hexadecimal digits or as base64".to_owned())
        })
    }

    /// Reads a key from a file: 32 raw bytes, or text as for [`Secret::key_from_text`].
    ///
    /// # Errors
    /// [`ChunkError::Key`] if the file cannot be read or holds no key; the message names the file.
    pub fn key_from_file(path: &Path) -> Result<Self, ChunkError> {
        let fail = |what: &dyn fmt::Display| ChunkError::Key(format!("key file {}: {what}", path.display()));
        let mut bytes = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES as usize));
        let file = File::open(path).map_err(|error| fail(&error))?;
        file.take(KEY_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| fail(&error))?;
        if let Ok(key) = <[u8; KEY_BYTES]>::try_from(bytes.as_slice()) {
            return Ok(Secret(Kind::Key(Zeroizing::new(key))));
        }
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        Self::key_from_text(text)
            .map_err(|_| fail(&"it must hold 32 bytes, raw or as hexadecimal digits or base64"))
    }

    /// Reads a key from an environment variable, as text.
    ///
    /// # Errors
    /// [`ChunkError::Key`] if the variable is not set or is not a key; the message names the variable.
    pub fn key_from_env(name: &str) -> Result<Self, ChunkError> {
        // The text of a `VarError` would contain the value.
        let fail = |what| ChunkError::Key(format!("{name}: the environment variable {what}"));
        let value = std::env::var_os(name).ok_or_else(|| fail("is not set"))?;
        let text = value.into_string().map_err(|_| fail("is not text"))?;
        let text = Zeroizing::new(text);
        Self::key_from_text(&text).map_err(|error| ChunkError::Key(format!("{name}: {error}")))
    }

    pub fn passphrase(passphrase: String) -> Self {
        Secret(Kind::Passphrase(Zeroizing::new(passphrase)))
    }

    fn volume_key(&self, settings: &EncryptionSettings) -> Result<Key, ChunkError> {
        match (&self.0, settings.derivation) {
            (Kind::Key(key), Derivation::Key) => Ok(keyed(key, VOLUME_KEY, &settings.salt)),
            (Kind::Passphrase(passphrase), Derivation::Argon2id { memory_kib, passes }) => {
                let fail = |error| ChunkError::Key(format!("Argon2id: {error}"));
                let params = Params::new(memory_kib, passes, 1, Some(KEY_BYTES)).map_err(fail)?;
                let mut key = Key::default();
                Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                    .hash_password_into(passphrase.as_bytes(), &settings.salt, &mut *key)
                    .map_err(fail)?;
                Ok(key)
            }
            (Kind::Key(_), Derivation::Argon2id { .. }) => {
                Err(ChunkError::Key("this volume needs a passphrase, not a key".to_owned()))
            }
            (Kind::Passphrase(_), Derivation::Key) => {
                Err(ChunkError::Key("this volume needs a key, not a passphrase".to_owned()))
            }
        }
    }
}

/// The encryption settings of a volume; nothing in them is secret. Their text form is one word,
/// `CIPHER:DERIVATION:SALT:CHECK`, where the derivation is `key` or `argon2id,KIB,PASSES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncryptionSettings {
    cipher: Cipher,
    derivation: Derivation,
    salt: [u8; SALT_BYTES],
    check: [u8; SALT_BYTES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Derivation {
    Key,
    Argon2id { memory_kib: u32, passes: u32 },
}

impl EncryptionSettings {
    /// Creates the settings of a new volume, with a new salt, and its key.
    ///
    /// # Errors
    /// [`ChunkError::Key`] if getrandom(2) fails, or there is no memory for Argon2id.
    pub fn new(cipher: Cipher, secret: &Secret) -> Result<(Self, Encryption), ChunkError> {
        let derivation = match secret.0 {
            Kind::Key(_) => Derivation::Key,
            Kind::Passphrase(_) => {
                Derivation::Argon2id { memory_kib: ARGON2_MEMORY_KIB, passes: ARGON2_PASSES }
            }
        };
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt)
            .map_err(|errno| ChunkError::Key(format!("cannot get random bytes from the kernel: {errno}")))?;
        let mut settings = EncryptionSettings { cipher, derivation, salt, check: [0; SALT_BYTES] };
        let key = secret.volume_key(&settings)?;
        settings.check = check_value(&key);
        Ok((settings, Encryption { cipher, key }))
    }

    /// Derives the volume's key.
    ///
    /// # Errors
    /// [`ChunkError::WrongKey`] if the volume was created with another secret; [`ChunkError::Key`] for a
    /// passphrase instead of a key, or the reverse.
    pub fn unlock(&self, secret: &Secret) -> Result<Encryption, ChunkError> {
        let key = secret.volume_key(self)?;
        // The check value is not secret, so the timing of this comparison reveals nothing.
        if check_value(&key) != self.check {
            return Err(ChunkError::WrongKey);
        }
        Ok(Encryption { cipher: self.cipher, key })
    }

    pub fn cipher(&self) -> Cipher {
        self.cipher
    }
}

impl fmt::Display for EncryptionSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.cipher)?;
        match self.derivation {
            Derivation::Key => f.write_str("key")?,
            Derivation::Argon2id { memory_kib, passes } => write!(f, "argon2id,{memory_kib},{passes}")?,
        }
        for bytes in [&self.salt, &self.check] {
            f.write_str(":")?;
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl FromStr for EncryptionSettings {
    type Err = ChunkError;

    /// # Errors
    /// [`ChunkError::Config`] for text that is not of this form, or whose costs exceed the maximum.
    fn from_str(text: &str) -> Result<Self, ChunkError> {
        let parts: Vec<&str> = text.split(':').collect();
        let damaged = || ChunkError::Config("the volume's encryption settings are damaged".to_owned());
        let &[cipher, derivation, salt, check] = parts.as_slice() else { return Err(damaged()) };
        let mut settings = EncryptionSettings {
            cipher: cipher.parse()?,
            derivation: Derivation::parse(derivation).ok_or_else(damaged)?,
            salt: [0; SALT_BYTES],
            check: [0; SALT_BYTES],
        };
        from_hex(salt, &mut settings.salt).ok_or_else(damaged)?;
        from_hex(check, &mut settings.check).ok_or_else(damaged)?;
        Ok(settings)
    }
}

impl Derivation {
    fn parse(text: &str) -> Option<Self> {
        if text == "key" {
            return Some(Derivation::Key);
        }
        let (memory_kib, passes) = text.strip_prefix("argon2id,")?.split_once(',')?;
        let (memory_kib, passes) = (memory_kib.parse().ok()?, passes.parse().ok()?);
        let bounded = memory_kib <= ARGON2_MAX_MEMORY_KIB && passes <= ARGON2_MAX_PASSES;
        bounded.then_some(Derivation::Argon2id { memory_kib, passes })
    }
}

/// A volume's cipher and key.
#[derive(Clone)]
pub struct Encryption {
    cipher: Cipher,
    key: Key,
}

impl Encryption {
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The key of the block whose header begins with `head`. The salt in `head` makes it differ from the key
    /// of any other block, and of the same block stored again.
    pub(crate) fn block_key(&self, head: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
        keyed(&self.key, b"limenfs block key 1", head)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Key(_) => "Secret(key)",
            Kind::Passphrase(_) => "Secret(passphrase)",
        })
    }
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

/// Fills `bytes` with random bytes. If at most 256 bytes are requested, getrandom(2) never returns fewer.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Errno> {
    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(Errno::EIO),
        Err(errno) => Err(Errno::from_raw(errno.raw_os_error())),
    }
}

fn check_value(key: &Key) -> [u8; SALT_BYTES] {
    let (mut check, hash) = ([0; SALT_BYTES], keyed(key, CHECK_VALUE, &[]));
    check.copy_from_slice(&hash[..SALT_BYTES]);
    check
}

/// BLAKE3 of `bytes` under `key`, a pseudorandom function, for the use that `domain` names. No domain is a
/// prefix of another.
fn keyed(key: &Key, domain: &[u8], bytes: &[u8]) -> Key {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(domain).update(bytes);
    let hash = Zeroizing::new(*hasher.finalize().as_bytes());
    // The hasher holds the key.
    hasher.zeroize();
    hash
}

fn from_hex(text: &str, out: &mut [u8]) -> Option<()> {
    if text.len() != out.len() * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn key_of(secret: &Secret) -> Vec<u8> {
        match &secret.0 {
            Kind::Key(key) => key.to_vec(),
            Kind::Passphrase(_) => panic!("expected a key, found a passphrase"),
        }
    }

    #[test]
    fn keys_are_read_as_bytes_hex_or_base64() {
        let bytes: Vec<u8> = (0..32).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        for content in [&bytes[..], format!("{HEX}\n").as_bytes(), format!(" {BASE64}\n").as_bytes()] {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(key_of(&Secret::key_from_file(file.path()).unwrap()), bytes);
        }
        for bad in [
            "",
            "secret",
            &HEX[1..],
            &HEX.replace('0', "x"),
            &HEX.replace("00", "é"),
            &BASE64.replace('=', "A"),
        ] {
            assert!(matches!(Secret::key_from_text(bad), Err(ChunkError::Key(_))), "{bad}");
            std::fs::write(file.path(), bad).unwrap();
            let error = Secret::key_from_file(file.path()).unwrap_err().to_string();
            assert!(
                error.contains(file.path().to_str().unwrap()) && (bad.is_empty() || !error.contains(bad)),
                "{error}"
            );
        }
        let error = Secret::key_from_env("LIMEN_TEST_NO_SUCH_KEY").unwrap_err();
        assert!(error.to_string().contains("LIMEN_TEST_NO_SUCH_KEY"), "{error}");
    }

    #[test]
    fn settings_detect_a_wrong_key() {
        let secret = Secret::key_from_text(HEX).unwrap();
        let (settings, made) = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap();
        let settings: EncryptionSettings = settings.to_string().parse().unwrap();
        let opened = settings.unlock(&Secret::key_from_text(BASE64).unwrap()).unwrap();
        assert_eq!((opened.cipher, &opened.key), (made.cipher, &made.key));
        let other = Secret::key_from_text(&HEX.replace("1f", "1e")).unwrap();
        assert!(matches!(settings.unlock(&other), Err(ChunkError::WrongKey)));
        let passphrase = Secret::passphrase(HEX.to_owned());
        assert!(matches!(settings.unlock(&passphrase), Err(ChunkError::Key(_))));
        // Another volume under the same secret has another key.
        let (_, second) = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap();
        assert_ne!(second.key, made.key);
    }

    #[test]
    fn a_passphrase_unlocks_its_volume() {
        let secret = Secret::passphrase("correct horse".to_owned());
        let (settings, made) = EncryptionSettings::new(Cipher::XChaCha20Poly1305, &secret).unwrap();
        assert!(settings.to_string().contains(":argon2id,65536,3:"));
        assert_eq!(settings.unlock(&secret).unwrap().key, made.key);
        let wrong = Secret::passphrase("correct horse ".to_owned());
        assert!(matches!(settings.unlock(&wrong), Err(ChunkError::WrongKey)));
        assert!(matches!(settings.unlock(&Secret::key_from_text(HEX).unwrap()), Err(ChunkError::Key(_))));
    }

    #[test]
    fn damaged_settings_are_refused() {
        let (salt, check) = (&HEX[..32], &HEX[32..]);
        let parse = |text: String| text.parse::<EncryptionSettings>();
        assert!(parse(format!("aes-256-gcm:key:{salt}:{check}")).is_ok());
        for text in [
            format!("aes-256-gcm:key:{salt}"),
            format!("aes-512-gcm:key:{salt}:{check}"),
            format!("aes-256-gcm:rsa:{salt}:{check}"),
            format!("aes-256-gcm:argon2id,4294967295,3:{salt}:{check}"),
            format!("aes-256-gcm:argon2id,8,33:{salt}:{check}"),
            format!("aes-256-gcm:key:{salt}0:{check}"),
        ] {
            assert!(matches!(parse(text.clone()), Err(ChunkError::Config(_))), "{text}");
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let secret = Secret::key_from_text(HEX).unwrap();
        let (_, encryption) = EncryptionSettings::new(Cipher::Aes256Gcm, &secret).unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(key)");
        assert_eq!(format!("{:?}", Secret::passphrase("x".into())), "Secret(passphrase)");
        assert_eq!(format!("{encryption:?}"), "Encryption { cipher: Aes256Gcm, .. }");
    }
}
