-- Delays per carrier, of the flights that took place.
SELECT
    carrier,
    count()                         AS flights,
    countIf(dep_delay IS NULL)      AS cancelled,
    round(avg(dep_delay), 1)        AS mean_delay,
    quantileExact(0.9)(dep_delay)   AS delay_of_the_worst_tenth
FROM flights
GROUP BY carrier
ORDER BY flights DESC, carrier
