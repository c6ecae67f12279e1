package main

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"strings"
)

// printJSON writes one object for programs. A number that is not finite, as the loss of a run that diverged, is null.
func (p *program) printJSON(v any) error {
	return p.writeJSON(v, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "  ") })
}

// printJSONLine writes one of several objects.
func (p *program) printJSONLine(v any) error { return p.writeJSON(v, json.Marshal) }

func (p *program) writeJSON(v any, marshal func(any) ([]byte, error)) error {
	doc, err := marshal(v)
	var notFinite *json.UnsupportedValueError
	if errors.As(err, &notFinite) {
		doc, err = marshal(withNulls(reflect.ValueOf(v)))
	}
	if err != nil {
		return err
	}
	_, err = p.stdout.Write(append(doc, '\n'))
	return err
}

// withNulls is v as JSON has it, with nil for numbers that JSON lacks. The order of keys is lost.
func withNulls(v reflect.Value) any {
	if own, ok := v.Interface().(json.Marshaler); ok {
		if doc, err := own.MarshalJSON(); err == nil { // it has no such number, or knows what to write for it
			return json.RawMessage(doc)
		}
	}
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return withNulls(v.Elem())
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = withNulls(v.Index(i))
		}
		return list
	case reflect.Struct:
		object := map[string]any{}
		for i := range v.NumField() {
			of := v.Type().Field(i)
			name, options, _ := strings.Cut(of.Tag.Get("json"), ",")
			if of.Anonymous && name == "" { // its fields are the object's
				if embedded, ok := withNulls(v.Field(i)).(map[string]any); ok {
					maps.Copy(object, embedded)
				}
				continue
			}
			if name == "" || name == "-" || options == "omitempty" && v.Field(i).IsZero() {
				continue
			}
			object[name] = withNulls(v.Field(i))
		}
		return object
	}
	return v.Interface()
}
