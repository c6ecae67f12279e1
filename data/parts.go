package data

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
)

// said holds the content of a message. Parts of a kind are joined with nothing between them.
type said struct {
	text      string
	isMissing bool // there is no content, or null
	// thoughts and calls may be parts of the content in LLaMA-Factory's v1 format.
	thoughts string
	calls    []template.Value
}

// mediaParts begin the types of parts that are no text, as OpenAI, transformers and LLaMA-Factory call them: image,
// image_url, input_image, video_url and so on.
var mediaParts = []string{"image", "video", "audio", "file"}

// onlyText says why rows with media are refused.
const onlyText = "only text can be trained on, also with models that see or hear"

// contentOf reads a message's content, a text or a list of parts. A part is {"type": "text", "text": ...}, or in
// LLaMA-Factory's v1 format {"type": ..., "value": ...}, with the types text, reasoning and tool_call.
func (s Source) contentOf(m *template.Dict, key string) (said, error) {
	content, _ := m.Get(key)
	if isAbsent(content) {
		return said{isMissing: true}, nil
	}
	switch content := content.(type) {
	case template.String:
		return said{text: string(content)}, nil
	case *template.List:
		var all said
		what := "the content"
		if key != "content" {
			what = fmt.Sprintf("%q", key)
		}
		for _, item := range content.Items() {
			part, ok := item.(*template.Dict)
			if !ok {
				return said{}, fmt.Errorf("a part of %s is not an object: it is %s", what, kindOf(item))
			}
			if err := s.addPart(&all, part); err != nil {
				return said{}, fmt.Errorf("a part of %s: %w", what, err)
			}
		}
		return all, nil
	}
	return said{}, fmt.Errorf("%q is %s, neither a text nor a list of parts", key, kindOf(content))
}

// addPart adds a part to what is said.
func (s Source) addPart(all *said, part *template.Dict) error {
	kind, err := textOf(part, "type")
	if err != nil {
		return err
	}
	isMedia := func(name string) bool { return strings.HasPrefix(strings.TrimPrefix(kind, "input_"), name) }
	if slices.ContainsFunc(mediaParts, isMedia) {
		return fmt.Errorf("its type is %.100q: %s", kind, onlyText)
	}
	key := "value"
	switch kind {
	case "text":
		text, _ := part.Get("text")
		value, _ := part.Get("value")
		if !isAbsent(text) && !isAbsent(value) && text != value {
			return errors.New(`it has "text" and "value", which differ`)
		}
		if !isAbsent(text) || isAbsent(value) {
			key = "text"
		}
	case "reasoning", "tool_call":
		if text, _ := part.Get("text"); !isEmpty(text) {
			return fmt.Errorf(`its type is %s, and it has "text": write "value"`, kind)
		}
	default:
		return fmt.Errorf("its type is %.100q: known are text, and reasoning and tool_call of LLaMA-Factory's v1 format", kind)
	}
	if kind == "tool_call" {
		value, ok := part.Get(key)
		if !ok {
			_, err := textOf(part, key) // which says what is there
			return err
		}
		calls, err := s.callsOf(value)
		if err != nil {
			return fmt.Errorf("the function call: %w", err)
		}
		if len(calls) == 0 {
			return errors.New(`a tool_call has an empty "value"`)
		}
		all.calls = append(all.calls, calls...)
		return s.checkPart(part)
	}
	text, err := textOf(part, key)
	if err != nil {
		return err
	}
	if kind == "text" {
		all.text += text
	} else {
		all.thoughts += text
	}
	return s.checkPart(part)
}

// checkPart refuses the keys of a part that are not read.
func (s Source) checkPart(part *template.Dict) error {
	for k, key := range part.Keys() {
		name, value := string(key.(template.String)), part.At(k)
		if rule := ruleOf(inPart, name); rule != nil && rule.does == marks && !isEmpty(value) && !s.ignores(name) {
			if counts, ok := isCounted(value); !ok || !counts {
				return fmt.Errorf("it has %s: %s", shown(name), rule.remedy)
			}
		}
	}
	return s.checkObject(inPart, part)
}
