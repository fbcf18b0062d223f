-- The log rows that became visible after $1, the snapshot of the previous poll. Each row of the result also
-- has the snapshot of this poll and the flag `missed`: rows that the previous poll could not see may have
-- been removed. If no log row became visible, the result is one row with seq NULL.
--
-- mark: the greatest xid that function `trim` removed, stored in the log row with session and op -2. It is
-- ignored if it is in this server's future: the tables may come from a pg_dump of another server.
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
