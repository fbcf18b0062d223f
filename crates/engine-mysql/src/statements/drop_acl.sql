-- Removes an ACL if it is condemned.

DELETE FROM `@acl` WHERE id = ?1 AND text LIKE '!%';
