"""Chats as data has them: their messages and tools are checked, and then look as transformers gives them to a template."""

from .errors import BadInputError, json_type
from .files import parse_json

# The names that a message's reasoning has. Templates read the first; those of gpt-oss the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def check_text(value, what, where):
    if not isinstance(value, str):
        raise BadInputError(f"{where}: {what} is a JSON {json_type(value)}; it must be a string")
    _check_characters(value, what, where)


def _check_characters(value, what, where):
    """Checks every string in `value`."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise BadInputError(f"{where}: {what} has half of a surrogate pair (\\ud800 to \\udfff), which is no "
                                "character") from None
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_characters(key, what, where)
            _check_characters(inner, what, where)
    elif isinstance(value, list):
        for inner in value:
            _check_characters(inner, what, where)


def check_messages(messages, where):
    if not isinstance(messages, list) or not messages:
        raise BadInputError(f"{where}: 'messages' must be a list of at least one {{\"role\", \"content\"}} object")
    for number, message in enumerate(messages, 1):
        _check_message(message, number, where)


def _check_message(message, number, where):
    if not isinstance(message, dict) or "role" not in message:
        keys = ", ".join(map(repr, message)) if isinstance(message, dict) else ""
        found = f"has {keys}" if keys else f"is a JSON {json_type(message)}"
        raise BadInputError(f"{where}: message {number} must be an object with 'role' and 'content'; it {found}")
    check_text(message["role"], f"the role of message {number}", where)
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise BadInputError(f"{where}: 'tool_calls' of message {number} must be a list of objects such as "
                            '{"type": "function", "function": {"name": "...", "arguments": {...}}}')
    says_otherwise = message["role"] == "assistant" and (calls or any(message.get(key) for key in REASONING_KEYS))
    if message.get("content") is not None:
        check_text(message["content"], f"the content of message {number}", where)
    elif not says_otherwise:
        raise BadInputError(f"{where}: message {number} must be an object with 'role' and 'content'; only the assistant "
                            "may be without 'content', if it has 'tool_calls'")
    _check_characters(message, f"message {number}", where)


def tools_of(record, where):
    """The tools of a row as a list; None if it has none. They may be the JSON text of the list."""
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = parse_json(tools, f"{where}: 'tools'")
        except ValueError as error:
            raise BadInputError(f"{where}: 'tools' is a string, but not valid JSON ({error}): it must be a list of "
                                "tools, or the JSON text of one") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadInputError(f"{where}: 'tools' must be a list of objects such as "
                            '{"type": "function", "function": {"name": "...", "parameters": {...}}}, or the JSON text '
                            "of one")
    _check_characters(tools, "'tools'", where)
    return tools or None  # an empty list makes some templates speak of tools


def for_template(messages, null_content=False):
    """The messages as transformers gives them to a template: without nulls, the reasoning under the names that are read.

    `null_content`: as it gave them before version 5, which some templates want, content that is missing is there and None.
    """
    given = []
    for message in messages:
        message = {key: value for key, value in message.items() if value is not None}
        reasoning = next((message[key] for key in REASONING_KEYS if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        given.append({"content": None, **message} if null_content else message)
    return given


def says(message):
    """Whether there is anything that a template should write of it."""
    return any(text.strip() for _, text in strings_of(message))


def strings_of(message):
    """[(path, text)] of the strings that a template may write of a message, without its role."""
    return [leaf for key in (*REASONING_KEYS, "content", "tool_calls") for leaf in _strings_in(message.get(key), (key,))]


def _strings_in(value, path):
    if isinstance(value, str):
        return [] if path[-1] in ("type", "id") else [(path, value)]
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [leaf for key, inner in pairs for leaf in _strings_in(inner, (*path, key))]


def with_string(value, path, text):
    """A copy of `value` in which the string at `path` is `text`."""
    if not path:
        return text
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_string(copy[path[0]], path[1:], text)
    return copy
