"""Forms of Avro schemas in which each type has its definition wherever it occurs.

A type that is used again has its definition again; where it contains itself, its full name stands.
`compact`: how people write such a schema, with names for repeated types, and namespaces that are inherited,
part of the name, or empty. `plain` is for fastavro, and `split` for a registry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import reject

if TYPE_CHECKING:
    from random import Random

Schema = Any
NAMED = {"record", "enum", "fixed"}
PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "string", "bytes"}


def full_name(definition: Schema) -> str:
    """Return the name of a type with its namespace."""
    return f"{definition['namespace']}.{definition['name']}".lstrip(".")


def is_named(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema.get("type") in NAMED


def _inside(schema: Schema, change: Any) -> Schema:
    """Return a schema with the schemas inside it changed."""
    if isinstance(schema, list):
        return [change(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: change(each) if key in ("items", "values") else each for key, each in schema.items()
    }
    if "fields" in copy:
        copy["fields"] = [{**each, "type": change(each["type"])} for each in copy["fields"]]
    return copy


def compact(schema: Schema, choices: Random) -> Schema:
    """Return a schema as people write it; the first definition of a name is that of all its uses."""
    seen: set[str] = set()

    def written(each: Schema, space: str) -> Schema:
        if isinstance(each, str) and each not in PRIMITIVES:
            return _reference(each, space, choices)
        if not is_named(each):
            return _inside(each, lambda inner: written(inner, space))
        name = full_name(each)
        if name in seen:
            return _reference(name, space, choices)
        seen.add(name)
        copy = _inside(each, lambda inner: written(inner, each["namespace"]))
        del copy["namespace"]
        return {**copy, **_named(each, space, choices)}

    return written(schema, "")


def _reference(name: str, space: str, choices: Random) -> str:
    inherited, _, simple = name.rpartition(".")
    if space and not inherited:
        reject()  # within a namespace there is no name for it
    return simple if inherited == space and choices.random() < 0.7 else name


def _named(definition: Schema, space: str, choices: Random) -> dict[str, str]:
    """Return the words that name a type within a namespace."""
    name, own = definition["name"], definition["namespace"]
    forms = [{"name": name, "namespace": own}]
    if own == space:
        forms += [{"name": name}] * 2
    if own:
        forms += [{"name": f"{own}.{name}"}, {"name": f"{own}.{name}", "namespace": "ignored"}]
    return choices.choice(forms)


def plain(schema: Schema) -> Schema:
    """Return a schema for fastavro: without logical types, with namespaces as parts of the names."""
    seen: set[str] = set()

    def flat(name: str) -> str:
        return name.replace(".", "_")

    def written(each: Schema) -> Schema:
        if isinstance(each, str) and each not in PRIMITIVES:
            return flat(each)
        if is_named(each):
            name = flat(full_name(each))
            if name in seen:
                return name
            seen.add(name)
        copy = _inside(each, written)
        if isinstance(copy, dict):
            copy = {key: value for key, value in copy.items() if key != "logicalType"}
        if is_named(each):
            space = copy.pop("namespace")
            copy["name"] = name
            copy["aliases"] = [
                flat(f"{space}.{other}".lstrip(".")) for other in each.get("aliases", ())
            ]
        return copy

    return written(schema)


def without_recursion(schema: Schema) -> Schema:
    """Return a schema without the fields by which a record contains itself."""
    copy = _inside(schema, without_recursion)
    if isinstance(copy, dict) and "fields" in copy:
        fields = [each for each in copy["fields"] if not _refers(each["type"])]
        copy["fields"] = fields or [{"name": "instead", "type": "int", "default": 1}]
    return copy


def _refers(schema: Schema) -> bool:
    """Return whether a schema has a reference, not only in the fields of a record inside it."""
    if isinstance(schema, list):
        return any(map(_refers, schema))
    if isinstance(schema, dict):
        return _refers(schema.get("items", "null")) or _refers(schema.get("values", "null"))
    return schema not in PRIMITIVES


def references(schema: Schema) -> set[str]:
    """Return the names by which records in a schema are contained in themselves."""
    found: set[str] = set()

    def collected(each: Schema) -> Schema:
        if isinstance(each, str) and each not in PRIMITIVES:
            found.add(each)
        return _inside(each, collected)

    collected(schema)
    return found


def contains_itself(schema: Schema) -> bool:
    """Return whether a record of the schema contains itself."""
    return bool(without_recursion(schema) != schema)


def namespaced(schema: Schema) -> Schema:
    """Return a schema in which each type has a namespace: within one there is no name for a type without."""
    copy = _inside(schema, namespaced)
    return {**copy, "namespace": copy["namespace"] or "none"} if is_named(copy) else copy


def split(schema: Schema) -> tuple[Schema, dict[str, Schema]]:
    """Return a schema that refers to all types inside it, and these by name, in the order of references."""
    found: dict[str, Schema] = {}

    def hoisted(each: Schema) -> Schema:
        copy = _inside(each, hoisted)
        if not is_named(each):
            return copy
        found.setdefault(full_name(each), copy)
        return full_name(each)

    name = hoisted(schema)
    return found.pop(name), found
