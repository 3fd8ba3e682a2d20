"""The JVM and the Spark session around a query, and the code that executors need."""
