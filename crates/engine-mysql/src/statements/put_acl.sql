-- Inserts an ACL, or ends the condemnation of a stored ACL. If the ACL is stored, a shared lock suffices. So
-- commits that use the same ACL do not wait for each other, and the ACL cannot be condemned before they end.

SELECT COUNT(*) = 0, COALESCE(SUM(text LIKE '!%'), 0) INTO @is_new, @is_condemned FROM `@acl` WHERE id = ?1 LOCK IN SHARE MODE;
IF @is_new THEN INSERT INTO `@acl` (id, text) VALUES (?1, ?2) ON DUPLICATE KEY UPDATE text = TRIM(LEADING '!' FROM text);
IF @is_condemned THEN UPDATE `@acl` SET text = TRIM(LEADING '!' FROM text) WHERE id = ?1;
