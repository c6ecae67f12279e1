package data

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/data/tokenizer"
)

// Templates that write a part of what calls say. NAME and so on stand for what each writes of a call.
const callsTemplate = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}" +
	"{% if m.tool_calls %}{% for c in m.tool_calls %}CALL{% endfor %}{% endif %}<|end|>\n{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"

// allOfCall is a template that writes calls whole.
var allOfCall = writesCall(`[CALL {{ c.function.name }} {{ c.function.arguments | tojson }}]`)

func writesCall(call string) string { return strings.Replace(callsTemplate, "CALL", call, 1) }

// madeCall is a call of a tool as JSON.
func madeCall(name, arguments string) string {
	return fmt.Sprintf(`{"id": "1", "type": "function", "function": {"name": %q, "arguments": %s}}`, name, arguments)
}

// TestEveryTextIsWrittenAtItsPlace: that a text stands somewhere proves nothing. Each call, name and argument, and each
// message is written in its turn, once, or the row is an error that names it.
func TestEveryTextIsWrittenAtItsPlace(t *testing.T) {
	oslo, rome := madeCall("w", `{"city": "Oslo"}`), madeCall("w", `{"city": "Rome"}`)
	calls := func(calls ...string) string {
		return `{"role": "user", "content": "weather w in Oslo and Rome, 7 true"}, {"role": "assistant", "content": "", "tool_calls": [` +
			strings.Join(calls, ", ") + `]}`
	}
	results := `, {"role": "tool", "content": "rain"}, {"role": "tool", "content": "sun"}, {"role": "assistant", "content": "Rain, sun."}`
	const say = "{% for m in messages %}<|{{ m.role }}|>%s<|end|>\n{% endfor %}{{ '<|assistant|>' if add_generation_prompt }}"
	says := func(how string) string { return strings.Replace(say, "%s", how, 1) }
	const hi = `{"role": "user", "content": "user"}, {"role": "assistant", "content": "user"}, {"role": "user", "content": "assistant"}, {"role": "assistant", "content": "end"}`
	firstCall := strings.Replace(callsTemplate, "{% for c in m.tool_calls %}CALL{% endfor %}", "{% set c = m.tool_calls[0] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}", 1)
	cutsCall := strings.Replace(allOfCall, "tojson", "tojson | replace('<|end|>', '')", 1)
	lines := madeCall("w", `{"a": "<b>\n\tx\n</b>", "l": ["user\n<|end|>", true]}`)
	for name, c := range map[string]struct{ template, messages, want string }{
		"one call":                      {allOfCall, calls(oslo), ""},
		"two calls":                     {allOfCall, calls(oslo, rome) + results, ""},
		"two equal calls":               {allOfCall, calls(oslo, oslo) + results, ""},
		"first of two":                  {firstCall, calls(oslo, rome) + results, "leaves out call 2 of 2 in message 1 (w): it writes one call of a message"},
		"first of two, last":            {firstCall, calls(oslo, rome), "leaves out call 2 of 2 in message 1"},
		"first of two equal":            {firstCall, calls(oslo, oslo), "leaves out call 2 of 2 in message 1"},
		"first of one":                  {firstCall, calls(oslo), ""},
		"last of two":                   {strings.Replace(firstCall, "[0]", "[-1]", 1), calls(oslo, rome), "leaves out the call of w in message 1"},
		"names alone":                   {writesCall("{{ c.function.name }}"), calls(oslo), "leaves out the argument city of the call of w in message 1"},
		"names, no arguments":           {writesCall("{{ c.function.name }}"), calls(madeCall("w", "{}")), ""},
		"no numbers":                    {writesCall("{{ c.function.name }}"), calls(madeCall("w", `{"n": 7}`)), "leaves out the argument n"},
		"numbers":                       {allOfCall, calls(madeCall("w", `{"n": 7, "nn": -1.5, "t": true, "z": null, "l": [1, [2, "x"]], "d": {"e": 3}}`)), ""},
		"numbers of Python":             {writesCall("{{ c.function.name }}{{ c.function.arguments }}"), calls(madeCall("w", `{"t": true, "z": null, "s": "it's \"x\"\n"}`)), ""},
		"texts alone":                   {writesCall("{{ c.function.name }}{% for k, v in c.function.arguments.items() if v is string %} {{ k }}={{ v }}{% endfor %}"), calls(madeCall("w", `{"city": "x", "n": 7}`)), "leaves out the argument n"},
		"values without keys":           {writesCall("{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ v }}{% endfor %}"), calls(oslo), "leaves out the argument city"},
		"keys without values":           {writesCall("{{ c.function.name }}{% for k, v in c.function.arguments.items() %} {{ k }}{% endfor %}"), calls(oslo), "leaves out the argument city"},
		"first argument":                {writesCall("{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k ~ v if loop.first }}{% endfor %}"), calls(madeCall("w", `{"a": "x", "b": "x"}`)), "leaves out the argument b"},
		"sorted":                        {writesCall("{{ c.function.name }}{% for k, v in c.function.arguments | dictsort %}{{ k }}={{ v }};{% endfor %}"), calls(madeCall("w", `{"start_date": 2, "start": 1, "a": "x"}`)), ""},
		"lines around tags":             {allOfCall, calls(lines), ""},
		"lines around tags, in Python":  {strings.Replace(allOfCall, " | tojson", "", 1), calls(lines), ""},
		"lines around tags, cut":        {cutsCall, calls(lines), "leaves out the argument l"},
		"name twice":                    {writesCall("<{{ c.function.name }}>{{ c.function.arguments | tojson }}</{{ c.function.name }}>"), calls(oslo), ""},
		"call twice":                    {writesCall("{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.function.arguments | tojson }}"), calls(oslo), "writes call 0 of message 1 twice"},
		"text in the header":            {says("{{ m.content }}"), hi, ""},
		"questions without text":        {says("{{ m.content if m.role == 'assistant' }}"), hi, "leaves out what message 0 says (role user)"},
		"answer from the header":        {says("{{ m.content if m.role == 'user' }}"), hi, ""},
		"twice":                         {says("{{ m.content }} {{ m.content }}"), hi, "writes what message 1 says (role assistant) twice"},
		"question twice":                {says("{{ m.content }}{{ m.content if m.role == 'user' }}"), hi, ""},
		"cut":                           {says("{{ m.content[:3] }}"), hi, "looks at what the texts say, or writes a part of one"},
		"capitals":                      {says("{{ m.content | upper }}"), hi, "leaves out what message 0 says"},
		"question in the answer":        {says("{{ m.content }}{% if m.role == 'assistant' %} to {{ messages[0].content }}{% endif %}"), hi, "writes what message 0 says (role user) inside of what the assistant says"},
		"white space":                   {says("{{ m.content | trim | replace('\\n\\n', '\\n') }}"), `{"role": "user", "content": " a\n\n\n\nb "}, {"role": "assistant", "content": "\n\nc\n\nd\n\n"}`, ""},
		"JSON":                          {says("{{ m.content | tojson if m.role == 'user' else m.content }}"), `{"role": "user", "content": "\"a\"\n<b> é"}, {"role": "assistant", "content": "c"}`, ""},
		"JSON of JSON":                  {says("{{ m.content | tojson | tojson if m.role == 'user' else m.content }}"), `{"role": "user", "content": "\"a\"\n<b> é"}, {"role": "assistant", "content": "c"}`, ""},
		"looks at texts":                {says("{{ m.content }}{{ '!' if m.content == 'user' }}"), hi, "looks at what the texts say"},
		"looks at the front":            {says("{{ m.content }}{{ '!' if m.content.startswith('<tool_response>') }}"), `{"role": "user", "content": "<tool_response>x</tool_response>"}, {"role": "assistant", "content": "c"}`, ""},
		"private characters":            {says("{{ m.content }}"), `{"role": "user", "content": "\udbc0\udc00\udbff\udcd1"}, {"role": "assistant", "content": "c"}`, ""},
		"tags alone":                    {says("{{ m.content }}"), `{"role": "user", "content": "<b>"}, {"role": "assistant", "content": "<answer></answer>"}`, ""},
		"tags alone, left out":          {says("{{ m.content | replace('<b>', '') }}"), `{"role": "user", "content": "<b>"}, {"role": "assistant", "content": "c"}`, "leaves out what message 0 says"},
		"tags at the ends, left out":    {says("{{ m.content | replace('<b>', '') }}"), `{"role": "user", "content": "<b>x"}, {"role": "assistant", "content": "c"}`, "leaves out what message 0 says"},
		"tags in the middle, left out":  {says("{{ m.content | replace('<b>', '') }}"), `{"role": "user", "content": "y<b>x"}, {"role": "assistant", "content": "c"}`, "leaves out what message 0 says"},
		"thoughts elsewhere":            {says("{{ m.content.split('</think>')[-1] }}{% if '</think>' in m.content %}({{ m.content.split('</think>')[0].split('<think>')[-1] }}){% endif %}"), `{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>so</think>c"}`, ""},
		"thoughts equal to the answer":  {says("{{ m.content.split('</think>')[-1] }}"), `{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>c</think>c"}`, "leaves out what message 1 says"},
		"thoughts equal to another one": {says("{% if m.thinking and loop.index0 > 1 and messages[loop.index0 - 2].thinking %}({{ m.thinking }}){% endif %}{{ m.content }}"), `{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "so"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "so"}`, `leaves out "thinking" of message 1`},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "a.jsonl", `{"messages": [`+c.messages+`]}`)
			_, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, c.template)})
			switch {
			case name == "answer from the header":
				if err == nil {
					t.Error("no error")
				}
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), "the chat template "+c.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestToolsAreWritten: a tool has to be declared, and its name in a call is no declaration.
func TestToolsAreWritten(t *testing.T) {
	const tools = `"tools": [{"type": "function", "function": {"name": "fetch", "description": "gets a page"}}]`
	row := `{"messages": [{"role": "user", "content": "fetch gets a page"}, {"role": "assistant", "content": "", "tool_calls": [` + madeCall("fetch", "{}") + `]}], ` + tools + `}`
	for how, want := range map[string]string{
		"":                                   "leaves out tool 0 (fetch): it knows no tools",
		"{{ tools | tojson }}":               "",
		"{{ tools[0].function.name }}":       "leaves out tool 0 (fetch)",
		"{{ tools[0].function.description}}": "leaves out tool 0 (fetch)",
		"{% for t in tools %}{{ t.function.name }}: # {{ t.function.description | replace(' ', '-') }}{% endfor %}": "",
	} {
		path := write(t, t.TempDir(), "a.jsonl", row)
		_, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, how+allOfCall)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", how, err, want)
		}
	}
}

// TestRandomTextsAreWritten: whatever texts say, a template that writes all of them is taken, and one that leaves out
// one text of one message is not.
func TestRandomTextsAreWritten(t *testing.T) {
	const base = "{% for m in messages %}<|{{ m.role }}|>{{ m.content if loop.index0 != SKIP else '' }}" +
		"{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}<|end|>{% endfor %}" +
		"{{ '<|assistant|>' if add_generation_prompt }}"
	piece := rapid.SampledFrom([]string{"user", "assistant", "a", "end", "<|end|>", "<think>", "</think>", "w", "x y", "\n", "\"", "'", "\\", "é", "\U00100000", "{", "1", "<", ">", "[A]", "true", "city"})
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		text := func(name string) string {
			return strings.Join(rapid.SliceOfN(piece, 0, 5).Draw(rt, name), "")
		}
		n := rapid.IntRange(1, 3).Draw(rt, "turns")
		var all []string
		var said []string
		mayMiss := []int{-1} // messages; a text next to a call may be left out of past turns
		for i := range n {
			q, a := "q"+text(fmt.Sprint("question", i)), "r"+text(fmt.Sprint("answer", i))
			said = append(said, q, a)
			call, hasCall := "", rapid.Bool().Draw(rt, "call")
			// Texts before </think> are thoughts, which past turns may be without.
			if !hasCall && !strings.Contains(a, "</think>") {
				mayMiss = append(mayMiss, 2*i+1)
			}
			mayMiss = append(mayMiss, 2*i)
			if hasCall {
				call = `, "tool_calls": [` + madeCall("w", fmt.Sprintf(`{"city": %s, "n": %d, "l": [%s, true]}`, asText(text("argument")), i, asText(text("item")))) + `]`
			}
			all = append(all, `{"role": "user", "content": `+asText(q)+`}`, `{"role": "assistant", "content": `+asText(a)+call+`}`)
		}
		skip := rapid.SampledFrom(mayMiss).Draw(rt, "skip")
		path := write(t, dir, "a.jsonl", `{"messages": [`+strings.Join(all, ", ")+`]}`)
		_, err := prepare(t, Source{Type: Messages, Path: path}, Options{Renderer: chatOf(t, strings.Replace(base, "SKIP", fmt.Sprint(skip), 1)), Tokenizer: tokenizer.Bytes()})
		if (err == nil) != (skip < 0) {
			rt.Fatalf("%q, without %d: %v", said, skip, err)
		}
	})
}

// asText is a text as JSON.
func asText(text string) string {
	doc, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(doc)
}
