-- Deliveries by partition, in ClickHouse and in Spark. `missing` above 0: messages are missing between the
-- first and the last that were delivered. (A compacted topic, and one written by transactions, has offsets
-- without a message: there, a gap is no loss.) `doubled` above 0: so many messages were delivered more than
-- once; `example` is the first of them.
-- For another table or other columns change the innermost SELECT only; a table that holds several topics has
-- its topic column in place of ''. In Spark, files are a table too: parquet.`/a/directory`.
SELECT
    topic,
    `partition`,
    min(`offset`)                                  AS first_offset,
    max(`offset`)                                  AS last_offset,
    sum(times)                                     AS deliveries,
    count(*)                                       AS messages,
    (max(`offset`) - min(`offset`)) + 1 - count(*) AS missing,
    sum(CASE WHEN times > 1 THEN 1 ELSE 0 END)     AS doubled,
    min(CASE WHEN times > 1 THEN `offset` END)     AS example
FROM (
    SELECT topic, `partition`, `offset`, count(*) AS times
    FROM (SELECT '' AS topic, `partition`, `offset` FROM kmr_consumer_ingest) AS delivered
    GROUP BY topic, `partition`, `offset`
) AS offsets
GROUP BY topic, `partition`
ORDER BY topic, `partition`
