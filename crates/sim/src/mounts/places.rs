//! Directories that one program changes, and in which others look names up. The result of a lookup must have
//! been true at some moment during the lookup, whether or not the mount that made the change has committed
//! it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ops::RenameFlags;
use types::{Errno, Ino, Mode};
use vfs::{MakeKind, MakeRequest};

use crate::mounts::place::{ALL_NAMES, ALL_PROGRAMS, NAMES, NameState, Place};
use crate::mounts::programs::{OUTDATED, Program, root};
use crate::mounts::shared::{CLIENTS, PROGRAMS, lock};

const _: () = assert!(CLIENTS * PROGRAMS as usize == ALL_PROGRAMS);

/// How many changes a program makes in a directory before it makes another directory.
const CHANGES: usize = 20;

impl Program {
    /// Changes names in this program's directory, or makes a new directory.
    pub(super) fn change_place(&self, number: u64) {
        let places = lock(&self.shared.places).clone();
        let is_own = |place: &&Arc<Place>| (place.client, place.program) == (self.client, self.number);
        let own = places
            .iter()
            .rfind(is_own)
            .filter(|place| place.loss == self.vfs.session_loss() && lock(&place.names).changes < CHANGES);
        match own {
            Some(place) => (0..host::random() % 6).for_each(|_| {
                self.change_name(place, host::random() as usize % NAMES);
            }),
            None => self.make_place(number),
        }
    }

    fn make_place(&self, number: u64) {
        let loss = self.vfs.session_loss();
        // After a kill, the numbers of acts begin at 0 again. The time keeps the name unique.
        let life = self.shared.clocks.now().as_millis();
        let name = format!("d{}.{}.{number}.{life}", self.client, self.number);
        let (kind, mode) = (MakeKind::Directory, Mode::new(0o755));
        let request = MakeRequest { parent: Ino::ROOT, name: name.as_bytes(), kind, mode, umask: 0 };
        let made = self.vfs.names.make(&root(), request);
        self.say(&format!("makes the directory {name}: {:?}", made.as_ref().map(|attr| attr.ino)));
        let Ok(attr) = made else { return };
        let (client, program, names) = (self.client, self.number, Mutex::default());
        lock(&self.shared.places).push(Arc::new(Place { ino: attr.ino, client, program, loss, names }));
    }

    fn change_name(&self, place: &Place, at: usize) {
        let (exists, other) = {
            let names = lock(&place.names);
            let state = |at: usize| names.states[at].last().copied();
            // A name whose last change is in doubt is not changed again.
            let certain = |at: usize| match state(at) {
                None => Some(false),
                Some(state) => state.answered.map(|_| state.exists),
            };
            let Some(exists) = certain(at) else { return };
            let free = (0..NAMES).find(|other| *other != at && certain(*other) == Some(false));
            (exists, free.filter(|_| exists && at < NAMES && host::random().is_multiple_of(3)))
        };
        let began = self.shared.clocks.now();
        let begin = |at: usize, exists| {
            let mut names = lock(&place.names);
            names.seen.insert(self.client);
            names.changes += 1;
            names.states[at].push(NameState { began, answered: None, exists });
        };
        begin(at, !exists);
        if let Some(other) = other {
            begin(other, true);
        }
        let name = format!("n{at}");
        self.kernel.changes_names(place.ino);
        let done = match other {
            Some(other) => {
                let new = format!("n{other}");
                let [from, to] = [(place.ino, name.as_bytes()), (place.ino, new.as_bytes())];
                self.vfs.names.rename(&root(), from, to, RenameFlags::default(), false)
            }
            None if exists => self.vfs.names.unlink(&root(), place.ino, name.as_bytes()),
            None => self.make_file(place.ino, &name),
        };
        self.kernel.changes_names(place.ino);
        self.say(&format!("changes {name} in {}, to exist: {}, {other:?}: {done:?}", place.ino, !exists));
        if done.is_ok() {
            let now = self.shared.clocks.now();
            let mut names = lock(&place.names);
            for at in [Some(at), other].into_iter().flatten() {
                if let Some(state) = names.states[at].last_mut() {
                    state.answered = Some(now);
                }
            }
        }
    }

    fn make_file(&self, parent: Ino, name: &str) -> Result<(), Errno> {
        let (kind, mode) = (MakeKind::Regular, Mode::new(0o600));
        let request = MakeRequest { parent, name: name.as_bytes(), kind, mode, umask: 0 };
        let attr = self.vfs.names.create(&root(), request)?;
        let bytes = vec![7; 10 + (host::random() % 9000) as usize];
        let written = self.vfs.files.write(attr.ino, 0, &bytes).and_then(|_| self.vfs.files.flush(attr.ino));
        let closed = self.vfs.files.close(attr.ino);
        if written.is_ok() && closed.is_ok() && host::random().is_multiple_of(8) {
            let synced = self.vfs.lifecycle.sync();
            self.say(&format!("syncs: {synced:?}"));
        }
        // The name exists, even if an error occurred after its creation.
        Ok(())
    }

    /// Looks up a name in any program's directory.
    pub(super) fn look_into_a_place(&self) {
        let places = lock(&self.shared.places).clone();
        let Some(place) = places.get(host::random() as usize % places.len().max(1)) else { return };
        if place.loss.is_none() && host::random().is_multiple_of(4) {
            return self.change_name(place, NAMES + self.client * PROGRAMS as usize + self.number as usize);
        }
        self.look(place, host::random() as usize % ALL_NAMES);
    }

    /// Looks up all names that the programs of this client have changed, after it was started again.
    pub(super) fn look_into_own_places(&self) {
        let places = lock(&self.shared.places).clone();
        for place in places.iter().rev().filter(|place| place.client == self.client) {
            (0..NAMES).for_each(|at| self.look(place, at));
        }
    }

    fn look(&self, place: &Place, at: usize) {
        let began = self.shared.clocks.now();
        let delay = || self.shared.delay();
        let found = self.kernel.exists(&self.vfs, &root(), (place.ino, format!("n{at}").as_bytes()), delay);
        let ended = self.shared.clocks.now();
        let Ok(found) = found else { return };
        // Changes that a mount had not committed are lost with its session, and a mount that stood still may
        // answer from an outdated cache.
        let is_excused = |client| self.shared.has_stood_still(client, Duration::from_secs(200));
        if is_excused(self.client) || is_excused(place.client) {
            return;
        }
        let mut names = lock(&place.names);
        // A mount that has used the directory before may answer from its cache until an invalidation arrives,
        // except for the names that it changes itself.
        let is_first = names.seen.insert(self.client) && self.client != place.client;
        let changer = at.checked_sub(NAMES).map_or(place.client, |program| program / PROGRAMS as usize);
        let is_exact = is_first || self.client == changer;
        let since = if is_exact { began } else { began.saturating_sub(OUTDATED) };
        // The lookup may show the last state that was answered before `since`, or any later state.
        let states = &names.states[at];
        let is_before = |state: &NameState| state.answered.is_some_and(|answered| answered < since);
        let last = states.iter().rposition(is_before);
        let mut possible = states[last.unwrap_or(0)..].iter().filter(|state| state.began <= ended);
        let is_possible = possible.any(|state| state.exists == found) || last.is_none() && !found;
        if !is_possible {
            let states = states.clone();
            drop(names);
            self.find(&format!(
                "finds n{at} in {}: {found}, but since {since:?} it was {states:?}",
                place.ino
            ));
        }
    }
}
