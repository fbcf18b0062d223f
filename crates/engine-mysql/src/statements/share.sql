-- Adds a reference to slice ?1.

INSERT INTO `@shared` (slice, extra) VALUES (?1, 1) ON DUPLICATE KEY UPDATE extra = extra + 1;
