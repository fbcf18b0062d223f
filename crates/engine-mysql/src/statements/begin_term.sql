-- Begins the term ?2, if its session exists (term ?1 is open).

INSERT IGNORE INTO `@fence` (ops) SELECT ?2 FROM `@fence` WHERE ops = ?1;
