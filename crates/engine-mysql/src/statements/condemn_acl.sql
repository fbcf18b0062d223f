-- Condemns an ACL. Waits for commits that refer to it.

UPDATE `@acl` SET text = CONCAT('!', text) WHERE id = ?1 AND text NOT LIKE '!%';
