package data

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/data/template"
)

// checkObject refuses a key of an object in which all keys are known.
func (s Source) checkObject(at place, d *template.Dict) error {
	for k, key := range d.Keys() {
		name := string(key.(template.String))
		if isEmpty(d.At(k)) || s.ignores(name) {
			continue
		}
		rule := ruleOf(at, name)
		switch {
		case rule == nil:
			return fmt.Errorf("%s is unknown in a %s: remove it, or list it under ignore in the entry", shown(name), at)
		case rule.does == refuses:
			return fmt.Errorf("%s is not read in a %s: %s", shown(name), at, rule.remedy)
		}
	}
	return nil
}

// callsOf reads tool_calls, or the text of calls in type sharegpt: a list of calls, or one, each
// {"type": "function", "function": {"name": ..., "arguments": {...}}} or the function alone.
func (s Source) callsOf(v template.Value) ([]template.Value, error) {
	const want = `write {"name": ..., "arguments": {...}} or a list of these`
	v, err := decoded(v)
	if err != nil {
		return nil, fmt.Errorf("it %w; %s", err, want)
	}
	if d, ok := v.(*template.Dict); ok && transposed(d) == nil {
		v = template.NewList(d)
	}
	items, err := listOf(v)
	if err != nil {
		return nil, fmt.Errorf("it %w; %s", err, want)
	}
	var calls []template.Value
	for i, item := range items {
		call, err := s.callOf(item)
		if err != nil {
			return nil, fmt.Errorf("call %d: %w", i, err)
		}
		calls = append(calls, call)
	}
	return calls, nil
}

// callOf reads a call. Arguments become an object: templates print them as JSON, and would quote a text a second time.
func (s Source) callOf(v template.Value) (*template.Dict, error) {
	call, err := objectOf(v)
	if err != nil {
		return nil, fmt.Errorf("it %w", err)
	}
	if call == nil {
		return nil, fmt.Errorf("it is %s", kindOf(v))
	}
	inner, _ := call.Get("function")
	function, err := objectOf(inner)
	if err != nil {
		return nil, fmt.Errorf(`"function" %w`, err)
	}
	if function == nil { // some write the function without its wrapping
		if function, call, err = s.wrapCall(call); err != nil {
			return nil, err
		}
	}
	if kind, ok := call.Get("type"); ok && !isEmpty(kind) && kind != template.Value(template.String("function")) {
		return nil, fmt.Errorf(`"type" is %s: only calls of type function are read`, brief(kind))
	}
	if err := s.checkObject(inCall, call); err != nil {
		return nil, err
	}
	if err := s.checkObject(inFunction, function); err != nil {
		return nil, err
	}
	if name, err := textOf(function, "name"); err != nil {
		return nil, fmt.Errorf("the function: %w", err)
	} else if blank(name) {
		return nil, errors.New(`the function: "name" is empty`)
	}
	given, _ := function.Get("arguments")
	arguments, err := objectOf(given)
	if err != nil {
		return nil, fmt.Errorf(`"arguments" %w`, err)
	}
	if arguments == nil {
		arguments = template.NewDict(0)
	}
	function.Set("arguments", arguments)
	call.Set("function", function)
	return call, nil
}

// wrapCall parts a call that is written as its function alone.
func (s Source) wrapCall(bare *template.Dict) (function, call *template.Dict, err error) {
	function, call = template.NewDict(2), template.NewDict(3)
	for k, key := range bare.Keys() {
		name, value := string(key.(template.String)), bare.At(k)
		switch rule := ruleOf(inCall, name); {
		case name == "function" || name == "type" && isEmpty(value):
		case rule != nil:
			call.Set(name, value)
		default:
			function.Set(name, value)
		}
	}
	if _, ok := call.Get("type"); !ok {
		call.Set("type", template.String("function"))
	}
	return function, call, nil
}

// tools reads a list of tools. The name DropTools has no tools.
func (f *fields) tools(s Source) []template.Value {
	if s.Tools == DropTools {
		return nil
	}
	v, ok := f.value(s.Tools)
	if !ok {
		return nil
	}
	items, err := listOf(v)
	if err != nil {
		f.fail("field %q is not a list of tools: it %w", s.Tools, err)
		return nil
	}
	var all []template.Value
	for i, item := range items {
		tool, err := s.toolOf(item)
		if err != nil {
			f.fail("field %q: tool %d: %w", s.Tools, i, err)
			return nil
		}
		all = append(all, tool)
	}
	return all
}

// toolOf reads a tool. A bare function is put into {"type": "function"}.
func (s Source) toolOf(v template.Value) (*template.Dict, error) {
	tool, err := objectOf(v)
	if err != nil {
		return nil, fmt.Errorf("it %w", err)
	}
	if tool == nil {
		return nil, fmt.Errorf("it is %s", kindOf(v))
	}
	inner, _ := tool.Get("function")
	function, err := objectOf(inner)
	if err != nil {
		return nil, fmt.Errorf(`"function" %w`, err)
	}
	isWrapped := function != nil
	if !isWrapped {
		function = tool
	}
	if function, err = s.toolFunction(function, !isWrapped); err != nil {
		return nil, err
	}
	if !isWrapped {
		tool = template.NewDict(2)
		tool.Set("type", template.String("function"))
	}
	tool.Set("function", function)
	return tool, nil
}

// toolFunction is the function of a tool, with its schema as objects. Keys that are not known go to the template, as
// schemas have many.
func (s Source) toolFunction(from *template.Dict, isBare bool) (*template.Dict, error) {
	function := template.NewDict(from.Len())
	for k, key := range from.Keys() {
		name, value := string(key.(template.String)), from.At(k)
		rule := ruleOf(inTool, name)
		switch {
		case isBare && (name == "type" || name == "function") || s.ignores(name):
			continue
		case rule != nil && rule.does == refuses && !isEmpty(value):
			return nil, fmt.Errorf("%s is not read in a tool: %s", shown(name), rule.remedy)
		case name == "parameters":
			schema, err := schemaOf(value)
			if err != nil {
				return nil, err
			}
			if schema == nil {
				continue
			}
			value = schema
		}
		function.Set(name, value)
	}
	if name, err := textOf(function, "name"); err != nil {
		return nil, fmt.Errorf("the function: %w", err)
	} else if blank(name) {
		return nil, errors.New(`the function: "name" is empty`)
	}
	return function, nil
}

// schemaOf reads the parameters of a tool, nil if it has none. Their properties may be in a text, too.
func schemaOf(v template.Value) (*template.Dict, error) {
	schema, err := objectOf(v)
	if err != nil {
		return nil, fmt.Errorf(`"parameters" %w`, err)
	}
	if schema == nil {
		return nil, nil
	}
	kind, _ := schema.Get("type")
	if properties, ok := schema.Get("properties"); ok && kind == template.Value(template.String("object")) {
		d, err := objectOf(properties)
		if err != nil {
			return nil, fmt.Errorf(`"properties" of "parameters" %w`, err)
		}
		if d == nil {
			d = template.NewDict(0)
		}
		schema.Set("properties", d)
	}
	return schema, nil
}
