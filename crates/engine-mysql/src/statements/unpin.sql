-- Removes the rows of the log up to ?2 of the term ?1, which has ended.

DELETE FROM `@log` WHERE op_id >= CONCAT(?1, x'00000000') AND op_id <= CONCAT(?1, x'ffffffff') AND id <= ?2;
DELETE FROM `@pinned` WHERE ops = ?1;
