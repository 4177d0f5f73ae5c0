"""Spark's type strings, parsed without a JVM: `"long"`, `"struct<page:string,at:timestamp>"`.

Spark parses these in Scala. State is declared in classes that are imported and tested without a
running Spark, so the few rules are repeated here; what they do not cover is refused.
"""

from __future__ import annotations

import re

from pyspark.sql import types as T

from millrace.errors import UnsupportedTypeError

_SIMPLE: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "byte": T.ByteType(),
    "tinyint": T.ByteType(),
    "short": T.ShortType(),
    "smallint": T.ShortType(),
    "int": T.IntegerType(),
    "integer": T.IntegerType(),
    "long": T.LongType(),
    "bigint": T.LongType(),
    "float": T.FloatType(),
    "real": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "decimal": T.DecimalType(10, 0),
    "numeric": T.DecimalType(10, 0),
}

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[A-Za-z_0-9]+|[<>(),:])")


def parse_type(text: str | T.DataType) -> T.DataType:
    """A type from its string; a type is returned as it is."""
    if isinstance(text, T.DataType):
        return text
    parser = _Parser(text)
    data_type = parser.type()
    parser.end()
    return data_type


def parse_schema(text: str | T.StructType) -> T.StructType:
    """A schema from `"user string, visits long"`."""
    if isinstance(text, T.StructType):
        return text
    parser = _Parser(text)
    fields = [parser.field(separator=None)]
    while parser.peek() == ",":
        parser.take(",")
        fields.append(parser.field(separator=None))
    parser.end()
    return parser.struct(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        if not isinstance(text, str):
            raise self._error("it is not a string")
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"{text[at:].strip()[:20]!r} is not expected")
            self._tokens.append(match.group(1))
            at = match.end()
        self._at = 0

    def _error(self, what: str) -> UnsupportedTypeError:
        return UnsupportedTypeError(
            f"{self._text!r} is not a type: {what}. Write it as in Spark: 'long', "
            "'array<string>', 'map<string,double>', 'struct<page:string,at:timestamp>', "
            "'decimal(10,2)'."
        )

    def peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        if token is None or (wanted is not None and token != wanted):
            raise self._error(f"{wanted or 'a name'} is expected, not {token or 'the end'}")
        self._at += 1
        return token

    def end(self) -> None:
        if self.peek() is not None:
            raise self._error(f"{self.peek()!r} is not expected")

    def type(self) -> T.DataType:
        name = self.take().lower()
        if name == "array":
            self.take("<")
            element = self.type()
            self.take(">")
            return T.ArrayType(element)
        if name == "map":
            self.take("<")
            key = self.type()
            self.take(",")
            value = self.type()
            self.take(">")
            return T.MapType(key, value)
        if name == "struct":
            self.take("<")
            fields = [self.field(separator=":")]
            while self.peek() == ",":
                self.take(",")
                fields.append(self.field(separator=":"))
            self.take(">")
            return self.struct(fields)
        if name in ("decimal", "numeric") and self.peek() == "(":
            self.take("(")
            precision, scale = self.number(), 0
            if self.peek() == ",":
                self.take(",")
                scale = self.number()
            self.take(")")
            if not 1 <= precision <= 38 or scale > precision:
                raise self._error("a decimal has up to 38 digits, and its scale is among them")
            return T.DecimalType(precision, scale)
        if name not in _SIMPLE:
            raise self._error(f"there is no type {name!r}")
        return _SIMPLE[name]

    def number(self) -> int:
        token = self.take()
        if not token.isdecimal():
            raise self._error(f"a number is expected, not {token!r}")
        return int(token)

    def struct(self, fields: list[T.StructField]) -> T.StructType:
        seen: set[str] = set()
        for field in fields:
            if field.name in seen:
                raise self._error(f"there are two fields {field.name!r}")
            seen.add(field.name)
        return T.StructType(fields)

    def name(self) -> str:
        token = self.take()
        if token[0] == "`":
            return token[1:-1].replace("``", "`")
        if not (token[0].isalnum() or token[0] == "_"):
            raise self._error(f"a name is expected, not {token!r}")
        return token

    def field(self, separator: str | None) -> T.StructField:
        name = self.name()
        if self.peek() == ":":
            self.take(":")
        elif separator is not None:
            raise self._error(f"':' is expected after {name!r}")
        data_type = self.type()
        nullable = True
        if (self.peek() or "").lower() == "not":
            self.take()
            if self.take().lower() != "null":
                raise self._error("NOT must be followed by NULL")
            nullable = False
        return T.StructField(name, data_type, nullable)
