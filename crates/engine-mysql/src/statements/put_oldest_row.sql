-- Values ?2 in columns ?1 become row ?4 of ?3 in the place of those of oldest_rows.sql, if these were as many. Of the numbers
-- that became free, it gets one of the last.

INSERT INTO `@slice` (?1, seq) SELECT ?2, @l - LEAST(?3, @k) + ?4 FROM DUAL WHERE ?4 <= @k;
