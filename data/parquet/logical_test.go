package parquet

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
)

// column reads a column of a file, and stops at the first error.
func column(t *testing.T, b []byte, name string, isLabel func(string) bool) (rows []string, err error) {
	t.Helper()
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	end := f.Rows(t.Context(), []string{name}, isLabel, func(object []byte, problem error) bool {
		err = problem
		if problem == nil {
			rows = append(rows, asJSON(t, decode(t, object)))
		}
		return problem == nil
	})
	return rows, errors.Join(err, end)
}

// TestTypes reads a value and a null of each Arrow type (testdata/make_types.py): what is written is what the writer had, or the
// column is refused by name.
func TestTypes(t *testing.T) {
	read := map[string]string{
		"string": `"a"`, "large_string": `"a"`, "string_view": `"a"`, "binary": `"a"`, "large_binary": `"a"`, "dictionary": `"a"`,
		"json": `{"a":[1,"b"]}`, "bool": "true", "int8": "-1", "int16": "-2", "int32": "-3", "int64": "-4", "uint8": "255", "uint16": "65535",
		"uint32": "4294967295", "uint64": "18446744073709551615", "float32": "0.5", "float64": "0.1", "null": "", "list": `["a",null]`,
		"fixed_list": "[1,2]", "struct": `{"a":1}`, "map": `{"a":1,"b":null}`, "map_of_lists": `{"a":["b"],"c":[]}`,
		"map_of_maps": `{"a":{"b":"c"},"d":{}}`, "empty_map": "{}",
	}
	refused := map[string]string{
		"map_of_numbers": "map_of_numbers has maps whose keys are no texts", "map_of_dates": "map_of_dates has dates", "float16": "float16 has numbers of 16 bits",
		"fixed": "fixed has bytes of a fixed length", "decimal32": "decimal32 has decimal numbers", "decimal256": "decimal256 has decimal numbers",
		"date32": "date32 has dates", "date64": "date64 has dates", "time32": "time32 has times of day", "time64": "time64 has times of day",
		"timestamp_s": "timestamp_s has timestamps", "timestamp_us": "timestamp_us has timestamps", "timestamp_ns": "timestamp_ns has timestamps",
		"uuid": "uuid has UUIDs", "list_of_dates": "list_of_dates has dates", "struct_of_dates": "struct_of_dates.day has dates",
	}
	b, err := os.ReadFile("testdata/types.parquet")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range f.Columns() {
		rows, err := column(t, b, name, nil)
		value, isRead := read[name]
		why, isRefused := refused[name]
		delete(read, name)
		delete(refused, name)
		switch {
		case isRead:
			want := `{"` + name + `":` + value + "}"
			if value == "" {
				want = "{}"
			}
			if err != nil || len(rows) != 2 || rows[0] != want || rows[1] != "{}" {
				t.Errorf("%s: %v, %v; want %s", name, rows, err, want)
			}
		case isRefused:
			if err == nil || !strings.Contains(err.Error(), "column "+why) || !strings.Contains(err.Error(), ": write ") {
				t.Errorf("%s: %v, %v; want a refusal: %s", name, rows, err, why)
			}
			if !strings.HasPrefix(name, "map") {
				if rows, err := column(t, b, name, func(string) bool { return true }); err != nil || len(rows) != 2 {
					t.Errorf("%s, as a label: %v, %v", name, rows, err)
				}
			}
		default:
			t.Errorf("no line of this test has %s", name)
		}
	}
	for name := range maps.Keys(read) {
		t.Errorf("there is no column %s", name)
	}
	b, err = os.ReadFile("testdata/types_int96.parquet")
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := column(t, b, "int96", nil); err == nil || !strings.Contains(err.Error(), "column int96 has timestamps") {
		t.Errorf("int96: %v, %v", rows, err)
	}
}

// TestTextsThatLookLikeDates: pyarrow and DuckDB make dates of texts, also in the arguments of a call.
func TestTextsThatLookLikeDates(t *testing.T) {
	for name, kind := range map[string]string{"dates_pyarrow": "timestamps", "dates_duckdb": "dates"} {
		b, err := os.ReadFile("testdata/" + name + ".parquet")
		if err != nil {
			t.Fatal(err)
		}
		const path = "messages.tool_calls.function.arguments.date"
		if rows, err := column(t, b, "messages", nil); err == nil || !strings.Contains(err.Error(), "column "+path+" has "+kind) {
			t.Errorf("%s: %v, %v", name, rows, err)
		}
		rows, err := column(t, b, "messages", func(field string) bool { return field == path })
		if err != nil || len(rows) != 1 || !strings.Contains(rows[0], `"arguments":{"date":null,"seats":2}`) {
			t.Errorf("%s, as a label: %v, %v", name, rows, err)
		}
	}
}

// TestAnnotations: each annotation, in its older form, its newer one and both, on each physical type: a value is read only where
// the table says so.
func TestAnnotations(t *testing.T) {
	value := map[int]string{typeBoolean: "true", typeInt32: "-1", typeInt64: "-1", typeFloat: "0", typeDouble: "0", typeBytes: `"[1]"`}
	unsigned := map[int]string{typeInt32: "4294967295", typeInt64: "18446744073709551615"}
	texts := map[int]string{typeBytes: `"[1]"`}
	reads := func(logical int, unsignedInteger bool) map[int]string {
		switch {
		case logical == 0:
			return value
		case logical == 1 || logical == 4:
			return texts
		case logical == 10 && unsignedInteger:
			return unsigned
		case logical == 10:
			return map[int]string{typeInt32: "-1", typeInt64: "-1"}
		case logical == 12:
			return map[int]string{typeBytes: "[1]"}
		}
		return nil
	}
	older := []int{0: 1, 1: 2, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7, 8: 7, 9: 8, 10: 8, 11: 10, 12: 10, 13: 10, 14: 10, 15: 10, 16: 10, 17: 10, 18: 10, 19: 12,
		20: 13, 21: 99, 22: 99, 1000: 99}
	type form struct {
		fields   thriftFields
		logical  int
		unsigned bool
	}
	forms := []form{{}}
	for number, logical := range older {
		if number < 23 || number == 1000 {
			forms = append(forms, form{thriftFields{6: number}, logical, number >= 11 && number <= 14})
		}
	}
	for logical := 1; logical <= 20; logical++ {
		contents := thriftFields{}
		if logical == 10 {
			contents = thriftFields{1: 32, 2: false}
		}
		forms = append(forms, form{thriftFields{10: thriftFields{logical: contents}}, logical, logical == 10})
		if logical != 10 { // the newer form wins, whichever the older one is
			forms = append(forms, form{thriftFields{6: 0, 10: thriftFields{logical: contents}}, logical, false})
		}
	}
	widths := map[int]int{typeInt32: 4, typeInt64: 8, typeInt96: 12, typeFloat: 4, typeDouble: 8, typeFixed: 4}
	for _, f := range forms {
		for kind := typeBoolean; kind <= typeFixed; kind++ {
			data := bytes.Repeat([]byte{255}, widths[kind])
			switch kind {
			case typeBoolean:
				data = []byte{1}
			case typeBytes:
				data = plainTexts("[1]")
			case typeFloat, typeDouble:
				clear(data)
			}
			body := dataPage(1, len(data), data, nil)
			footer := footerOf(1, thriftFields{4: codecNone, 5: int64(1), 7: int64(len(body)), 9: int64(4)})
			leaf := thriftFields{1: kind, 2: 4, 3: required, 4: "v"}
			maps.Copy(leaf, f.fields)
			footer[2] = thriftItems{thriftFields{4: "root", 5: 1}, leaf}
			rows, err := column(t, fileOf(body, footer), "v", nil)
			if want, ok := reads(f.logical, f.unsigned)[kind]; ok {
				if err != nil || len(rows) != 1 || rows[0] != `{"v":`+want+"}" {
					t.Errorf("%v of physical type %d: %v, %v; want %s", f.fields, kind, rows, err, want)
				}
			} else if err == nil || !strings.Contains(err.Error(), "column v has ") {
				t.Errorf("%v of physical type %d: %v, %v; want a refusal", f.fields, kind, rows, err)
			}
		}
	}
}

// TestBrokenJSON: a text that is annotated as JSON and is not JSON spoils its row alone.
func TestBrokenJSON(t *testing.T) {
	for _, text := range []string{"", " ", "{", `{"a":1}}`, `{"a":1},"x":{}`, "nul", `"a`, "NaN", "'a'", strings.Repeat("[", 100_000)} {
		texts := plainTexts(`{"a":1}`, text, "[2]")
		page := dataPage(3, len(texts), texts, nil)
		footer := footerOf(3, thriftFields{4: codecNone, 5: int64(3), 7: int64(len(page)), 9: int64(4)})
		footer[2] = thriftItems{thriftFields{4: "root", 5: 1}, thriftFields{1: typeBytes, 3: required, 4: "v", 10: thriftFields{12: thriftFields{}}}}
		b := fileOf(page, footer)
		f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
		if err != nil {
			t.Fatal(err)
		}
		var rows []string
		if err := f.Rows(t.Context(), []string{"v"}, nil, func(object []byte, err error) bool {
			if err != nil {
				object = []byte(`"` + err.Error() + `"`)
			}
			rows = append(rows, asJSON(t, decode(t, object)))
			return true
		}); err != nil {
			t.Fatalf("%.20q: %v", text, err)
		}
		want := []string{`{"v":{"a":1}}`, `"column v is annotated as JSON, and holds a text that is not JSON"`, `{"v":[2]}`}
		if strings.Join(rows, "\n") != strings.Join(want, "\n") {
			t.Errorf("%.20q: %s", text, rows)
		}
	}
}
