//! Decides whether the answer of a plan is certain, so that nothing need be committed.

/// The decision of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// The plan changes something.
    Effects,
    /// A reply without effects.
    Reply,
    /// An error other than EIO.
    Error,
    /// EIO: records contradict each other.
    Damage,
    /// The kernel's attributes are out of date.
    Stale,
}

/// The properties of the operation, and of the records that the plan has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// An earlier attempt of the operation may have been committed.
    pub(crate) in_doubt: bool,
    /// The operation never has effects.
    pub(crate) is_read: bool,
    /// The plan assumed something that it did not look up.
    pub(crate) assumed: bool,
    /// No other client can change the volume.
    pub(crate) exclusive: bool,
    /// All records are of one moment: the operation has them from one read or one conflict, none from the
    /// cache.
    pub(crate) one_moment: bool,
    /// The records were read again because they contradicted each other.
    pub(crate) reread: bool,
}

/// The next step after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The decision is the answer of the operation.
    Answer,
    /// Read all records again, and plan again.
    ReadAgain,
    /// Commit the guards and effects of the plan. If the guards hold, the decision is the answer.
    Commit,
}

/// Decides whether an answer is certain. The first row that matches decides; an empty cell matches anything.
///
/// | decided | in doubt | read | assumed | exclusive | one moment | reread | next | because |
/// |---|---|---|---|---|---|---|---|---|
/// | | yes | | | | | | commit | the result is recorded under the operation's id: see `doubt.rs` |
/// | effects | | | | | | | commit | the guards confirm what the plan depends on |
/// | stale | | | | | | | answer | ESTALE makes the kernel look up again |
/// | damage | | yes | | | no | no | read again | records of several moments may contradict each other |
/// | damage | | | no | yes | no | no | read again | as in the row above |
/// | | | yes | | | | | answer | a read may return what was true within the lifetime of cached records |
/// | | | | yes | | | | commit | only the engine can confirm an assumption |
/// | | | | | yes | | | answer | cached records are current |
/// | | | | | | yes | | answer | the answer was right at that moment, which is during the operation |
/// | | | | | | | | commit | the guards confirm that the records hold at one moment |
pub(crate) fn next(decided: Decided, evidence: Evidence) -> Next {
    let Evidence { in_doubt, is_read, assumed, exclusive, one_moment, reread } = evidence;
    let is_doubtful_damage = decided == Decided::Damage && !one_moment && !reread;
    match decided {
        _ if in_doubt => Next::Commit,
        Decided::Effects => Next::Commit,
        Decided::Stale => Next::Answer,
        _ if is_doubtful_damage && is_read => Next::ReadAgain,
        _ if is_doubtful_damage && !assumed && exclusive => Next::ReadAgain,
        _ if is_read => Next::Answer,
        _ if assumed => Next::Commit,
        _ if exclusive => Next::Answer,
        _ if one_moment => Next::Answer,
        _ => Next::Commit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Option<bool> = Some(true);
    const NO: Option<bool> = Some(false);
    const ANY: Option<bool> = None;

    /// A row of the table of [`next`]: the decision (`None`: any), the evidence in the order of the columns,
    /// and what is next.
    type Row = (Option<Decided>, [Option<bool>; 6], Next);

    const TABLE: [Row; 10] = [
        (None, [YES, ANY, ANY, ANY, ANY, ANY], Next::Commit),
        (Some(Decided::Effects), [ANY; 6], Next::Commit),
        (Some(Decided::Stale), [ANY; 6], Next::Answer),
        (Some(Decided::Damage), [ANY, YES, ANY, ANY, NO, NO], Next::ReadAgain),
        (Some(Decided::Damage), [ANY, ANY, NO, YES, NO, NO], Next::ReadAgain),
        (None, [ANY, YES, ANY, ANY, ANY, ANY], Next::Answer),
        (None, [ANY, ANY, YES, ANY, ANY, ANY], Next::Commit),
        (None, [ANY, ANY, ANY, YES, ANY, ANY], Next::Answer),
        (None, [ANY, ANY, ANY, ANY, YES, ANY], Next::Answer),
        (None, [ANY; 6], Next::Commit),
    ];

    const DECISIONS: [Decided; 5] =
        [Decided::Effects, Decided::Reply, Decided::Error, Decided::Damage, Decided::Stale];

    /// Every decision with every evidence, in the order of the columns.
    fn cases() -> impl Iterator<Item = (Decided, [bool; 6])> {
        let all = (0..1_u32 << 6).map(|bits| std::array::from_fn(|column| bits >> column & 1 == 1));
        all.flat_map(|evidence| DECISIONS.map(|decided| (decided, evidence)))
    }

    fn evidence([in_doubt, is_read, assumed, exclusive, one_moment, reread]: [bool; 6]) -> Evidence {
        Evidence { in_doubt, is_read, assumed, exclusive, one_moment, reread }
    }

    #[test]
    fn the_first_row_of_the_table_that_matches_decides() {
        let mut used = [0; TABLE.len()];
        for (decided, values) in cases() {
            let matches = |(of, columns, _): &Row| {
                of.is_none_or(|of| of == decided)
                    && columns.iter().zip(values).all(|(column, value)| column.is_none_or(|is| is == value))
            };
            let row = TABLE.iter().position(matches).unwrap();
            used[row] += 1;
            assert_eq!(next(decided, evidence(values)), TABLE[row].2, "{decided:?}, {values:?}, row {row}");
        }
        assert!(used.iter().all(|&used| used > 0), "a row never decides: {used:?}");
    }

    #[test]
    fn an_answer_without_a_commit_is_a_read_or_was_right_at_one_moment() {
        for (decided, values) in cases() {
            let by = evidence(values);
            if next(decided, by) == Next::Answer && decided != Decided::Stale {
                let is_certain = !by.assumed && (by.exclusive || by.one_moment);
                assert!(!by.in_doubt && (by.is_read || is_certain), "{decided:?}, {by:?}");
                assert!(decided != Decided::Effects, "effects are committed");
            }
        }
    }
}
