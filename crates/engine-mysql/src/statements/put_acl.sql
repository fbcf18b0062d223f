-- Inserts an ACL. An existing ACL is not even locked, so that commits that use the same ACL do not wait for
-- each other.

INSERT IGNORE INTO `@acl` (id, text) SELECT ?1, ?2 FROM DUAL WHERE NOT EXISTS(SELECT 1 FROM `@acl` WHERE id = ?1);
