# ruff: noqa: E501  (templates are read better as they are)
"""Chat templates in the structures that public models have, and tokenizers of the kinds they have, for tests.

Between « and » is what the assistant says, its end of turn included: `marked` makes them the marks of a template that says
so itself, `plain` leaves them out. New lines are written as `{{ nl }}`.
"""

from __future__ import annotations

import functools

CALLS_JSON = (
    '{%- for c in m.tool_calls %}<tool_call>{{ nl }}{"name": "{{ c.function.name }}", "arguments": '
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
    "{% endif %}}{{ nl }}</tool_call>{% if not loop.last %}{{ nl }}{% endif %}{% endfor -%}"
)
CHATML_OTHERS = "<|im_start|>{{ m.role }}{{ nl }}{{ m.content }}<|im_end|>{{ nl }}"
CHATML_ASKS = "{% if add_generation_prompt %}<|im_start|>assistant{{ nl }}{% endif %}"
TOOLS_FIRST = "{% if tools %}<|im_start|>system{{ nl }}Tools:{% for t in tools %} {{ t | tojson }}{% endfor %}<|im_end|>{{ nl }}{% endif %}"
LAST_QUESTION = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)
NO_TOOLS = "{% if m.role == 'tool' or m.tool_calls %}{{ raise_exception('tools are not supported') }}{% endif %}"
ONE_CALL = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
SYSTEM_INTO_USER = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + nl + nl %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
)

TEMPLATES = {
    "chatml": "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant{{ nl }}«{{ m.content }}"
    + CALLS_JSON
    + "<|im_end|>»{{ nl }}{% else %}"
    + CHATML_OTHERS
    + "{% endif %}{% endfor %}"
    + CHATML_ASKS,
    "qwen2 with tools": TOOLS_FIRST
    + "{% if messages[0].role != 'system' %}<|im_start|>system{{ nl }}You are helpful.<|im_end|>{{ nl }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant{{ nl }}«{% if m.content %}{{ m.content }}"
    "{% if m.tool_calls %}{{ nl }}{% endif %}{% endif %}"
    + CALLS_JSON
    + "<|im_end|>»{{ nl }}{% elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}{{ nl }}"
    "<tool_response>{{ m.content }}</tool_response>{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>{{ nl }}"
    "{% endif %}{% else %}" + CHATML_OTHERS + "{% endif %}{% endfor %}" + CHATML_ASKS,
    # earlier turns lose their reasoning, the last one has an empty one where it has none
    "qwen3 with reasoning": TOOLS_FIRST
    + LAST_QUESTION
    + "{% for m in messages %}{% if m.role == 'assistant' %}{% set c = m.content or '' %}{% set r = m.reasoning_content or '' %}"
    "{% if '</think>' in c %}{% set r = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set c = c.split('</think>')[-1].lstrip() %}{% endif %}<|im_start|>assistant{{ nl }}«"
    "{% if loop.index0 > ns.last and (loop.last or r) %}<think>{{ nl }}{{ r.strip() }}{{ nl }}</think>{{ nl }}{{ nl }}{% endif %}"
    "{{ c }}" + CALLS_JSON + "<|im_end|>»{{ nl }}{% else %}" + CHATML_OTHERS + "{% endif %}{% endfor %}" + CHATML_ASKS,
    "llama 2": SYSTEM_INTO_USER + "{% for m in rest %}" + NO_TOOLS + "{% if m.role == 'user' %}<s>[INST] "
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content.strip() }} [/INST]{% else %}« {{ m.content.strip() }} </s>»"
    "{% endif %}{% endfor %}",
    "llama 3": "<s>{% for m in messages %}"
    + ONE_CALL
    + "<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>"
    "{{ nl }}{{ nl }}{% if m.role == 'assistant' %}«{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>»'
    "{% else %}{% if loop.first and tools %}{{ tools | tojson }}{{ nl }}{% endif %}{{ m.content | trim }}<|eot_id|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ nl }}{{ nl }}{% endif %}",
    "mistral v1": "<s>" + SYSTEM_INTO_USER + "{% for m in rest %}" + NO_TOOLS + "{% if m.role == 'user' %}[INST] "
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content }} [/INST]{% else %}« {{ m.content }}</s>»{% endif %}{% endfor %}",
    # the tools, and what the system says, stand before the last question
    "mistral v3": "<s>{% set ns = namespace(last=-1) %}"
    + SYSTEM_INTO_USER
    + "{% for m in rest %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in rest %}{% if m.role == 'user' %}"
    "{% if loop.index0 == ns.last %}{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] "
    "{{ first }}{{ m.content }}[/INST]{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% elif m.tool_calls %}«[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]</s>»"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]{% else %}« {{ m.content }}</s>»{% endif %}{% endfor %}",
    "gemma": "<s>"
    + SYSTEM_INTO_USER
    + "{% for m in rest %}"
    + NO_TOOLS
    + "<start_of_turn>{{ 'model' if m.role == 'assistant' "
    "else m.role }}{{ nl }}{% if m.role == 'assistant' %}«{{ m.content | trim }}<end_of_turn>»{{ nl }}{% else %}"
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content | trim }}<end_of_turn>{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model{{ nl }}{% endif %}",
    # the end of everything stands behind the last turn alone
    "phi 3": "{% for m in messages %}"
    + NO_TOOLS
    + "<|{{ m.role }}|>{{ nl }}{% if m.role == 'assistant' %}«{{ m.content }}<|end|>»"
    "{{ nl }}{% else %}{{ m.content }}<|end|>{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ nl }}{% endif %}",
    "zephyr": "{% for m in messages %}"
    + NO_TOOLS
    + "<|{{ m.role }}|>{{ nl }}{% if m.role == 'assistant' %}«{{ m.content }}</s>»{{ nl }}"
    "{% else %}{{ m.content }}</s>{{ nl }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{{ nl }}{% endif %}",
    "vicuna": "{% for m in messages %}"
    + NO_TOOLS
    + "{% if m.role == 'system' %}{{ m.content }} {% elif m.role == 'user' %}USER: "
    "{{ m.content }} {% else %}ASSISTANT:« {{ m.content }}</s>»{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "alpaca": "{% for m in messages %}"
    + NO_TOOLS
    + "{% if m.role == 'assistant' %}### Response:{{ nl }}«{{ m.content }}{{ nl }}{{ nl }}»"
    "{% else %}### {{ 'Instruction' if m.role == 'user' else 'System' }}:{{ nl }}{{ m.content }}{{ nl }}{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:{{ nl }}{% endif %}",
    "deepseek v3": "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'tool' %}<|tool_output|>{{ m.content }}{% else %}<|Assistant|>«{{ m.content }}{% for c in m.tool_calls %}"
    "<|tool_call|>{{ c.function.name }}{{ nl }}{{ c.function.arguments }}{% endfor %}</s>»{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|>{% endif %}",
    # the prompt for an answer begins its reasoning, which earlier turns have lost
    "deepseek r1": "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'tool' %}<|tool_output|>{{ m.content }}{% else %}<|Assistant|>«{% if m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% endif %}{% for c in m.tool_calls %}<|tool_call|>{{ c.function.name }}{{ nl }}{{ c.function.arguments }}{% endfor %}</s>»{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>{{ nl }}{% endif %}",
    "command r": "<s>{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'assistant' %}<|CHATBOT_TOKEN|>«{% if m.tool_calls %}"
    "Action: {% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% else %}{{ m.content.strip() }}{% endif %}"
    "<|END_OF_TURN_TOKEN|>»{% else %}<|{{ 'USER' if m.role == 'user' else 'SYSTEM' }}_TOKEN|>{{ m.content.strip() }}<|END_OF_TURN_TOKEN|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    # channels; a turn ends otherwise where it is the last
    "gpt-oss": "{% for m in messages %}"
    + ONE_CALL
    + "{% if m.role == 'assistant' %}<|start|>assistant«{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
    " to=functions.{{ c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>{% else %}{% if loop.last and "
    "m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|><|start|>assistant{% endif %}<|channel|>final"
    "<|message|>{{ m.content }}{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endif %}»{% else %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    "falcon": "{% for m in messages %}"
    + NO_TOOLS
    + "{% if m.role == 'assistant' %}Falcon:« {{ m.content }}<|endoftext|>»{{ nl }}{% else %}"
    "{{ m.role | capitalize }}: {{ m.content }}{{ nl }}{% endif %}{% endfor %}{% if add_generation_prompt %}Falcon:{% endif %}",
    "granite": "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{% if m.role == 'assistant' %}«{{ m.content }}"
    + CALLS_JSON
    + "<|end_of_text|>»{{ nl }}{% else %}{{ m.content }}<|end_of_text|>{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
    "olmo": "<|endoftext|>{% for m in messages %}"
    + NO_TOOLS
    + "<|{{ m.role }}|>{{ nl }}{% if m.role == 'assistant' %}«{{ m.content }}"
    "<|endoftext|>»{% if not loop.last %}{{ nl }}{% endif %}{% else %}{{ m.content }}{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ nl }}{% endif %}",
    "lines, the end token once": "{% for m in messages %}"
    + NO_TOOLS
    + "{% if m.role == 'assistant' %}A: «{{ m.content }}{% if loop.last %}</s>"
    "{% else %}{{ nl }}{% endif %}»{% else %}{{ m.role }}: {{ m.content }}{{ nl }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}",
}
SPECIAL = (
    *(
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "[INST]",
        "[/INST]",
    ),
    *(
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "<start_of_turn>",
    ),
    *(
        "<end_of_turn>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<|User|>",
        "<|Assistant|>",
        "<|tool_output|>",
    ),
    *("<|tool_call|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>"),
    *("<|SYSTEM_TOKEN|>", "<|start|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|endoftext|>"),
    *("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
)

TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {}}},
}


def call(name, arguments):
    """A call of a tool."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def said(role, content, **more):
    """A turn."""
    return {"role": role, "content": content, **more}


ASKED, ANSWERED = said("user", "Is it warm in Rome?"), said("assistant", "Yes, it is.")
CONVERSATIONS = {
    "one turn": ([ASKED, ANSWERED], None),
    "several turns": ([ASKED, ANSWERED, said("user", "And in Oslo?"), said("assistant", "No."), ASKED, ANSWERED], None),
    "a system turn": (
        [said("system", "Be brief."), ASKED, ANSWERED, said("user", "Sure?"), said("assistant", "Sure.")],
        None,
    ),
    "other scripts": (
        [said("user", "Ça va? 你好"), said("assistant", "Très bien 😀, 谢谢."), ASKED, said("assistant", "да")],
        None,
    ),
    "spaces around": (
        [said("user", "  a  "), said("assistant", " b "), said("user", "c\n"), said("assistant", "\nd\n")],
        None,
    ),
    "lines and code": (
        [ASKED, said("assistant", "First:\n\n```\nfor x in y:\n    print(x)\n```\nDone."), ASKED, ANSWERED],
        None,
    ),
    "a call": (
        [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call("weather", {"city": "Rome"})]},
            said("tool", '{"celsius": 30}', name="weather"),
            said("assistant", "It has 30 degrees."),
        ],
        [TOOL],
    ),
    "calls in several turns": (
        [
            said("system", "Use tools."),
            ASKED,
            said("assistant", "", tool_calls=[call("weather", {"city": "Rome", "days": 2})]),
            said("tool", "30", name="weather"),
            ANSWERED,
            said("user", "And in Oslo?"),
            said("assistant", "", tool_calls=[call("weather", {"city": "Oslo"})]),
            said("tool", "3", name="weather"),
            said("assistant", "No."),
        ],
        [TOOL],
    ),
    "two calls at once": (
        [
            ASKED,
            said("assistant", "", tool_calls=[call("weather", {"city": "Rome"}), call("clock", {})]),
            said("tool", "30", name="weather"),
            said("tool", "12:00", name="clock"),
            said("assistant", "It is 30 at noon."),
        ],
        [TOOL],
    ),
    "arguments as text": (
        [ASKED, said("assistant", "", tool_calls=[call("weather", '{"city": "Rome"}')]), said("tool", "30"), ANSWERED],
        None,
    ),
    "reasoning": (
        [
            ASKED,
            said("assistant", "Yes, it is.", reasoning_content="Rome lies south."),
            said("user", "And in Oslo?"),
            said("assistant", "No.", reasoning_content="Oslo lies north."),
        ],
        None,
    ),
    "reasoning in the text": (
        [
            ASKED,
            said("assistant", "<think>\nRome lies south.\n</think>\n\nYes, it is."),
            said("user", "And in Oslo?"),
            said("assistant", "<think>\nOslo lies north.\n</think>\n\nNo."),
        ],
        None,
    ),
}


def plain(template: str) -> str:
    """A template without marks of what the assistant says."""
    return "{% set nl = '\\n' %}" + template.replace("«", "").replace("»", "")


def marked(template: str) -> str:
    """A template with them."""
    return "{% set nl = '\\n' %}" + template.replace("«", "{% generation %}").replace("»", "{% endgeneration %}")


def _texts():
    return [str(turn) for turns, _ in CONVERSATIONS.values() for turn in turns] * 4


@functools.cache
def tokenizer_of(kind: str):
    """A tokenizer: byte-level BPE, Unigram whose first word alone gets a mark, or BPE whose normalizer marks every text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", *SPECIAL]
    if kind == "byte-level":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    else:
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(SPECIAL[2:]),
    )
