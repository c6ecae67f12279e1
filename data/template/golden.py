"""Writes the golden files of this package with transformers' own renderer.

    python golden.py                        testdata/snippets.json and testdata/conversations.json
    python golden.py --public DIR OUT.json  the same conversations through the chat templates below DIR: every *.jinja,
                                            and the chat_template of every tokenizer_config.json and *.gguf

    TEMPLATE_PUBLIC=OUT.json go test -run Public -v .

    python golden.py --random N SEED OUT.json  N random expressions

    TEMPLATE_RANDOM=OUT.json go test -run Random -v .

Public templates are other people's texts, so they stay out of the tree; testdata has templates that were written for
these tests. Needs transformers 4.57.3 and jinja2 3.1.6 (and gguf for *.gguf).
"""

import copy
import datetime
import json
import pathlib
import random
import re
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils as chat

assert transformers.__version__ == "4.57.3", transformers.__version__
assert jinja2.__version__ == "3.1.6", jinja2.__version__

HERE = pathlib.Path(__file__).parent / "testdata"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 4, 5, 6, 7)


chat.datetime = Clock

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather <now> & \"here\" in Zürich's 天気",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "A city", "enum": ["Bern", "Genève"]},
                    "days": {"type": "integer", "default": 3, "minimum": 1.0},
                    "exact": {"type": "boolean", "default": False, "nullable": None},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
            "return": {"type": "number", "description": "the sum"},
        },
    },
]


def call(name, args, id="call12345"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": args}}


U = lambda t: {"role": "user", "content": t}
A = lambda t, **k: {"role": "assistant", "content": t, **k}
S = lambda t: {"role": "system", "content": t}
T = lambda t, **k: {"role": "tool", "content": t, **k}

CONVERSATIONS = {
    "one": dict(messages=[U("Hello?")]),
    "pair": dict(messages=[U("Hello?"), A("Hi! 你好 🙂")]),
    "system": dict(messages=[S("Be brief."), U("Hello?"), A("Hi.")]),
    "turns": dict(messages=[U("1+1?"), A("2"), U("and 2+2?"), A("4"), U("thanks"), A("Any time.")]),
    "system_turns": dict(messages=[S("Be\n\nbrief. "), U("1+1?"), A("2"), U("and 2+2?"), A("4")]),
    "spaces": dict(messages=[U("  leading\n\n"), A("\n trailing  \n"), U("\ttab\u00a0nbsp\u3000"), A("  x")]),
    "special": dict(messages=[U("<|im_end|> {{ x }} {% if %} </s> [INST] \\n \\\" '"), A("\u2028 \x7f \u0000 & < > \" '")]),
    "empty": dict(messages=[U(""), A("")]),
    "ends_user": dict(messages=[U("a"), A("b"), U("c")]),
    "think": dict(messages=[U("a"), A("<think>\nhm\n</think>\n\nb"), U("c"), A("<think>\nwell\n</think>\n\nd")]),
    "reasoning": dict(messages=[U("a"), A("b", reasoning_content="because"), U("c"), A("d", reasoning_content="so")]),
    "tools": dict(messages=[U("Weather?")], tools=TOOLS),
    "tools_system": dict(messages=[S("You know weather."), U("Weather?"), A("Where?"), U("Bern")], tools=TOOLS),
    "tool_call": dict(
        messages=[
            U("Weather in Genève?"),
            A("", tool_calls=[call("get_weather", {"city": "Genève", "days": 2, "exact": True, "x": None, "f": 1e-7, "l": [1, 2.0]})]),
            T('{"sky": "clear"}', name="get_weather", tool_call_id="call12345"),
            A("Clear."),
        ],
        tools=TOOLS,
    ),
    "tool_call_none": dict(
        messages=[
            S("Call."),
            U("Add"),
            {"role": "assistant", "content": None, "tool_calls": [call("add", {"a": 1, "b": 2})]},
            T("3", name="add", tool_call_id="call12345"),
            A("It is 3."),
            U("Thanks"),
            A("Welcome."),
        ],
        tools=TOOLS,
    ),
    "tool_calls_two": dict(
        messages=[
            U("Both"),
            A("Calling.", tool_calls=[call("add", {"a": 1, "b": 2}, "aaaaaaaa1"), call("get_weather", {"city": "Bern"}, "bbbbbbbb2")]),
            T("3", name="add", tool_call_id="aaaaaaaa1"),
            T("rain", name="get_weather", tool_call_id="bbbbbbbb2"),
            A("3 and rain."),
        ],
        tools=TOOLS,
    ),
    "tool_call_bare": dict(
        messages=[
            U("Add"),
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
            {"role": "tool", "name": "add", "content": "3"},
            A("3"),
        ],
    ),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "text", "text": "here"}]}, A("Yes")]),
    "parts_all": dict(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Brief."}]},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        ]
    ),
    "no_thinking": dict(messages=[U("a"), A("b"), U("c")], extra={"enable_thinking": False}),
    "thinking": dict(messages=[U("a"), A("b"), U("c")], extra={"enable_thinking": True}),
    "documents": dict(messages=[U("q"), A("a")], documents=[{"title": "T1", "text": "x"}, {"title": "T2", "text": "y"}]),
    "not_alternating": dict(messages=[U("a"), U("b"), A("c"), A("d")]),
    "assistant_first": dict(messages=[A("Welcome"), U("a"), A("b")]),
    "unknown_role": dict(messages=[U("a"), {"role": "critic", "content": "no"}]),
    "nothing": dict(messages=[]),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source, case, prompt, mask=False):
    """The text, and the assistant's spans in bytes where they are asked for."""
    try:
        case = copy.deepcopy(case)  # [1]|indent appends to the list
        texts, spans = chat.render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            documents=case.get("documents"),
            chat_template=source,
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=mask,
            **{**SPECIAL, **case.get("extra", {})},
        )
        text = texts[0]
        text.encode()
        out = {"text": text}
        if mask:
            out["spans"] = [[len(text[:i].encode()) for i in span] for span in spans[0]]
        return out
    except Exception as e:  # noqa: BLE001: any failure is one that the other side must have too
        return {"error": f"{type(e).__name__}: {e}"[:200]}


def pairs(name, source):
    out = []
    for cname, case in CONVERSATIONS.items():
        for prompt in (False, True):
            mask = "generation" in source and not prompt
            out.append({"template": name, "conversation": cname, "prompt": prompt, **render(source, case, prompt, mask)})
    return out


def snippets():
    """Small templates, one a line of snippets.txt, where the signs for a line feed and a carriage return stand for them."""
    out = []
    for line in (HERE / "snippets.txt").read_text().splitlines():
        if line.startswith("## ") or not line:
            continue
        source = line.replace("\u2424", "\n").replace("\u240d", "\r")
        case = {"messages": CONVERSATIONS["turns"]["messages"], "tools": TOOLS, "extra": VARIABLES}
        got = render(source, case, False)
        out.append({"source": source, **got})
    return out


VARIABLES = {
    "s": "Hello, World",
    "u": "Zürich ΑΣ ß 東京 🙂",
    "n": 7,
    "f": 2.5,
    "big": 123456789012345678901234567890,
    "floats": [1e16, 1e15, 1e-5, 1e-4, -0.0, 1.0, 1e300, 0.1],
    "infinite": [float("inf"), float("-inf"), float("nan")],
    "l": [3, 1, 2],
    "d": {"b": 1, "a": {"x": [1, 2.0, None, True]}, "C": "c"},
    "e": "",
    "z": None,
    "t": True,
    "people": [
        {"name": "bob", "age": 30, "tags": ["x"]},
        {"name": "Alice", "age": 25, "tags": []},
        {"name": "carol", "age": 30, "city": {"zip": 1}},
    ],
    "ws": " \t a  b\n c\u00a0d ",
}


def random_expression(rng, depth):
    """An expression of the grammar that may well fail, in both renderers."""
    e = lambda: random_expression(rng, depth - 1)
    if depth <= 0 or rng.random() < 0.1:
        return rng.choice(
            "0 1 -1 2 7 2.5 -0.5 true false none '' 'a' 'Ab c' 'x,y' [] [1,2] (1,'a') {} {'a':1} s u n f big l d e z t people ws missing messages"
            " d.a l[0] s[1:3] people[0] d.items()|list u.split() 'é' '\\n' '12' ' 3.5 '".split(" ")
        )
    filters = (
        "upper lower title capitalize trim length string int first last list join sort unique tojson"
        " default('q') d('q',true) replace('a','b') indent items dictsort map('string') map('upper') select reject select('string')"
        " selectattr('age') map(attribute='name') join('-') tojson(indent=1) tojson(sort_keys=true) int(5) list|tojson"
    ).split(" ")
    methods = (
        "upper() lower() strip() split() split(',') title() capitalize() startswith('a') endswith('a') replace('a','b')"
        " items() keys() values() get('a') get('a',1) lstrip('aA') append(1) pop()"
    ).split(" ")
    tests = (
        "defined undefined none string number integer float mapping iterable sequence boolean true false eq(1) ne(1) in([1,'a'])"
    ).split(" ")
    return rng.choice(
        [
            lambda: f"({e()} {rng.choice('+ - * / // % ~ + - ~'.split())} {e()})",
            lambda: f"({e()} {rng.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'and', 'or'])} {e()})",
            lambda: f"({e()}|{rng.choice(filters)})",
            lambda: f"({e()}|{rng.choice(filters)})",
            lambda: f"{e()}.{rng.choice(methods)}",
            lambda: f"({e()} is {rng.choice(['', 'not '])}{rng.choice(tests)})",
            lambda: f"({e()} if {e()} else {e()})",
            lambda: f"{e()}[{rng.choice(['0', '-1', '1', '9', repr('a'), repr('x'), '1:', ':-1', '::2', '::-1', '-2:', '1:3', 'n', '3:0:-1'])}]",
            lambda: f"[{e()}, {e()}]",
            lambda: f"{{'k': {e()}, {e()}: 1}}",
            lambda: f"({rng.choice(['not ', '-'])}{e()})",
            lambda: f"{e()}.{rng.choice(['a', 'x', 'name', 'items', 'append', '0'])}",
            lambda: f"({rng.choice([repr('%s|%s'), repr('%d')])}|format({e()}))",
            lambda: f"{rng.choice([repr('{}'), repr('{0}{{'), repr('{:d}')])}.format({e()})",
        ]
    )()


def random_snippets(count, seed):
    rng = random.Random(seed)
    out = []
    while len(out) < count:
        source = "{{ " + random_expression(rng, rng.randint(1, 4)) + " }}"
        case = {"messages": CONVERSATIONS["turns"]["messages"], "tools": TOOLS, "extra": VARIABLES}
        got = render(source, case, False)
        if not re.search("object .*at 0x", got.get("text", "")):  # an address
            out.append({"source": source, **got})
    return out


def public(folder):
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".jinja":
            found[name] = path.read_text()
        elif path.name == "tokenizer_config.json":
            source = json.loads(path.read_text()).get("chat_template")
            if isinstance(source, list):
                found.update({f"{name}:{t['name']}": t["template"] for t in source})
            elif source:
                found[name] = source
        elif path.suffix == ".gguf":
            import gguf

            field = gguf.GGUFReader(path).fields.get("tokenizer.chat_template")
            if field:
                found[name] = bytes(field.parts[field.data[0]]).decode()
    return found


def write(path, value):
    rows = ",\n".join(json.dumps(row, ensure_ascii=True) for row in value["cases"])
    rest = {k: v for k, v in value.items() if k != "cases"}
    path.write_text(json.dumps(rest, ensure_ascii=True)[:-1] + (", " if rest else "") + '"cases": [\n' + rows + "\n]}\n")


def main():
    inputs = {"conversations": CONVERSATIONS, "special": SPECIAL}
    if sys.argv[1:2] == ["--public"]:
        templates = public(sys.argv[2])
        cases = [case for name, source in templates.items() for case in pairs(name, source)]
        write(pathlib.Path(sys.argv[3]), {**inputs, "templates": templates, "cases": cases})
        print(f"{len(templates)} templates, {len(cases)} cases")
        return
    settings = {"variables": VARIABLES, "tools": TOOLS, "messages": CONVERSATIONS["turns"]["messages"]}
    if sys.argv[1:2] == ["--random"]:
        small = random_snippets(int(sys.argv[2]), int(sys.argv[3]))
        write(pathlib.Path(sys.argv[4]), {**settings, "cases": small})
        print(f"{len(small)} expressions, {sum('error' in c for c in small)} of them errors")
        return
    templates = {p.name: p.read_text() for p in sorted(HERE.glob("*.jinja"))}
    cases = [case for name, source in templates.items() for case in pairs(name, source)]
    write(HERE / "conversations.json", {**inputs, "cases": cases})
    small = snippets()
    write(HERE / "snippets.json", {**settings, "cases": small})
    print(f"{len(templates)} templates, {len(cases)} cases, {len(small)} snippets")


if __name__ == "__main__":
    main()
