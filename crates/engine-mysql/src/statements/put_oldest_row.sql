-- Inserts row ?4 of ?3 with the values ?2 in the columns ?1, as a replacement for the rows found by
-- oldest_rows.sql, if at least ?4 rows were found. The row gets one of the last sequence numbers that became
-- free.

INSERT INTO `@slice` (?1, seq) SELECT ?2, @oldest_seq - LEAST(?3, @oldest_rows) + ?4 FROM DUAL WHERE ?4 <= @oldest_rows;
