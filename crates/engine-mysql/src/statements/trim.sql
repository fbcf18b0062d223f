-- Removes the rows of the log after ?1 and up to ?2 that are older than ?3. Rows of open terms are kept:
-- these terms are recorded, and their rows are removed after the terms have ended. Streams of changes learn
-- from `trimmed` whether they missed a removed row.

START TRANSACTION;
SELECT upto INTO @ignored FROM `@trimmed` WHERE id = 0 FOR UPDATE;
INSERT IGNORE INTO `@pinned` (ops) SELECT DISTINCT LEFT(op_id, 12) FROM `@log`
    WHERE id > ?1 AND id <= ?2 AND LEFT(op_id, 12) IN (SELECT ops FROM `@fence`);
DELETE FROM `@log` WHERE id > ?1 AND id <= ?2 AND at < ?3 AND LEFT(op_id, 12) NOT IN (SELECT ops FROM `@pinned`);
UPDATE `@trimmed` SET upto = GREATEST(upto, ?2) WHERE id = 0;
COMMIT;
