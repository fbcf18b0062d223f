-- The log rows that became visible after the snapshot $1, each with the snapshot of this poll, and a flag:
-- whether rows were removed that the previous poll could not see.
WITH now AS MATERIALIZED (
    SELECT s.snapshot, m.xid AS mark FROM pg_current_snapshot() s (snapshot)
    LEFT JOIN @log m ON m.session = -2 AND m.op = -2 AND m.xid < pg_snapshot_xmax(s.snapshot)),
news AS (
    SELECT l.seq, l.session, l.invalidations FROM @log l
    WHERE l.xid >= pg_snapshot_xmax($1::text::pg_snapshot) AND l.seq > 0
    UNION ALL
    SELECT l.seq, l.session, l.invalidations FROM @log l
    WHERE l.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot))) AND l.seq > 0)
SELECT now.snapshot::text, news.seq, news.session, news.invalidations,
       coalesce(now.mark >= pg_snapshot_xmax($1::text::pg_snapshot), false) OR EXISTS (
           SELECT FROM pg_snapshot_xip($1::text::pg_snapshot) x (xid)
           WHERE x.xid <= now.mark AND pg_visible_in_snapshot(x.xid, now.snapshot)
               AND NOT EXISTS (SELECT FROM @log l WHERE l.xid = x.xid AND l.seq > 0)) AS missed
FROM now LEFT JOIN news ON true ORDER BY news.seq
