"""What a broker measures: declared in `metrics`, counted per request in `requests`, read by `collector`."""
