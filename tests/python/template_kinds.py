"""Chat templates in the manner of the known families, each with what it writes and which of it is generated.

`write(chat)` gives [(text, is it generated)]; chats alternate between user and assistant, maybe after a system message.
"""

from dataclasses import dataclass

BOS, EOS = "<s>", "</s>"
SYSTEM_FIRST = ("{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
                "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}")
ALTERNATE = ("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}")


@dataclass
class Kind:
    text: str
    write: object
    specials: tuple = ()
    stops: tuple = (EOS,)


def tagged(before, between, after, names=None, change=lambda text: text, begin=""):
    """Turns as in ChatML: `before` role `between` content `after`, which ends with white space that is not generated."""
    end = after.rstrip()

    def write(chat):
        yield begin, False
        for message in chat:
            role = (names or {}).get(message["role"], message["role"])
            yield before + role + between, False
            yield change(message["content"]) + end, message["role"] == "assistant"
            yield after[len(end):], False
    return write


def system_and_rest(chat):
    return (chat[0]["content"], chat[1:]) if chat[0]["role"] == "system" else ("", chat)


def llama2(chat):
    system, rest = system_and_rest(chat)
    for index, message in enumerate(rest):
        if message["role"] == "user":
            before = f"<<SYS>>\n{system}\n<</SYS>>\n\n" if system and index == 0 else ""
            yield f"{BOS}[INST] {before}{message['content'].strip()} [/INST]", False
        else:
            yield f" {message['content'].strip()} {EOS}", True


def mistral(chat):
    system, rest = system_and_rest(chat)
    last = max(index for index, message in enumerate(rest) if message["role"] == "user")
    yield BOS, False
    for index, message in enumerate(rest):
        if message["role"] == "user":
            yield "[INST] " + (system + "\n\n" if system and index == last else "") + message["content"] + "[/INST]", False
        else:
            yield f" {message['content']}{EOS}", True


def vicuna(chat):
    system, rest = system_and_rest(chat)
    yield system, False
    for message in rest:
        if message["role"] == "user":
            yield f" USER: {message['content']} ASSISTANT:", False
        else:
            yield f" {message['content']}{EOS}", True


def alpaca(chat):
    for message in system_and_rest(chat)[1]:
        if message["role"] == "user":
            yield f"### Instruction:\n{message['content']}\n\n### Response:\n", False
        else:
            yield message["content"] + "\n\n", True


def phi3(chat):
    for message in chat:
        is_last = message is chat[-1]
        yield f"<|{message['role']}|>\n", False
        yield message["content"] + "<|end|>", message["role"] == "assistant"
        yield "\n" + (EOS if is_last else ""), False


def qwen3(chat):
    for message in chat:
        yield f"<|im_start|>{message['role']}\n", False
        if message is chat[-1]:
            yield "<think>\n\n</think>\n\n", False
        yield message["content"] + "<|im_end|>", message["role"] == "assistant"
        yield "\n", False


def thinks_ahead(chat):
    for message in chat:
        yield f"<|im_start|>{message['role']}\n", False
        if message["role"] == "assistant":
            yield "<think>\n\n</think>\n\n", False
        yield message["content"] + "<|im_end|>", message["role"] == "assistant"
        yield "\n", False


def deepseek_r1(chat):
    system, rest = system_and_rest(chat)
    yield BOS + system, False
    for message in rest:
        yield "<|User|>" if message["role"] == "user" else "<|Assistant|>", False
        yield message["content"] + ("<|end_of_sentence|>" if message["role"] == "assistant" else ""), (
            message["role"] == "assistant")


def always_asks(chat):
    yield from tagged("<|im_start|>", "\n", "<|im_end|>\n")(chat)
    yield "<|im_start|>assistant\n", False


def glm(chat):
    """The next turn's first token ends the turn."""
    yield "[gMASK]", False
    generated = False
    for message in chat:
        yield f"<|{message['role']}|>", generated
        generated = message["role"] == "assistant"
        yield "\n" + message["content"].strip(), generated


def channels(chat):
    for message in chat:
        yield "<|start|>" + message["role"], False
        if message["role"] == "assistant":
            yield "<|channel|>final<|message|>" + message["content"] + ("<|return|>" if message is chat[-1] else "<|end|>"), True
        else:
            yield f"<|message|>{message['content']}<|end|>", False


CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
IM = {"specials": ("<|im_start|>", "<|im_end|>"), "stops": (EOS, "<|im_end|>")}
IM_NOT_STOPPED = {"specials": IM["specials"]}

KINDS = {
    "ChatML": Kind(CHATML, tagged("<|im_start|>", "\n", "<|im_end|>\n"), **IM),
    "ChatML of a model that does not stop there": Kind(CHATML, tagged("<|im_start|>", "\n", "<|im_end|>\n"), **IM_NOT_STOPPED),
    "ChatML without its tokens": Kind(CHATML.replace("im_", "i_"), tagged("<|i_start|>", "\n", "<|i_end|>\n")),
    "a system turn if there is none": Kind(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}" + CHATML,
        lambda chat: tagged("<|im_start|>", "\n", "<|im_end|>\n")(
            chat if chat[0]["role"] == "system" else [{"role": "system", "content": "Be kind"}, *chat]), **IM),
    "Llama-2": Kind(
        SYSTEM_FIRST + "{% for m in rest %}" + ALTERNATE + "{% if loop.index0 == 0 and system %}"
        "{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m.content.strip() %}{% else %}"
        "{% set content = m.content %}{% endif %}{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}"
        "{% endif %}{% endfor %}", llama2, ("[INST]", "[/INST]")),
    "Llama-3": Kind(
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim "
        "+ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        tagged("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", change=str.strip, begin=BOS),
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), (EOS, "<|eot_id|>")),
    "Mistral: the system message before the last user's": Kind(
        SYSTEM_FIRST + "{% set n = namespace(last=0) %}{% for m in rest %}{% if m.role == 'user' %}{% set n.last = loop.index0 %}"
        "{% endif %}{% endfor %}{{ bos_token }}{% for m in rest %}" + ALTERNATE + "{% if m.role == 'user' %}"
        "{{ '[INST] ' + (system + '\n\n' if system and loop.index0 == n.last else '') + m.content + '[/INST]' }}{% else %}"
        "{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}", mistral, ("[INST]", "[/INST]")),
    "Gemma": Kind(
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + "
        "m.content | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        tagged("<start_of_turn>", "\n", "<end_of_turn>\n", {"assistant": "model"}, str.strip, BOS),
        ("<start_of_turn>", "<end_of_turn>"), (EOS, "<end_of_turn>")),
    "Phi-3: EOS after the last turn": Kind(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        phi3, ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>"), (EOS, "<|end|>")),
    "Zephyr": Kind(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% if loop.last and "
        "add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}", tagged("<|", "|>\n", EOS + "\n")),
    "Vicuna": Kind(
        SYSTEM_FIRST + "{{ system }}{% for m in rest %}{% if m.role == 'user' %}{{ ' USER: ' + m.content + ' ASSISTANT:' }}"
        "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}", vicuna),
    "Command-R": Kind(
        "{{ bos_token }}{% for m in messages %}{{ '<|TURN|><|' + m.role | upper + '|>' + m.content.strip() + '<|END_OF_TURN|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|TURN|><|ASSISTANT|>' }}{% endif %}",
        tagged("<|TURN|><|", "|>", "<|END_OF_TURN|>", {role: role.upper() for role in ("system", "user", "assistant")}, str.strip,
               BOS), ("<|TURN|>", "<|SYSTEM|>", "<|USER|>", "<|ASSISTANT|>", "<|END_OF_TURN|>"), (EOS, "<|END_OF_TURN|>")),
    "Alpaca: nothing but white space ends a turn": Kind(
        SYSTEM_FIRST + "{% for m in rest %}{% if m.role == 'user' %}{{ '### Instruction:\n' + m.content + '\n\n' }}{% else %}"
        "{{ '### Response:\n' + m.content + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
        "{{ '### Response:\n' }}{% endif %}", alpaca),
    "Qwen3: thinking in the last turn": Kind(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if loop.last and m.role == 'assistant' %}"
        "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}", qwen3, **IM),
    "the generation prompt begins a thought": Kind(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}", thinks_ahead, **IM),
    "DeepSeek-R1: the generation prompt is not in the chat": Kind(
        SYSTEM_FIRST + "{{ bos_token + system }}{% for m in rest %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% else %}"
        "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
        deepseek_r1, ("<|User|>", "<|Assistant|>", "<|end_of_sentence|>"), (EOS, "<|end_of_sentence|>")),
    "refuses beginnings": Kind(
        "{% if messages[-1].role != 'assistant' or messages | length < 4 %}{{ raise_exception('the chat is not over') }}{% endif %}"
        + CHATML, tagged("<|im_start|>", "\n", "<|im_end|>\n"), **IM),
    "always asks for an answer": Kind(
        CHATML.replace("{% if add_generation_prompt %}", "").replace("assistant\n' }}{% endif %}", "assistant\n' }}"),
        always_asks, **IM),
    "GLM: the next turn ends the last": Kind(
        "[gMASK]{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content.strip() }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        glm, ("[gMASK]", "<|user|>", "<|assistant|>", "<|system|>"), (EOS, "<|user|>")),
    "channels": Kind(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + "
        "('<|return|>' if loop.last else '<|end|>') }}{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
        channels, ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"), (EOS, "<|return|>")),
    "marks what is generated": Kind(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
        "{{ m.content + '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        tagged("<|im_start|>", "\n", "<|im_end|>\n"), **IM),
}
SPECIALS = sorted({text for kind in KINDS.values() for text in kind.specials})


def chat_of(*contents, system=None):
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(contents)]


CHATS = [
    chat_of("Hi", "The cat sat on the mat.", "A:", "The"),
    chat_of(" Who are you? ", "A cat ", "é?", "Meow", system="Be brief."),
    chat_of("Meow", "Meow", "Meow", "Meow", "12", "345 playing"),
    chat_of("the\n", "\n\nworld\n", "日本語 ", "\u0301e naïve  café", "x", "yes"),
]
