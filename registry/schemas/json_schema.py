"""JSON schemas of drafts 4 to 2020-12: checked by `jsonschema`, compared by `json_compatibility`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from jsonschema import Draft7Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from ..error_codes import invalid_schema
from .json_compatibility import SchemaNode, incompatibilities
from .schema_types import ParsedSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from referencing._core import Resolver
    from referencing.jsonschema import Schema

    from .schema_types import Dependency


_NO_FORMATS: Final = FormatChecker(())
"""Patterns are JavaScript's: Python does not know all of them."""
_ROOT: Final = "kmr:schema"
"""The base of relative references of a schema without `$id`."""


class JsonSchema(ParsedSchema):
    """A JSON schema; `root` is the schema with what resolves its references.

    Text: the JSON without white space. A reference to another schema is its name (`$ref: NAME`). Without
    `$schema`, it is of draft 7.
    """

    def __init__(self, text: str, dependencies: Sequence[Dependency] = ()) -> None:
        """Raises RequestRefused if the schema is invalid, or a reference cannot be resolved."""
        try:
            self._document = json.loads(text, parse_constant=_refuse_constant)
            if isinstance(self._document, dict):
                validator = validator_for(self._document, default=Draft7Validator)
                validator.check_schema(  # type: ignore[call-arg]  # its stub lacks the parameter
                    self._document, format_checker=_NO_FORMATS
                )
            elif not isinstance(self._document, bool):
                raise invalid_schema("it is neither an object nor true nor false")
            resource = _resource(self._document)
            known = REGISTRY.with_resources(
                [
                    *((each.name, _resource(json.loads(each.text))) for each in dependencies),
                    (resource.id() or _ROOT, resource),
                ]
            )
            resolver = known.resolver(resource.id() or _ROOT)
            _check_references(resource, resolver)
        except SchemaError as error:
            raise invalid_schema(f"{error.json_path}: {error.message}") from error
        except Unresolvable as error:
            raise invalid_schema(f"the reference {error.ref!r} cannot be resolved") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise invalid_schema(str(error)) from error
        except RecursionError as error:
            raise invalid_schema("it is nested too deeply") from error
        self.root = SchemaNode(self._document, resolver)

    @property
    def text(self) -> str:
        return json.dumps(self._document, separators=(",", ":"), ensure_ascii=False)

    def normalized(self) -> str:
        return json.dumps(self._document, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

    def incompatibilities(self, writer: ParsedSchema) -> list[str]:
        assert isinstance(writer, JsonSchema)  # noqa: S101  the caller compares the types
        return incompatibilities(self.root, writer.root)


def _refuse_constant(name: str) -> None:
    raise invalid_schema(f"{name} is no JSON")


def _resource(document: Schema) -> Resource[Schema]:
    return Resource.from_contents(document, default_specification=DRAFT7)


def _check_references(resource: Resource[Schema], resolver: Resolver[Schema]) -> None:
    """Look up all references, in subschemas too. Raises Unresolvable."""
    schema = resource.contents
    if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        resolver.lookup(reference)
    for each in resource.subresources():
        _check_references(each, resolver.in_subresource(each))
