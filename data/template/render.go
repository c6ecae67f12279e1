package template

import (
	"context"
	"time"
)

// Input has the variables of a template. The names of its fields are those of the variables that transformers gives.
type Input struct {
	Messages            []Value // dicts with role, content and so on
	Tools               []Value // JSON schemas of functions; nil is none: tools is None then
	Documents           []Value // nil is none
	AddGenerationPrompt bool
	// BOSToken and EOSToken are texts of special tokens; a variable is undefined if its text is empty, as where the
	// tokenizer has no such token.
	BOSToken, EOSToken string
	// Extra are more variables: other special tokens, enable_thinking and the like. They win over the ones above.
	Extra map[string]Value
	// Now is the clock of strftime_now; nil is time.Now. Give it a fixed time where runs shall be repeatable.
	Now    func() time.Time
	Limits Limits
}

// Span is a part of a text, in bytes from Start to before End.
type Span struct {
	Start, End int
	// Message is the index of the message that the part belongs to, or -1 if that is not known.
	Message int
}

// Output is a conversation as text.
type Output struct {
	Text string
	// Generations are the {% generation %} blocks, in order.
	Generations []Span
	// isHidden says that there were such blocks in macros and captures, whose place in Text is not known.
	isHidden bool
}

// Render runs the template. An error is an *Error; errors.Is finds ErrLimit and the context's error in it.
func (t *Template) Render(ctx context.Context, in Input) (out Output, err error) {
	s := &state{t: t, ctx: ctx, limits: in.Limits.orDefaults(), now: in.Now, messages: in.Messages, scope: &scope{}}
	if s.now == nil {
		s.now = time.Now
	}
	defer s.shareSteps()()
	s.stepsLeft, s.nextCheck, s.allocLeft = s.limits.Steps, s.limits.Steps+1, s.limits.AllocBytes
	s.globals = make([]Value, len(t.names))
	for id, name := range t.names {
		s.globals[id] = in.variable(name)
	}
	defer s.use.End()
	defer func() {
		if failure := recover(); failure != nil {
			out, err = Output{}, s.recovered(failure)
		}
	}()
	s.run(t.body)
	return Output{Text: string(s.out), Generations: s.generations, isHidden: s.isHidden}, nil
}

// variable returns the value that a name has before the template assigns it, or nil.
func (in *Input) variable(name string) Value {
	if v, ok := in.Extra[name]; ok && v != nil {
		return v
	}
	list := func(items []Value) Value {
		if items == nil {
			return None{}
		}
		return &List{items}
	}
	switch name {
	case "messages":
		return &List{in.Messages}
	case "tools":
		return list(in.Tools)
	case "documents":
		return list(in.Documents)
	case "add_generation_prompt":
		return Bool(in.AddGenerationPrompt)
	case "bos_token":
		if in.BOSToken != "" {
			return String(in.BOSToken)
		}
		return nil
	case "eos_token":
		if in.EOSToken != "" {
			return String(in.EOSToken)
		}
		return nil
	}
	return globalFunction(name)
}

// globalFunction is one of Jinja's or transformers' functions, or nil.
func globalFunction(name string) Value {
	var fn func(*state, arguments) Value
	switch name {
	case "range":
		fn = globalRange
	case "dict":
		fn = func(s *state, a arguments) Value { return s.dictOf(name, a) }
	case "namespace":
		fn = func(s *state, a arguments) Value { return &namespace{s.dictOf(name, a)} }
	case "cycler", "joiner", "lipsum":
		fn = func(s *state, _ arguments) Value {
			s.fail("%s", unsupported("function", name))
			return nil
		}
	case "raise_exception":
		fn = func(s *state, a arguments) Value {
			panic(&Error{Msg: s.str(s.bind(name, a, "message!")[0]), IsRaised: true})
		}
	case "strftime_now":
		fn = func(s *state, a arguments) Value {
			format := s.textArg(name, s.bind(name, a, "format!")[0])
			s.alloc(32 * len(format))
			return String(s.strftime(s.now(), format))
		}
	default:
		return nil
	}
	return &builtin{name, fn}
}

func globalRange(s *state, a arguments) Value {
	if len(a.names) > 0 || len(a.pos) == 0 {
		s.fail("range() takes one to three arguments, without names")
	}
	v := s.bind("range", a, "start", "stop", "step")
	from, to, step := 0, s.intArg("range", v[0], 0), s.intArg("range", v[2], 1)
	if v[1] != nil {
		from, to = to, s.intArg("range", v[1], 0)
	}
	n := 0
	switch {
	case step == 0:
		s.fail("range() arg 3 must not be zero")
	case step > 0 && to > from:
		n = (to-from-1)/step + 1
	case step < 0 && to < from:
		n = (from-to-1)/-step + 1
	}
	if n > maxRange {
		s.failLimit("Range too big. The sandbox blocks ranges larger than %d.", maxRange)
	}
	s.alloc(valueBytes * n)
	items := make([]Value, n)
	for i := range items {
		items[i] = Int(from + i*step)
	}
	return &view{"range", items}
}

// dictOf makes a dict of named arguments.
func (s *state) dictOf(name string, a arguments) *Dict {
	if len(a.pos) > 0 {
		s.fail("%s of other than named arguments is not supported", name)
	}
	d := NewDict(len(a.names))
	for i, n := range a.names {
		s.setItem(d, String(n), a.named[i])
	}
	return d
}

// IsGiven reports whether a render gives a variable its value itself: those of the conversation, special tokens, and
// functions.
func IsGiven(variable string) bool {
	switch variable {
	case "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", "unk_token", "sep_token",
		"pad_token", "cls_token", "mask_token", "additional_special_tokens":
		return true
	}
	return globalFunction(variable) != nil
}
