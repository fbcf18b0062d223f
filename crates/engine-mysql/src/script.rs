//! Statements with conditions, sent as one request.
//!
//! The user variables of the connection carry what a script finds out: `@f` the transactions of a run whose guards do not
//! all hold, `@r` those that were committed before (both bit by bit), `@t` and `@u` whether room is so tight that one at a time
//! may add, or not, and `@x`, `@c`, `@h` counts of which 0 says that there is nothing to do.

use std::fmt::Write;

/// What must be so for a statement to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// Every transaction of the run is to be applied.
    All,
    /// Not [`When::All`].
    Some,
    /// Not [`When::All`], but the transaction of this number is to be applied.
    Passed(usize),
    /// A guard of the transaction of this number does not hold.
    Failed(usize),
}

/// A count that must not be 0 for a statement to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Any,
    /// Inodes that are there already where new ones are to be put.
    Replaced,
    /// Slices that rows which are about to go refer to.
    Slices,
    /// Those of them that other rows refer to as well.
    Shared,
    /// Limits that are near.
    Tight,
    /// No limit is near.
    Roomy,
}

#[derive(Debug)]
struct Step {
    when: When,
    count: Count,
    sql: String,
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    steps: Vec<Step>,
}

/// The procedure that runs a script on servers without anonymous blocks; another text needs another name. Its argument is a JSON array with an array of
/// condition, number, count and statement for each step.
pub(crate) fn procedure(prefix: &str) -> String {
    format!(
        "CREATE PROCEDURE `{prefix}run2`(IN script LONGTEXT CHARACTER SET utf8mb4) MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
    DECLARE done INT DEFAULT 0;
    DECLARE condition_kind, number, nonzero INT;
    DECLARE step LONGTEXT CHARACTER SET utf8mb4;
    DECLARE steps CURSOR FOR SELECT s.condition_kind, s.number, s.nonzero, s.step FROM JSON_TABLE(script, '$[*]' COLUMNS (
        condition_kind INT PATH '$[0]', number INT PATH '$[1]', nonzero INT PATH '$[2]',
        step LONGTEXT CHARACTER SET utf8mb4 PATH '$[3]')) AS s;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET done = 1;
    OPEN steps;
    all_steps: LOOP
        SET done = 0;
        FETCH steps INTO condition_kind, number, nonzero, step;
        IF done THEN
            LEAVE all_steps;
        END IF;
        IF CASE condition_kind
            WHEN 0 THEN 1
            WHEN 1 THEN (@f | @r) = 0
            WHEN 2 THEN (@f | @r) <> 0
            WHEN 3 THEN (@f | @r) <> 0 AND ((@f | @r) & (1 << number)) = 0
            ELSE (@f & (1 << number)) <> 0 END
        AND CASE nonzero WHEN 0 THEN 1 WHEN 1 THEN @x <> 0 WHEN 2 THEN @c <> 0 WHEN 3 THEN @h <> 0
            WHEN 4 THEN @t <> 0 ELSE @u <> 0 END THEN
            SET @statement = step;
            PREPARE statement FROM @statement;
            EXECUTE statement;
            DEALLOCATE PREPARE statement;
        END IF;
    END LOOP;
    CLOSE steps;
END"
    )
}

impl Script {
    pub(crate) fn always(&mut self, sql: impl Into<String>) {
        self.step(When::Always, Count::Any, sql);
    }

    pub(crate) fn when(&mut self, when: When, sql: impl Into<String>) {
        self.step(when, Count::Any, sql);
    }

    pub(crate) fn step(&mut self, when: When, count: Count, sql: impl Into<String>) {
        self.steps.push(Step { when, count, sql: sql.into() });
    }

    /// One anonymous block, as MariaDB takes it; one that fails has done nothing. What is rarely run is a string in it, which is parsed only when it is.
    pub(crate) fn block(&self) -> String {
        let mut text = String::with_capacity(self.steps.iter().map(|step| step.sql.len() + 64).sum());
        text.push_str(
            "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\n",
        );
        let mut open = When::Always;
        for step in &self.steps {
            if step.when != open {
                if open != When::Always {
                    text.push_str("END IF;\n");
                }
                if step.when != When::Always {
                    let _ = writeln!(text, "IF {} THEN", step.when.condition());
                }
                open = step.when;
            }
            let rare = step.count != Count::Any || !matches!(step.when, When::Always | When::All);
            if let Some(variable) = step.count.variable() {
                let _ = writeln!(text, "IF {variable} <> 0 THEN");
            }
            if rare {
                // The only quotes are those of hexadecimal literals; there is no backslash.
                let _ = writeln!(text, "EXECUTE IMMEDIATE '{}';", step.sql.replace('\'', "''"));
            } else {
                text.push_str(&step.sql);
                text.push_str(";\n");
            }
            if step.count != Count::Any {
                text.push_str("END IF;\n");
            }
        }
        if open != When::Always {
            text.push_str("END IF;\n");
        }
        text.push_str("END");
        text
    }

    /// The call of [`procedure`].
    pub(crate) fn call(&self, prefix: &str) -> String {
        let mut json = String::from("[");
        for (index, step) in self.steps.iter().enumerate() {
            let (kind, number) = match step.when {
                When::Always => (0, 0),
                When::All => (1, 0),
                When::Some => (2, 0),
                When::Passed(number) => (3, number),
                When::Failed(number) => (4, number),
            };
            let count = match step.count {
                Count::Any => 0,
                Count::Replaced => 1,
                Count::Slices => 2,
                Count::Shared => 3,
                Count::Tight => 4,
                Count::Roomy => 5,
            };
            let comma = if index > 0 { "," } else { "" };
            // Statements hold neither double quotes nor backslashes; a line end is a space to SQL.
            let sql = step.sql.replace('\'', "''").replace('\n', " ");
            let _ = write!(json, "{comma}[{kind},{number},{count},\"{sql}\"]");
        }
        format!("CALL `{prefix}run2`('{json}]')")
    }
}

impl When {
    fn condition(self) -> String {
        match self {
            When::Always => "1".to_owned(),
            When::All => "(@f | @r) = 0".to_owned(),
            When::Some => "(@f | @r) <> 0".to_owned(),
            When::Passed(number) => {
                format!("(@f | @r) <> 0 AND ((@f | @r) & {}) = 0", 1_u64 << (number & 63))
            }
            When::Failed(number) => format!("(@f & {}) <> 0", 1_u64 << (number & 63)),
        }
    }
}

impl Count {
    fn variable(self) -> Option<&'static str> {
        match self {
            Count::Any => None,
            Count::Replaced => Some("@x"),
            Count::Slices => Some("@c"),
            Count::Shared => Some("@h"),
            Count::Tight => Some("@t"),
            Count::Roomy => Some("@u"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_their_condition_and_rare_statements_are_strings() {
        let mut script = Script::default();
        script.always("A");
        script.when(When::All, "B");
        script.when(When::All, "C");
        script.when(When::Failed(1), "D x'00'");
        script.step(When::Always, Count::Shared, "E");
        let block = script.block();
        let expected = "BEGIN NOT ATOMIC\nDECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;\nA;\nIF (@f | @r) = 0 THEN\nB;\nC;\nEND IF;\nIF (@f & 2) <> 0 THEN\n\
                        EXECUTE IMMEDIATE 'D x''00''';\nEND IF;\nIF @h <> 0 THEN\nEXECUTE IMMEDIATE 'E';\nEND IF;\nEND";
        assert_eq!(block, expected);
        assert_eq!(
            script.call("p_"),
            "CALL `p_run2`('[[0,0,0,\"A\"],[1,0,0,\"B\"],[1,0,0,\"C\"],[4,1,0,\"D x''00''\"],[0,0,3,\"E\"]]')"
        );
    }
}
