-- Deletes the rows `c` of table `slice` for which ?1 is true, and releases the reference of each to its
-- slice. Sets @c to the number of these rows, and @h to the number of those whose slices have a reference
-- count in table `shared`.

SELECT COUNT(*), COUNT(s.slice) INTO @c, @h FROM `@slice` AS c LEFT JOIN `@shared` AS s ON s.slice = c.slice WHERE ?1 FOR UPDATE;
IF @c THEN INSERT INTO `@garbage` (slice, size) SELECT g.slice, g.size
FROM (SELECT c.slice AS slice, COUNT(*) AS k, MAX(c.slice_size) AS size FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
LEFT JOIN `@shared` AS s ON s.slice = g.slice WHERE g.k > COALESCE(s.extra, 0) ON DUPLICATE KEY UPDATE size = VALUES(size);
IF @h THEN DELETE s FROM `@shared` AS s
JOIN (SELECT c.slice AS slice, COUNT(*) AS k FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
ON g.slice = s.slice WHERE g.k > s.extra;
IF @h THEN UPDATE `@shared` AS s
JOIN (SELECT c.slice AS slice, COUNT(*) AS k FROM `@slice` AS c WHERE ?1 AND c.slice IS NOT NULL GROUP BY c.slice) AS g
ON g.slice = s.slice SET s.extra = s.extra - g.k;
IF @c THEN DELETE c FROM `@slice` AS c WHERE ?1;
