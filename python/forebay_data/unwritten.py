"""What of a chat its template writes nothing of, so that no training can learn it."""

from .errors import BadInputError
from .messages import strings_of, with_string

_OTHER = "\ufdd2"  # stands in no chat


def find_unwritten(render, messages, tools):
    """In words: messages, or their content or tool calls, and tools, without which render(messages, tools=tools) is the same."""
    text, found = render(messages, tools=tools), []
    for index, message in enumerate(messages):
        parts = {part: strings for part in ("content", "tool_calls") if (strings := _said(message, part))}
        lost = [part for part, strings in parts.items()
                if _rendered(render, _without(messages, index, strings), tools) == text]
        if lost:
            what = "" if len(lost) == len(parts) else " and ".join(f"the {part} of " for part in lost).replace("_", " ")
            found.append(f"{what}message {index + 1} ({message['role']})")
    return found + (["the tools"] if tools and _rendered(render, messages, None) == text else [])


def _said(message, part):
    return [(path, text) for path, text in strings_of(message) if path[0] == part and text.strip()]


def _without(messages, index, strings):
    changed = list(messages)
    for path, _ in strings:
        changed[index] = with_string(changed[index], path, _OTHER)
    return changed


def _rendered(render, messages, tools):
    try:
        return render(messages, tools=tools)
    except BadInputError:
        return None  # it looks at what is changed
