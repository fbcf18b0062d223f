-- Removes the rows of the log from ?1 on and up to ?2 that are older than ?3. Those of terms that are open stay: the terms are
-- noted, and their rows go when they have ended. A stream of changes learns from `trimmed` whether it has read what is gone.

START TRANSACTION;
SELECT upto INTO @v FROM `@trimmed` WHERE id = 0 FOR UPDATE;
INSERT IGNORE INTO `@pinned` (ops) SELECT DISTINCT LEFT(op_id, 12) FROM `@log`
    WHERE id > ?1 AND id <= ?2 AND LEFT(op_id, 12) IN (SELECT ops FROM `@fence`);
DELETE FROM `@log` WHERE id > ?1 AND id <= ?2 AND at < ?3 AND LEFT(op_id, 12) NOT IN (SELECT ops FROM `@pinned`);
UPDATE `@trimmed` SET upto = GREATEST(upto, ?2) WHERE id = 0;
COMMIT;
