-- Rows that the two engines do not have in common: none, if both did the same with the same records.
SELECT * EXCEPT (by_workers), countIf(by_workers) AS workers, countIf(NOT by_workers) AS spark
FROM
(
    SELECT *, true AS by_workers FROM default.flights
    UNION ALL
    SELECT *, false AS by_workers FROM spark.flights
)
GROUP BY ALL
HAVING workers != spark
ORDER BY partition, offset
