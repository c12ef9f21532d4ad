"""Lets schemathesis send streams: a generated text is sent unchanged."""

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")
