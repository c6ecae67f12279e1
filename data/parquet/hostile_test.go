package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// thriftFields are a structure's fields by id: int is an i32, int64 an i64, and so on.
type thriftFields map[int]any

type thriftItems []any

func appendThrift(b []byte, v any) (out []byte, kind byte) {
	switch v := v.(type) {
	case bool:
		if v {
			return b, thriftTrue
		}
		return b, thriftFalse
	case int:
		return binary.AppendVarint(b, int64(v)), 5
	case int64:
		return binary.AppendVarint(b, v), 6
	case string:
		return append(binary.AppendUvarint(b, uint64(len(v))), v...), thriftBinary
	case thriftItems:
		at := len(b)
		b = append(b, 0xF0)
		b = binary.AppendUvarint(b, uint64(len(v)))
		for _, item := range v {
			var kind byte
			b, kind = appendThrift(b, item)
			b[at] = 0xF0 | kind
		}
		return b, thriftList
	case thriftFields:
		ids := make([]int, 0, len(v))
		for id := range v {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		last := 0
		for _, id := range ids {
			at := len(b)
			b = append(b, 0)
			delta := byte(id - last)
			if delta > 15 {
				b, delta = binary.AppendVarint(b, int64(id)), 0
			}
			var kind byte
			b, kind = appendThrift(b, v[id])
			b[at] = delta<<4 | kind
			last = id
		}
		return append(b, 0), thriftStruct
	}
	panic(v)
}

// fileOf is a Parquet file of pages, and a footer.
func fileOf(pages []byte, footer thriftFields) []byte {
	b := append([]byte("PAR1"), pages...)
	f, _ := appendThrift(nil, footer)
	b = append(b, f...)
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(f))), "PAR1"...)
}

// textFile has one required column "text" with the given pages, of one row group.
func textFile(codec, rows, values int, pages ...[]byte) []byte {
	body := slices.Concat(pages...)
	return fileOf(body, footerOf(rows, thriftFields{4: codec, 5: int64(values), 7: int64(len(body)), 9: int64(4)}))
}

func footerOf(rows int, chunk thriftFields) thriftFields {
	return thriftFields{
		1: 1, 2: thriftItems{thriftFields{4: "root", 5: 1}, thriftFields{1: typeBytes, 3: required, 4: "text"}}, 3: int64(rows),
		4: thriftItems{thriftFields{1: thriftItems{thriftFields{3: chunk}}, 3: int64(rows)}},
	}
}

// dataPage is a page of version 1; more fields replace those of its header.
func dataPage(values, unpacked int, data []byte, more thriftFields) []byte {
	header := thriftFields{1: pageData, 2: unpacked, 3: len(data), 5: thriftFields{1: values, 2: encodingPlain, 3: encodingRuns, 4: encodingRuns}}
	for id, v := range more {
		header[id] = v
	}
	b, _ := appendThrift(nil, header)
	return append(b, data...)
}

func plainTexts(texts ...string) (b []byte) {
	for _, s := range texts {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
	}
	return b
}

// zip packs zeros.
func zip(t *testing.T, n int) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(make([]byte, n))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstdOf(t *testing.T, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func brotliOf(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	w := brotli.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// brotliFile has a page of two texts that is said to unpack to a size.
func brotliFile(size int, packed []byte) []byte {
	return textFile(codecBrotli, 2, 2, dataPage(2, size, packed, nil))
}

// deltasOf is DELTA_BINARY_PACKED: a first value, and another one n-1 times.
func deltasOf(first, then, n int) []byte {
	b := []byte{128, 1, 1} // blocks of 128 values, in one miniblock
	b = binary.AppendVarint(binary.AppendUvarint(b, uint64(n)), int64(first))
	for at := 1; at < n; at += 128 {
		jump := 0
		if at == 1 {
			jump = then - first
		}
		least := min(jump, 0)
		b = binary.AppendVarint(b, int64(least))
		if jump == 0 {
			b = append(b, 0)
			continue
		}
		b = append(b, 32)
		for i := range 128 {
			if i > 0 {
				jump = 0
			}
			b = binary.LittleEndian.AppendUint32(b, uint32(jump-least))
		}
	}
	return b
}

// TestHostile: files that say what is not so are refused in a line that says what, for little memory.
func TestHostile(t *testing.T) {
	texts := plainTexts("one", "two")
	dictionary := func(values, unpacked int, data []byte) []byte {
		b, _ := appendThrift(nil, thriftFields{1: pageDictionary, 2: unpacked, 3: len(data), 7: thriftFields{1: values, 2: encodingPlain}})
		return append(b, data...)
	}
	indices := func(b ...byte) []byte {
		return dataPage(2, len(b), b, thriftFields{5: thriftFields{1: 2, 2: encodingDictionary, 3: encodingRuns, 4: encodingRuns}})
	}
	nested := thriftItems{}
	for range 100 {
		nested = append(nested, thriftFields{3: optional, 4: "a", 5: 1})
	}
	encoded := func(encoding int, data []byte) []byte {
		return textFile(codecNone, 2, 2, dataPage(2, len(data), data, thriftFields{5: thriftFields{1: 2, 2: encoding, 3: encodingRuns, 4: encodingRuns}}))
	}
	const many = 1 << 20
	manyOf := func(encoding int, data []byte) []byte {
		return dataPage(many, len(data), data, thriftFields{5: thriftFields{1: many, 2: encoding, 3: encodingRuns, 4: encodingRuns}})
	}
	long := strings.Repeat("x", 1000)
	equal := manyOf(encodingDictionary, binary.AppendUvarint([]byte{0}, 2*many))
	prefixes := manyOf(encodingDeltaStrings, slices.Concat(deltasOf(0, len(long), many), deltasOf(len(long), 0, many), []byte(long)))
	deepNames := thriftItems{thriftFields{4: "root", 5: 1}, thriftFields{3: optional, 4: strings.Repeat(long, 1000), 5: 100}}
	for range 100 {
		deepNames = append(deepNames, thriftFields{1: typeInt32, 3: optional, 4: "a"})
	}
	const tooMuch = "its rows come to more than 67108864 bytes"
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"good":               {textFile(codecNone, 2, 2, dataPage(2, len(texts), texts, nil)), ""},
		"good dictionary":    {textFile(codecNone, 2, 2, dictionary(2, len(texts), texts), indices(1, 3, 2)), ""},
		"empty":              {nil, "too short for a Parquet file"},
		"other":              {[]byte("this is some other file"), "not a Parquet file, or it is cut off"},
		"encrypted":          {[]byte("PARE\x00\x00\x00\x00PARE"), "it is encrypted"},
		"footer length":      {[]byte("PAR1\x00\x00\x00\xf0PAR1"), "footer is said to have 4026531840 bytes, and the file has 12"},
		"no schema":          {fileOf(nil, thriftFields{1: 1}), "there is no schema"},
		"footer ends":        {[]byte("PAR1\x15\x01\x00\x00\x00PAR1"), "the data end too early"},
		"deep schema":        {fileOf(nil, thriftFields{2: append(thriftItems{thriftFields{4: "root", 5: 1}}, nested...)}), "nested deeper than 64"},
		"schema's children":  {fileOf(nil, thriftFields{2: thriftItems{thriftFields{4: "root", 5: math.MaxInt32}}}), "the schema ends too early"},
		"too few children":   {fileOf(nil, thriftFields{2: thriftItems{thriftFields{4: "root", 5: 1}, thriftFields{1: 1, 4: "a"}, thriftFields{1: 1, 4: "b"}}}), "belong to no column"},
		"column outside":     {fileOf(nil, footerOf(1, thriftFields{5: int64(1), 7: int64(1 << 40), 9: int64(4)})), `column "text" is said to be at bytes 4 to 1099511627780`},
		"column overflows":   {fileOf(nil, footerOf(1, thriftFields{5: int64(1), 7: int64(math.MaxInt64), 9: int64(4)})), `column "text" is said to be`},
		"column in front":    {fileOf(nil, footerOf(1, thriftFields{5: int64(1), 7: int64(0), 9: int64(-4)})), `column "text" is said to be`},
		"no chunk":           {fileOf(nil, thriftFields{2: footerOf(1, nil)[2], 4: thriftItems{thriftFields{1: thriftItems{}, 3: int64(1)}}}), "has 0 chunks for 1 columns"},
		"negative rows":      {fileOf([]byte("...."), footerOf(-1, thriftFields{5: int64(1), 9: int64(4)})), "said to have -1 rows"},
		"other file":         {fileOf(nil, thriftFields{2: footerOf(1, nil)[2], 4: thriftItems{thriftFields{1: thriftItems{thriftFields{1: "b.parquet"}}}}}), "in other files"},
		"too few values":     {textFile(codecNone, 3, 2, dataPage(2, len(texts), texts, nil)), "does not agree"},
		"too many values":    {textFile(codecNone, 1, 2, dataPage(2, len(texts), texts, nil)), "after the last of 1 rows"},
		"huge row count":     {textFile(codecNone, math.MaxInt64, 2, dataPage(2, len(texts), texts, nil)), "does not agree"},
		"values missing":     {textFile(codecNone, 3, 3, dataPage(2, len(texts), texts, nil)), "the column ends with 1 values missing"},
		"page's values":      {textFile(codecNone, 2, 2, dataPage(3, len(texts), texts, nil)), "has 3 values where the column has 2 left"},
		"page's many values": {textFile(codecNone, 2, 1<<40, dataPage(math.MaxInt32, len(texts), texts, nil)), "said to have 2147483647 values"},
		"page is cut":        {textFile(codecNone, 2, 2, dataPage(2, len(texts), texts[:8], nil)), "the data end too early"},
		"packed size":        {textFile(codecNone, 2, 2, dataPage(2, len(texts), texts, thriftFields{3: 1 << 20})), "is said to have 1048576 bytes, and the column has 14"},
		"unpacked size":      {textFile(codecSnappy, 2, 2, dataPage(2, math.MaxInt32, snappy.Encode(nil, texts), nil)), "is said to have 2147483647 bytes"},
		"negative size":      {textFile(codecSnappy, 2, 2, dataPage(2, -1, texts, nil)), "header is damaged"},
		"no sizes":           {textFile(codecNone, 2, 2, []byte{0}), "its header has no sizes"},
		"page type":          {textFile(codecNone, 2, 2, dataPage(2, len(texts), texts, thriftFields{1: 9})), "page type 9 is unknown"},
		"checksum":           {textFile(codecNone, 2, 2, dataPage(2, len(texts), texts, thriftFields{4: int(int32(crc32.ChecksumIEEE(texts) + 1))})), "checksum is wrong"},
		"implausible":        {textFile(codecSnappy, 2, 2, dataPage(2, 1<<20, snappy.Encode(nil, texts), nil)), "to 1048576, which snappy cannot do"},
		"snappy of more":     {textFile(codecSnappy, 2, 2, dataPage(2, 10, snappy.Encode(nil, texts), nil)), "unpacks to another size than is said"},
		"gzip bomb":          {textFile(codecGzip, 2, 2, dataPage(2, 1000, zip(t, 100_000_000), nil)), "unpacks to another size than is said"},
		"gzip of less":       {textFile(codecGzip, 2, 2, dataPage(2, 2000, zip(t, 1000), nil)), "its gzip data are damaged"},
		"zstd bomb":          {textFile(codecZstd, 2, 2, dataPage(2, 1000, zstdOf(t, make([]byte, 100_000_000)), nil)), "its zstd data are damaged"},
		"zstd of less":       {textFile(codecZstd, 2, 2, dataPage(2, 2000, zstdOf(t, make([]byte, 1000)), nil)), "unpacks to another size than is said"},
		// A window of 2 TiB, and a block of eight equal bytes.
		"zstd's window":       {textFile(codecZstd, 2, 2, dataPage(2, 8, []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0xf8, 8<<3 | 3, 0, 0, 'a'}, nil)), `column "text"`},
		"LZ4 of more":         {textFile(codecLZ4Raw, 2, 2, dataPage(2, 8, []byte{0x1f, 'a', 1, 0, 255, 255, 0}, nil)), "its LZ4 data are damaged"},
		"LZ4 before":          {textFile(codecLZ4Raw, 2, 2, dataPage(2, 8, []byte{0x10, 'a', 2, 0}, nil)), "its LZ4 data are damaged"},
		"brotli bomb":         {brotliFile(1000, brotliOf(t, make([]byte, 10_000_000))), "to another size"},
		"brotli of less":      {brotliFile(2000, brotliOf(t, make([]byte, 1000))), "its Brotli data are damaged"},
		"brotli is cut":       {brotliFile(1000, brotliOf(t, make([]byte, 1000))[:4]), "its Brotli data are damaged"},
		"brotli's window":     {brotliFile(8, []byte{0x11, 62, 'a', 'b'}), "its Brotli data are damaged"},
		"no Brotli":           {brotliFile(len(texts), texts), "its Brotli data are damaged"},
		"compression":         {textFile(3, 2, 2, dataPage(2, 4, texts, nil)), "LZO, is not supported: write the file"},
		"no dictionary":       {textFile(codecNone, 2, 2, indices(1, 3, 2)), "it needs a dictionary"},
		"dictionary's values": {textFile(codecNone, 2, 2, dictionary(math.MaxInt32, len(texts), texts)), "said to have 2147483647 values"},
		"dictionary is cut":   {textFile(codecNone, 2, 2, dictionary(3, len(texts), texts), indices(1, 3, 2)), "the data end too early"},
		"index":               {textFile(codecNone, 2, 2, dictionary(2, len(texts), texts), indices(2, 3, 2)), "value 2 of a dictionary of 2"},
		"index bits":          {textFile(codecNone, 2, 2, dictionary(2, len(texts), texts), indices(33, 3, 2)), "a run of values is damaged"},
		"indices end":         {textFile(codecNone, 2, 2, dictionary(2, len(texts), texts), indices(1, 2, 1)), "the data end too early"},
		"encoding":            {encoded(4, texts), "values in encoding 4 are not supported"},
		"encoding of type":    {encoded(encodingDelta, []byte{128, 1, 4, 2, 0}), "encoding 5 is not for values of its type"},
		"delta's block":       {encoded(encodingDeltaLengths, []byte{100, 4, 2, 0}), "delta-encoded values are damaged"},
		"delta's count":       {encoded(encodingDeltaLengths, []byte{128, 1, 4, 3, 0}), "delta-encoded values are damaged"},
		"delta's length":      {encoded(encodingDeltaLengths, []byte{128, 1, 4, 1, 4, 'a'}), "the data end too early"},
		"delta's negative":    {encoded(encodingDeltaLengths, []byte{128, 1, 4, 1, 1, 'a'}), "the data end too early"},
		"prefix of nothing":   {encoded(encodingDeltaStrings, []byte{128, 1, 4, 1, 2, 128, 1, 4, 1, 0}), "delta-encoded values are damaged"},
		"long names":          {fileOf(nil, thriftFields{2: deepNames}), ""},
		"long values":         {textFile(codecNone, many, many, dictionary(1, 1004, plainTexts(long)), equal), tooMuch},
		"many values":         {textFile(codecNone, 3*many, 3*many, dictionary(1, 4, plainTexts("")), equal, equal, equal), tooMuch},
		"many prefixes":       {textFile(codecNone, many, many, prefixes), tooMuch},
		"many pages":          {textFile(codecZstd, 1, 1, slices.Repeat(dataPage(0, 1<<20, zstdOf(t, make([]byte, 1<<20)), nil), 100)), tooMuch},
		"levels of encoding":  {repeatedFile(2, dataPage(2, 8, make([]byte, 8), thriftFields{5: thriftFields{1: 2, 2: 0, 3: 4, 4: 4}})), "levels in encoding 4"},
		"levels' length":      {repeatedFile(2, dataPage(2, 4, []byte{255, 255, 255, 255}, nil)), "the data end too early"},
		"level too high":      {repeatedFile(2, dataPage(2, 12, []byte{2, 0, 0, 0, 4, 2, 2, 0, 0, 0, 4, 0}, nil)), "its repetition levels are damaged"},
		"first level":         {repeatedFile(2, dataPage(2, 12, []byte{2, 0, 0, 0, 4, 1, 2, 0, 0, 0, 4, 0}, nil)), "does not agree"},
		"version 2's levels":  {repeatedFile(2, dataPage(2, 4, []byte("abcd"), thriftFields{1: pageDataV2, 8: thriftFields{1: 2, 4: 0, 5: 3, 6: 2}})), "its levels are larger than it"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := readFile(c.file)
			runtime.ReadMemStats(&after)
			switch {
			case c.want == "":
				if err != nil {
					t.Error(err)
				}
			case err == nil || !strings.Contains(err.Error(), c.want):
				t.Errorf("error %v, want %q", err, c.want)
			default:
				checkLine(t, err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
				t.Errorf("%d bytes were allocated", used)
			}
		})
	}
}

// repeatedFile has a column of a list, of numbers.
func repeatedFile(values int, page []byte) []byte {
	footer := footerOf(1, thriftFields{5: int64(values), 7: int64(len(page)), 9: int64(4)})
	footer[2] = thriftItems{thriftFields{4: "root", 5: 1}, thriftFields{1: typeInt32, 3: repeated, 4: "text"}}
	return fileOf(page, footer)
}

func readFile(b []byte) error {
	f, err := Open(bytes.NewReader(b), int64(len(b)), testLimits)
	if err != nil {
		return err
	}
	var bad error
	if err := f.Rows(context.Background(), f.Columns(), nil, func(_ []byte, err error) bool { bad = err; return err == nil }); err != nil {
		return err
	}
	return bad
}

// TestDamage: no flipped bit of a file and no cut makes a panic or an error of many lines.
func TestDamage(t *testing.T) {
	for _, name := range []string{"chat_zstd_v2", "flat_delta", "chat_gzip", "flat_lz4"} {
		good, err := os.ReadFile("testdata/" + name + ".parquet")
		if err != nil {
			t.Fatal(err)
		}
		check := func(b []byte) {
			if err := readFile(b); err != nil {
				checkLine(t, err)
			}
		}
		b := slices.Clone(good)
		for i := 0; i < len(b); i += 3 {
			bit := byte(1) << (i * 5 % 8)
			b[i] ^= bit
			check(b)
			b[i] ^= bit
		}
		for n := 0; n < len(good); n += 61 {
			check(good[:n])
		}
	}
}
