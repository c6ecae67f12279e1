package parquet

import (
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOldLists: lists as writers made them before there was a rule, with the item itself repeated.
func TestOldLists(t *testing.T) {
	page := []byte{2, 0, 0, 0, 3, 0b00010} // repetition levels 0 1 0 0 0
	page = append(page, 3, 0, 0, 0, 3, 2|2<<2|0<<4|1<<6, 2)
	for _, v := range []uint32{7, 8, 9} {
		page = binary.LittleEndian.AppendUint32(page, v)
	}
	body := dataPage(5, len(page), page, nil)
	footer := footerOf(4, thriftFields{4: codecNone, 5: int64(5), 7: int64(len(body)), 9: int64(4)})
	for name, group := range map[string]thriftFields{
		"annotated": {3: optional, 4: "list_of_numbers", 5: 1, 6: 3}, "logical": {3: optional, 4: "list_of_numbers", 5: 1, 10: thriftFields{3: thriftFields{}}}} {
		t.Run(name, func(t *testing.T) {
			footer[2] = thriftItems{thriftFields{4: "root", 5: 1}, group, thriftFields{1: typeInt32, 3: repeated, 4: "array"}}
			want := []any{`{"list_of_numbers":[7,8]}`, `{}`, `{"list_of_numbers":[]}`, `{"list_of_numbers":[9]}`}
			var got []any
			for _, v := range readAll(t, fileOf(body, footer), nil) {
				got = append(got, asJSON(t, v))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLongHeader: a page's header may be longer than what is read at first, as statistics have whole values.
func TestLongHeader(t *testing.T) {
	texts := plainTexts("one", "two")
	for _, size := range []int{100, 1 << 16, 300_000} {
		statistics := thriftFields{5: strings.Repeat("x", size), 6: ""}
		page := dataPage(2, len(texts), texts, thriftFields{5: thriftFields{1: 2, 2: encodingPlain, 3: encodingRuns, 4: encodingRuns, 5: statistics}})
		rows := readAll(t, textFile(codecNone, 4, 4, page, page), nil)
		if len(rows) != 4 || asJSON(t, rows[3]) != `{"text":"two"}` {
			t.Errorf("%d bytes of statistics: %v", size, rows)
		}
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
