-- Missing deliveries: one row per partition; `missing` above 0 means that messages are missing between
-- the first and the last that were delivered. (A compacted topic, and one written by transactions, has
-- offsets without a message: there, a gap is no loss.)
-- For another table or other columns change the inner SELECT only, the one in the brackets; a table that
-- holds several topics has its topic column in place of ''. Files: parquet.`/a/directory` is a table too.
SELECT
    topic,
    `partition`,
    min(`offset`)                                                     AS first_offset,
    max(`offset`)                                                     AS last_offset,
    count(*)                                                          AS deliveries,
    (max(`offset`) - min(`offset`)) + 1 - count(DISTINCT `offset`)    AS missing
FROM (SELECT '' AS topic, `partition`, `offset` FROM kmr_consumer_ingest)
GROUP BY topic, `partition`
ORDER BY topic, `partition`
