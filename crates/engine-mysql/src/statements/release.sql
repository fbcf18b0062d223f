-- Deletes the rows `c` of table `slice` for which ?1 is true, and releases the reference of each to its
-- slice. Sets @released to the number of these rows, and @shared_rows to the number of those whose slices
-- have a reference count in table `shared`.

SELECT COUNT(*), COUNT(s.slice) INTO @released, @shared_rows FROM `@slice` AS c LEFT JOIN `@shared` AS s ON s.slice = c.slice WHERE ?1 FOR UPDATE;
IF @released THEN INSERT INTO `@garbage` (slice, size) SELECT g.slice, g.size
FROM (SELECT c.slice AS slice, COUNT(*) AS k, MAX(c.slice_size) AS size FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
LEFT JOIN `@shared` AS s ON s.slice = g.slice WHERE g.k > COALESCE(s.extra, 0) ON DUPLICATE KEY UPDATE size = VALUES(size);
IF @shared_rows THEN DELETE s FROM `@shared` AS s
JOIN (SELECT c.slice AS slice, COUNT(*) AS k FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
ON g.slice = s.slice WHERE g.k > s.extra;
IF @shared_rows THEN UPDATE `@shared` AS s
JOIN (SELECT c.slice AS slice, COUNT(*) AS k FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
ON g.slice = s.slice SET s.extra = s.extra - g.k;
IF @released THEN DELETE c FROM `@slice` AS c WHERE ?1;
