//! Statements with conditions, sent as one request.
//!
//! User variables of the connection hold the intermediate results of a script. `@outcome` is 0 if the
//! transactions are to be applied, NULL if a guard does not hold, and otherwise the sequence number under
//! which the transaction was committed before. `@tight` tells whether the commit locks the volume's row
//! exclusively (`lock` in `commit.rs`), for example because there is so little room that only one commit at a
//! time may add. `@replaced`, `@released` and `@shared_rows` are counts; 0 means that there is nothing to do.
//! `@is_new` and `@is_condemned` tell whether an ACL is not stored yet, and whether it is condemned.

use std::fmt::Display;

use tables::{fill, list};

/// The transactions are to be applied.
pub(crate) const HELD: &str = "@outcome = 0";
/// A guard does not hold.
pub(crate) const FAILED: &str = "@outcome IS NULL";
/// The commit locks the volume's row exclusively, for example because a limit is near.
pub(crate) const TIGHT: &str = "@tight";
/// The commit does not lock the volume's row exclusively.
pub(crate) const ROOMY: &str = "NOT @tight";
/// Inodes exist that have the numbers of new ones.
pub(crate) const REPLACED: &str = "@replaced";

/// Creates the procedure that runs a script on servers without anonymous blocks. If its text changes, its
/// name must change too.
pub(crate) const PROCEDURE: &str = include_str!("procedure.sql");

#[derive(Debug)]
struct Step {
    /// Conditions, from the constants above and the variables in the files of the directory `statements`; the
    /// step runs if all of them hold.
    needs: Vec<&'static str>,
    sql: String,
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    steps: Vec<Step>,
    /// The conditions of each step that is added now.
    needs: Vec<&'static str>,
}

impl Script {
    pub(crate) fn put(&mut self, sql: impl Into<String>) {
        self.steps.push(Step { needs: self.needs.clone(), sql: sql.into() });
    }

    /// The steps that `put` adds also have the condition `need`.
    pub(crate) fn only_if(&mut self, need: &'static str, put: impl FnOnce(&mut Self)) {
        self.needs.push(need);
        put(self);
        self.needs.pop();
    }

    /// Adds the statements of a file; [`statements`](crate::sql::statements) describes its format.
    pub(crate) fn run<T: Display>(&mut self, file: &'static str, values: &[T]) {
        let (_, statements) = file.split_once("\n\n").unwrap_or_default();
        for statement in statements.split_terminator(";\n") {
            match statement.strip_prefix("IF ").and_then(|rest| rest.split_once(" THEN ")) {
                Some((need, sql)) => self.only_if(need, |script| script.put(fill(sql, values))),
                None => self.put(fill(statement, values)),
            }
        }
    }

    /// The single statement that runs the script.
    pub(crate) fn text(&self, procedure: bool) -> String {
        if procedure { self.call() } else { self.block() }
    }

    /// One anonymous block for MariaDB. A block that fails has no effect. Statements that rarely run are
    /// strings in it, which the server parses only when it runs them.
    fn block(&self) -> String {
        let mut text = String::with_capacity(self.steps.iter().map(|step| step.sql.len() + 128).sum());
        text.push_str(
            "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\n",
        );
        for steps in self.steps.chunk_by(|one, next| one.needs == next.needs) {
            let needs = steps.first().map_or(&[][..], |step| &step.needs);
            let (before, after) = match needs {
                [] => (String::new(), ""),
                _ => (format!("IF {} THEN\n", needs.join(" AND ")), "END IF;\n"),
            };
            text.push_str(&before);
            for Step { sql, .. } in steps {
                match needs {
                    [] | [HELD] => text.push_str(sql),
                    _ => text.extend(["EXECUTE IMMEDIATE '", &quoted(sql), "'"]),
                }
                text.push_str(";\n");
            }
            text.push_str(after);
        }
        text.push_str("END");
        text
    }

    /// The call of the procedure.
    fn call(&self) -> String {
        let step = |step: &Step| format!("[\"{}\",\"{}\"]", step.needs.join(","), quoted(&step.sql));
        format!("CALL `@run7`('[{}]')", list(self.steps.iter().map(step)))
    }
}

/// Quotes a statement as part of a literal. The only quotes in a statement are those of hexadecimal literals,
/// it contains neither double quotes nor backslashes, and SQL treats a line end as a space.
fn quoted(sql: &str) -> String {
    sql.replace('\'', "''").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::statements;

    #[test]
    fn adjacent_steps_share_a_condition_and_rare_statements_are_strings() {
        let mut script = Script::default();
        script.put("A");
        script.only_if(HELD, |script| script.run("-- Says this.\n\nB?1;\nC;\n", &[7]));
        script.only_if(FAILED, |script| script.put("D x'00'"));
        script.only_if(HELD, |script| script.run("-- Says that.\n\nIF @shared_rows THEN E;\n", &[""]));
        let expected = "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\nA;\n\
                        IF @outcome = 0 THEN\nB7;\nC;\nEND IF;\nIF @outcome IS NULL THEN\nEXECUTE IMMEDIATE 'D x''00''';\nEND IF;\n\
                        IF @outcome = 0 AND @shared_rows THEN\nEXECUTE IMMEDIATE 'E';\nEND IF;\nEND";
        assert_eq!(script.block(), expected);
        assert_eq!(
            script.call(),
            "CALL `@run7`('[[\"\",\"A\"], [\"@outcome = 0\",\"B7\"], [\"@outcome = 0\",\"C\"], [\"@outcome IS NULL\",\"D x''00''\"], \
             [\"@outcome = 0,@shared_rows\",\"E\"]]')"
        );
    }

    #[test]
    fn procedure_knows_every_condition() {
        let files =
            [statements!("release"), statements!("drop_inodes"), statements!("trim"), statements!("put_acl")];
        let of_files = files.iter().flat_map(|file| file.lines()).filter_map(|line| {
            let (condition, _) = line.strip_prefix("IF ")?.split_once(" THEN ")?;
            Some(condition)
        });
        for condition in [HELD, FAILED, TIGHT, ROOMY, REPLACED].into_iter().chain(of_files) {
            let check = format!("(NOT FIND_IN_SET('{condition}', needs) OR {condition})");
            assert!(PROCEDURE.contains(&check), "{condition}");
        }
    }
}
