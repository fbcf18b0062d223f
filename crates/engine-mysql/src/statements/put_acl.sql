-- An ACL that is there is not even locked, so that those who use the same one do not wait for each other.

INSERT IGNORE INTO `@acl` (id, text) SELECT ?1, ?2 FROM DUAL WHERE NOT EXISTS(SELECT 1 FROM `@acl` WHERE id = ?1);
