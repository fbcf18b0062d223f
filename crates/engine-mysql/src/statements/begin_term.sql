-- The term ?2 begins if its session (term ?1) is there.

INSERT IGNORE INTO `@fence` (ops) SELECT ?2 FROM `@fence` WHERE ops = ?1;
