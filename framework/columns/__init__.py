"""Arrow columns: does one fit a type, and what are its values as text, as JSON and as Python objects?"""
