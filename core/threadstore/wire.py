"""How an item is encoded when it is sent (FORMAT 8.2, 2b).

Codex decodes items and encodes them again, field by field in a fixed order. Records that it wrote itself come out as
they lie in the log; records of
other tools may lose unknown fields, gain nulls and change their order.
"""

from __future__ import annotations

from typing import Any

import orjson


def sent(document: dict[str, Any], raw: bytes) -> bytes | None:
    """The bytes that are sent for a decoded item, None for one that is left out."""
    if document.get("type") == "configuration_update":
        return None
    document = {key: value for key, value in document.items() if key != "internal_chat_message_metadata_passthrough"}
    return orjson.dumps(document)
