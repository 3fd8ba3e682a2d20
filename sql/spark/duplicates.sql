-- Duplicate deliveries: one row per message that was delivered more than once; no rows is good.
-- For another table or other columns change the inner SELECT only, the one in the brackets; a table that
-- holds several topics has its topic column in place of ''. Files: parquet.`/a/directory` is a table too.
SELECT
    topic,
    `partition`,
    `offset`,
    count(*) AS deliveries
FROM (SELECT '' AS topic, `partition`, `offset` FROM kmr_consumer_ingest)
GROUP BY topic, `partition`, `offset`
HAVING count(*) > 1
ORDER BY topic, `partition`, `offset`
