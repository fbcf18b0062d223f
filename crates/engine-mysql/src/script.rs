//! Statements with conditions, sent as one request.
//!
//! The user variables of the connection carry what a script finds out: `@f` is 0 where transactions are to be applied, NULL
//! where a guard does not hold, and else the number under which a transaction was committed before; `@t` says whether room
//! is so tight that one at a time may add; `@x`, `@c` and `@h` are counts of which 0 says that there is nothing to do.

use std::fmt::Display;

use tables::{fill, list};

/// The transactions are to be applied.
pub(crate) const HELD: &str = "@f = 0";
/// A guard does not hold.
pub(crate) const FAILED: &str = "@f IS NULL";
/// A limit is near.
pub(crate) const TIGHT: &str = "@t";
/// No limit is near.
pub(crate) const ROOMY: &str = "NOT @t";
/// Inodes are there where new ones are to be put.
pub(crate) const REPLACED: &str = "@x";

/// Makes the procedure that runs a script on servers without anonymous blocks; another text needs another name.
pub(crate) const PROCEDURE: &str = include_str!("procedure.sql");

#[derive(Debug)]
struct Step {
    /// Of the conditions above, and the variables that folder `statements` names, all that must be so for it to run.
    needs: Vec<&'static str>,
    sql: String,
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    steps: Vec<Step>,
    /// What each step that is put now needs.
    needs: Vec<&'static str>,
}

impl Script {
    pub(crate) fn put(&mut self, sql: impl Into<String>) {
        self.steps.push(Step { needs: self.needs.clone(), sql: sql.into() });
    }

    /// What is put by `put` needs this as well.
    pub(crate) fn only_if(&mut self, need: &'static str, put: impl FnOnce(&mut Self)) {
        self.needs.push(need);
        put(self);
        self.needs.pop();
    }

    /// Puts what [`statements`](crate::sql::statements) says.
    pub(crate) fn run<T: Display>(&mut self, file: &'static str, values: &[T]) {
        let (_, statements) = file.split_once("\n\n").unwrap_or_default();
        for statement in statements.split_terminator(";\n") {
            match statement.strip_prefix("IF ").and_then(|rest| rest.split_once(" THEN ")) {
                Some((need, sql)) => self.only_if(need, |script| script.put(fill(sql, values))),
                None => self.put(fill(statement, values)),
            }
        }
    }

    /// The one statement that runs it.
    pub(crate) fn text(&self, procedure: bool) -> String {
        if procedure { self.call() } else { self.block() }
    }

    /// One anonymous block, as MariaDB takes it; one that fails has done nothing. What is rarely run is a string in it, which
    /// is parsed only when it is.
    fn block(&self) -> String {
        let mut text = String::with_capacity(self.steps.iter().map(|step| step.sql.len() + 64).sum());
        text.push_str(
            "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\n",
        );
        for steps in self.steps.chunk_by(|one, next| one.needs == next.needs) {
            let needs = steps.first().map_or(&[][..], |step| &step.needs);
            let text_of = |Step { sql, .. }: &Step| match needs {
                [] | [HELD] => format!("{sql};\n"),
                _ => format!("EXECUTE IMMEDIATE '{}';\n", quoted(sql)),
            };
            let texts: String = steps.iter().map(text_of).collect();
            text += &match needs {
                [] => texts,
                _ => format!("IF {} THEN\n{texts}END IF;\n", needs.join(" AND ")),
            };
        }
        text.push_str("END");
        text
    }

    /// The call of the procedure.
    fn call(&self) -> String {
        let step = |step: &Step| format!("[\"{}\",\"{}\"]", step.needs.join(","), quoted(&step.sql));
        format!("CALL `@run5`('[{}]')", list(self.steps.iter().map(step)))
    }
}

/// As part of a literal: the only quotes are those of hexadecimal literals, there are neither double quotes nor backslashes,
/// and a line end is a space to SQL.
fn quoted(sql: &str) -> String {
    sql.replace('\'', "''").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_their_condition_and_rare_statements_are_strings() {
        let mut script = Script::default();
        script.put("A");
        script.only_if(HELD, |script| script.run("-- Says this.\n\nB?1;\nC;\n", &[7]));
        script.only_if(FAILED, |script| script.put("D x'00'"));
        script.only_if(HELD, |script| script.run("-- Says that.\n\nIF @h THEN E;\n", &[""]));
        let expected = "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\nA;\n\
                        IF @f = 0 THEN\nB7;\nC;\nEND IF;\nIF @f IS NULL THEN\nEXECUTE IMMEDIATE 'D x''00''';\nEND IF;\n\
                        IF @f = 0 AND @h THEN\nEXECUTE IMMEDIATE 'E';\nEND IF;\nEND";
        assert_eq!(script.block(), expected);
        assert_eq!(
            script.call(),
            "CALL `@run5`('[[\"\",\"A\"], [\"@f = 0\",\"B7\"], [\"@f = 0\",\"C\"], [\"@f IS NULL\",\"D x''00''\"], \
             [\"@f = 0,@h\",\"E\"]]')"
        );
    }
}
