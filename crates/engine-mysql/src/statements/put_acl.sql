-- Inserts an ACL. The subquery finds an existing one without a lock, which INSERT IGNORE alone would take, so commits
-- that use the same ACL do not wait for each other.

INSERT IGNORE INTO `@acl` (id, text) SELECT ?1, ?2 FROM DUAL WHERE NOT EXISTS(SELECT 1 FROM `@acl` WHERE id = ?1);
