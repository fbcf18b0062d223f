-- Adds ?2 references to slice ?1.

INSERT INTO `@shared` (slice, extra) VALUES (?1, ?2) ON DUPLICATE KEY UPDATE extra = extra + ?2;
